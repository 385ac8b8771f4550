"""What every network returns, and what it thereby says."""

from typing import NamedTuple

from torch import Tensor, nn


class Output(NamedTuple):
    """scores [B, K] (the largest is the prediction); the rest is None where a network has no such thing.

    poses [B, K, D] of the class capsules; reconstructions in [0, 1], [B, C, H, W], or [B, S, C, H, W] of S classes;
    couplings [B, I, K] of the last routing iteration, each row summing to one.
    """

    scores: Tensor
    poses: Tensor | None = None
    reconstructions: Tensor | None = None
    couplings: Tensor | None = None


def predicted_classes(scores: Tensor, objects: int = 1) -> Tensor:
    """Return the classes of the highest scores [B, K]: int64 [B], or [B, objects] ascending for several objects."""
    if objects == 1:
        return scores.argmax(dim=1)
    return scores.topk(objects, dim=1).indices.sort(dim=1).values


def answer(model: nn.Module, images: Tensor, objects: int = 1) -> Output:
    """Run a network on images whose labels it is not shown; its decoder gives back the classes that it predicts."""
    output: Output = model(images)
    if objects > 1 and output.reconstructions is not None:
        output = model(images, predicted_classes(output.scores, objects))
    return output
