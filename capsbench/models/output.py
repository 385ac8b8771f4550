"""What every network returns."""

from typing import NamedTuple

from torch import Tensor


class Output(NamedTuple):
    """scores [B, K] (the largest is the prediction); the rest is None where a network has no such thing.

    poses [B, K, D] of the class capsules; reconstructions [B, C, H, W] in [0, 1]; couplings [B, I, K] of the
    last routing iteration, each row summing to one.
    """

    scores: Tensor
    poses: Tensor | None = None
    reconstructions: Tensor | None = None
    couplings: Tensor | None = None
