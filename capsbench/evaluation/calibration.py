"""Whether a network is right as often as it is sure: expected calibration error, Brier score, reliability diagram."""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from capsbench.data.tasks.stereo import class_shares
from capsbench.evaluation.context import Context
from capsbench.evaluation.result import curve
from capsbench.losses import Labels, present_classes
from capsbench.models import Output, predict, predicted_classes
from capsbench.registry import PROTOCOLS, Count

Kind = Literal["logits", "logits of activations", "logs of activations", "activations", "shares"]

SEEN = 2  # images that show what the scores of a network are


@PROTOCOLS.register(
    "calibration",
    split="test",
    scores_alone=True,
    draws="curves",
    shows={
        "ece_activations": "ECE, activations (%)",
        "ece_shares": "ECE, shares (%)",
        "ece_logits": "ECE, logits (%)",
        "brier_shares": "Brier, shares",
        "brier_logits": "Brier, logits",
    },
)
def calibration(context: Context, *, bins: Count = 15) -> dict[str, Any]:
    """Compare confidence and accuracy, for each way in which a network's scores can be read, see `readings`.

    The lengths and activations of capsules are no probabilities: they do not add up to one, and the margin loss stops
    pushing at 0.9 and 0.1. Their error says how far they are from being any.
    """
    predictions = context.predictions()
    scores, labels = predictions.scores, predictions.labels
    objects = 1 if labels.ndim == 1 else labels.shape[1]
    said = predicted_classes(scores, objects).reshape(len(scores), objects)  # [N, S]
    right = (said.unsqueeze(2) == labels.reshape(len(labels), 1, objects)).any(dim=2)  # [N, S]
    result: dict[str, Any] = {"status": "ok", "accuracy": 100 * float(right.double().mean())}
    each, curves = {}, []
    for name, values in readings(scores, _kind(context, objects), objects).items():
        confidence = values.gather(1, said)  # [N, S]
        found = reliability(confidence.flatten(), right.flatten(), bins)
        result[f"ece_{name}"] = found["ece"]
        result[f"brier_{name}"] = brier_score(values, labels)
        each[name] = found
        x, y = ([row[key] for row in found["bins"]] for key in ("confidence", "accuracy"))
        curves.append(curve(name, x, y, x_label=f"confidence, {name} (%)", y_label="accuracy (%)"))
    return result | {"readings": each, "curves": curves}


def readings(scores: Float[Tensor, "images classes"], kind: Kind, objects: int = 1) -> dict[str, Tensor]:
    """Return what a network's scores say about each class, float64 [N, K] in [0, 1], in every way to read them.

    - activations: of the class capsules, as they are: a length, a share or a logistic function. No probabilities.
    - shares: activations divided by their sum (as the code of Hinton 2018's authors does with several crops).
    - logits: their softmax, or one sigmoid per class for several objects in an image, as the cross-entropy reads them.

    In an image of several objects each class is present or not; shares, which add up to one, say nothing about that.

    Args:
        scores: [N, K].
        kind: what they are.
        objects: in each image.
    """
    exact = scores.double()
    if kind == "shares":
        return {"shares": exact.clamp(0, 1)}
    if kind == "logits":
        return {"logits": exact.softmax(dim=1) if objects == 1 else exact.sigmoid()}
    activations = {"activations": exact, "logs of activations": exact.exp()}.get(kind, exact.sigmoid())
    found = {"activations": activations.clamp(0, 1)}
    if objects == 1:
        found["shares"] = class_shares(exact, activations)
        if kind == "logits of activations":
            found["logits"] = exact.softmax(dim=1)
    return found


def reliability(
    confidence: Float[Tensor, " predictions"], right: Bool[Tensor, " predictions"], bins: int
) -> dict[str, Any]:
    """Sort predictions into bins of equal width by their confidence.

    ECE is the mean gap between accuracy and mean confidence of a bin, weighted by its predictions (Naeini 2015; Guo
    2017, equation 3, with 15 bins). Bins are closed above, the first one on both sides.

    Args:
        confidence: in [0, 1], float [N].
        right: bool [N].
        bins: how many.

    Returns:
        `ece`, `mean_confidence` and `overconfidence` (mean confidence minus accuracy), in %, and of each `bins` that is
        not empty the mean confidence and the accuracy in %, and how many predictions it holds.
    """
    confidence = confidence.double()
    place = ((confidence * bins).ceil().long() - 1).clamp(0, bins - 1)
    count = place.bincount(minlength=bins)
    sure, hits = (place.bincount(weights=values, minlength=bins) for values in (confidence, right.double()))
    rows = [
        {"predictions": int(n), "confidence": 100 * float(s / n), "accuracy": 100 * float(h / n)}
        for n, s, h in zip(count, sure, hits, strict=True)
        if n > 0
    ]
    mean = 100 * float(confidence.mean())
    return {
        "ece": 100 * float((sure - hits).abs().sum()) / len(confidence),
        "mean_confidence": mean,
        "overconfidence": mean - 100 * float(right.double().mean()),
        "bins": rows,
    }


def brier_score(values: Float[Tensor, "images classes"], labels: Labels) -> float:
    """Return the squared error summed over the classes, mean over images (Brier 1950): 0 is best, 2 is worst.

    For several objects in an image the target is 1 for each class in it, and K is the worst value.
    """
    truth = present_classes(labels, values.shape[1], torch.float64)
    return float((values.double() - truth).square().sum(dim=1).mean())


def kind_of(output: Output) -> Kind:
    """Tell what the scores of a network are: logits, where they follow from its activations in no way known here."""
    if output.activations is None:
        return "logits"
    ways: dict[Kind, Tensor] = {
        "activations": output.scores,
        "logits of activations": output.scores.sigmoid(),
        "logs of activations": output.scores.exp(),
    }
    for kind, values in ways.items():
        if torch.allclose(values, output.activations, rtol=1e-4, atol=1e-6):
            return kind
    return "logits"


def _kind(context: Context, objects: int) -> Kind:
    """Look at a few images: predictions hold scores, and of several crops the mean of their shares."""
    task = context.task()
    if task.views > 1:
        return "shares"
    with torch.no_grad():
        few = torch.arange(min(SEEN, len(task.labels)), device=task.labels.device)
        return kind_of(predict(context.model, task.eval_batch(few, 0).images, objects))
