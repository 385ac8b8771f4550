"""Whether a decoder takes overlaid digits apart (S17, section 6): overlap of each digit's reconstruction and source."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from capsbench.data.tasks.task import Task, evaluation_batch
from capsbench.evaluation.chosen import chosen_images
from capsbench.evaluation.context import Context
from capsbench.evaluation.result import curve, not_applicable
from capsbench.models import Network, predict, predicted_classes
from capsbench.registry import PROTOCOLS, Count, Fraction

INK = 0.5  # of full brightness, from which a pixel of a source is part of the digit
EXAMPLES = 10
RANGES = 5  # of the overlap of the digits, with as many pairs each

Masks = Bool[Tensor, "pairs objects channels height width"]
Classes = Int[Tensor, "pairs objects"]


class Segmented(NamedTuple):
    """iou: of each digit's mask, [N, S]. overlay: of the whole image as the mask. overlap: of the sources, [N]."""

    iou: Float[Tensor, "pairs objects"]
    correct: Bool[Tensor, " pairs"]
    overlay: Float[Tensor, "pairs objects"]
    overlap: Float[Tensor, " pairs"]


@PROTOCOLS.register(
    "segmentation",
    split="test",
    draws="own",
    shows={
        "iou": "IoU, all pairs (%)",
        "iou_correct": "IoU, pairs that are right (%)",
        "iou_overlay": "IoU of the whole overlay (%)",
    },
)
def segmentation(context: Context, *, images: Count = 2000, threshold: Fraction = 0.5) -> dict[str, Any]:
    """Measure IoU (intersection over union) of the masks that a decoder draws, and of the sources of pairs.

    The network predicts two classes and its decoder draws each alone, without being shown labels. A mask is matched to
    the source of the same class; a digit that was missed has an IoU of 0. `iou_overlay` is what one gets for the whole
    image as the mask of either digit: a decoder that takes nothing apart. IoU is a mean over digits, in %.

    images: how many pairs of the test, see `chosen_images`. threshold: brightness above which a
    reconstructed pixel is part of a mask; of sources it is 0.5.
    """
    task = context.task()
    if context.run.data.facts.objects == 1:
        return not_applicable(f"an image of {context.run.data.name} shows one object")
    chosen = chosen_images(task, images)
    found = _segment_all(context.model, task, chosen, threshold)
    if found is None:
        return not_applicable("the network has no decoder")
    right = found.iou[found.correct]
    x, y = _by_overlap(found)
    return {
        "status": "ok",
        "images": len(chosen),
        "correct_pairs": int(found.correct.sum()),
        "iou": 100 * float(found.iou.mean()),
        **({"iou_correct": 100 * float(right.mean())} if len(right) else {}),
        "iou_overlay": 100 * float(found.overlay.mean()),
        "curves": [curve("overlap of the digits", x, y, x_label="IoU of the two sources (%)", y_label="IoU (%)")],
    } | _examples(context.model, task, chosen[:EXAMPLES])


def segmented(
    reconstructions: Float[Tensor, "pairs objects channels height width"], said: Classes,
    sources: Float[Tensor, "pairs objects channels height width"], labels: Classes, overlay: Tensor,
    threshold: float = 0.5,
) -> Segmented:  # fmt: skip
    """Compare masks and sources of the same class.

    Args:
        reconstructions: of the predicted classes, in [0, 1], [N, S, C, H, W].
        said: these classes, int64 [N, S].
        sources: in [0, 1], [N, S, C, H, W].
        labels: their classes, int64 [N, S].
        overlay: the images, in [0, 1], [N, C, H, W].
        threshold: of the reconstructions.
    """
    ink = sources > INK
    same = labels.unsqueeze(2) == said.unsqueeze(1)  # [N, S of the sources, S of the masks]
    found = same.any(dim=2)  # [N, S]
    rows = torch.arange(len(labels), device=labels.device).unsqueeze(1)
    masks = (reconstructions > threshold)[rows, same.to(torch.uint8).argmax(dim=2)]  # in the order of the sources
    own = intersection_over_union(masks, ink) * found
    whole = (overlay > INK).unsqueeze(1).expand_as(ink)
    return Segmented(
        own, found.all(dim=1), intersection_over_union(whole, ink), intersection_over_union(ink[:, 0], ink[:, 1])
    )


def intersection_over_union(
    a: Bool[Tensor, "*items channels height width"], b: Bool[Tensor, "*items channels height width"]
) -> Float[Tensor, "*items"]:
    """Return the pixels in both masks divided by those in either, float64; two empty masks are the same: 1."""
    both, either = ((mask.flatten(-3).sum(dim=-1)).double() for mask in (a & b, a | b))
    return torch.where(either > 0, both / either.clamp_min(1), 1.0)


@torch.no_grad()
def _segment_all(network: Network, task: Task, chosen: Tensor, threshold: float) -> Segmented | None:
    parts = []
    for indices in chosen.split(evaluation_batch(chosen.device)):
        batch = task.eval_batch(indices, 0)
        objects = batch.labels.shape[1]
        output = predict(network, batch.images, objects)
        if output.reconstructions is None:
            return None
        said = predicted_classes(output.scores, objects)
        parts.append(segmented(output.reconstructions, said, batch.targets, batch.labels, batch.images, threshold))
    return Segmented(*(torch.cat(values).cpu() for values in zip(*parts, strict=True)))


def _by_overlap(found: Segmented) -> tuple[list[float], list[float]]:
    """Return mean overlap and mean IoU of the pairs in each fifth of all, in %, by how much their digits overlap."""
    order = found.overlap.argsort(stable=True)
    fifths = [part for part in order.tensor_split(RANGES) if len(part)]
    return (
        [100 * float(found.overlap[part].mean()) for part in fifths],
        [100 * float(found.iou[part].mean()) for part in fifths],
    )


@torch.no_grad()
def _examples(network: Network, task: Task, chosen: Tensor) -> dict[str, Any]:
    """Return the first pairs for a figure: uint8 [P, C, H, W], of sources and masks [P, S, C, H, W]; classes [P, S]."""
    batch = task.eval_batch(chosen, 0)
    output = predict(network, batch.images, batch.labels.shape[1])
    assert output.reconstructions is not None
    images = {
        "example_images": batch.images, "example_sources": batch.targets,
        "example_reconstructions": output.reconstructions,
    }  # fmt: skip
    drawn = {name: (255 * values).round().to(torch.uint8).cpu().numpy() for name, values in images.items()}
    said = predicted_classes(output.scores, batch.labels.shape[1])
    return drawn | {"example_labels": batch.labels.tolist(), "example_predictions": said.tolist()}
