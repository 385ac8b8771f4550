"""How well a linear classifier reads the class from a network's poses or last features.

A probe (Alain, Bengio 2017, *Understanding intermediate layers using linear classifier probes*) is how a network that
was trained without labels is scored. The same probe on pixels says what the network adds to its input.
"""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from capsbench.data.tasks.task import Task
from capsbench.evaluation.chosen import chosen_images
from capsbench.evaluation.context import Context
from capsbench.evaluation.predictions import BATCH_SIZE
from capsbench.evaluation.representation import NOTHING, represent
from capsbench.evaluation.result import not_applicable
from capsbench.models import Network
from capsbench.registry import PROTOCOLS, Count
from capsbench.run.metrics import is_correct

MOST_STEPS = 1000


@PROTOCOLS.register(
    "linear_probe",
    title="linear probe",
    split="test",
    shows={
        "accuracy": "on poses or features (%)",
        "pixels_accuracy": "on pixels (%)",
        "network_accuracy": "itself (%)",
    },
)
def linear_probe(context: Context, *, train_images: Count = 2000, images: Count = 10_000) -> dict[str, Any]:
    """Fit a linear classifier on training images and score it on test images.

    Poses are those of all class capsules, K x D values; features of a CNN are what its last linear layer is given.
    Images are shown as in a test: not augmented, in the central crop.

    Returns:
        Accuracies in % (for pairs, of both classes) of a probe on poses or features, of one on the pixels that the
        network sees, and of the network itself on the same test images.
    """
    training, test = context.training_images(), context.task()
    shown, scored = chosen_images(training, train_images), chosen_images(test, images)
    seen = collect(context.model, training, shown)
    if seen is None:
        return not_applicable(NOTHING)
    tested = collect(context.model, test, scored)
    assert tested is not None
    kind, values, pixels, _ = seen
    labels, truth = training.labels[shown].cpu(), test.labels[scored].cpu()
    accuracy, converged = probe(values, labels, tested[1], truth)
    pixels_accuracy, pixels_converged = probe(pixels, labels, tested[2], truth)
    own = _accuracy(tested[3], truth)
    return {
        "status": "ok",
        "of": kind,
        "images": len(scored),
        "sizes": {"train_images": len(shown), "values": values.shape[1], "pixels": pixels.shape[1]},
        "accuracy": accuracy,
        "pixels_accuracy": pixels_accuracy,
        "network_accuracy": own,
        "converged": {kind: converged, "pixels": pixels_converged},
    }


def collect(model: Network, task: Task, indices: Tensor) -> tuple[str, Tensor, Tensor, Tensor] | None:
    """Return what the values are, poses or features [N, V], pixels [N, P] and scores [N, K], on the CPU.

    None where the network has neither poses nor features.
    """
    kind, values, pixels, scores = "", [], [], []
    for part in indices.split(BATCH_SIZE):
        images = task.eval_batch(part, 0).images
        said = represent(model, images)
        if said.values is None:
            return None
        kind = said.kind
        values.append(said.values.flatten(1).cpu())
        pixels.append(images.flatten(1).cpu())
        scores.append(said.scores.cpu())
    return kind, torch.cat(values), torch.cat(pixels), torch.cat(scores)


def probe(values: Tensor, labels: Tensor, test_values: Tensor, test_labels: Tensor) -> tuple[float, bool]:
    """Fit scikit-learn's logistic regression on standardised values, and score it.

    Args:
        values: of the training images, [N, V].
        labels: int64 [N]; [N, S] for S classes in each image, for which each class is told from all others, and the S
            highest are said.
        test_values: [M, V].
        test_labels: [M] or [M, S].

    Returns:
        The accuracy in %, and whether the fit converged.
    """
    from sklearn.exceptions import ConvergenceWarning  # slow to import
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(values.double().numpy())
    seen, tested = (scaler.transform(some.double().numpy()) for some in (values, test_values))
    classes = labels.unique().numpy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        if labels.ndim == 1:
            model = LogisticRegression(max_iter=MOST_STEPS).fit(seen, labels.numpy())
            scores = np.asarray(model.predict(tested))[:, None] == classes
        else:
            present = (labels.unsqueeze(2) == torch.from_numpy(classes)).any(dim=1).numpy()  # [N, K]
            models = [LogisticRegression(max_iter=MOST_STEPS).fit(seen, column) for column in present.T]
            scores = np.stack([model.decision_function(tested) for model in models], axis=1)
    converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    # a class without training images is never said
    known = torch.full((len(tested), int(max(classes.max(), int(test_labels.max()))) + 1), -torch.inf)
    known[:, torch.from_numpy(classes)] = torch.from_numpy(scores).float()
    return _accuracy(known, test_labels), converged


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return 100 * int(is_correct(scores, labels).sum()) / len(labels)
