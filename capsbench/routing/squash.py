"""Lengths of capsules, and squashes: functions that shrink a capsule to a length below one and keep its direction."""

import torch
from jaxtyping import Float
from torch import Tensor


def squash(s: Float[Tensor, "*shape"], dim: int = -1) -> Float[Tensor, "*shape"]:
    """Shrink vectors to a length in [0, 1): v = |s|^2 / (1 + |s|^2) * s / |s|  (S17, equation 1).

    S17: Sabour, Frosst, Hinton 2017. s: any shape, the capsule's values along `dim`; the result has the same shape.
    Value and gradient are finite everywhere: both are zero at s = 0 (the 1e-12 acts only below a length of about 1e-6).
    """
    squared_length = s.square().sum(dim=dim, keepdim=True)
    return s * (squared_length / (1 + squared_length) / (squared_length + 1e-12).sqrt())


def exponential_squash(s: Float[Tensor, "*shape"], dim: int = -1) -> Float[Tensor, "*shape"]:
    """Shrink vectors to a length in [0, 1): v = (1 - exp(-|s|)) * s / |s|, of Efficient-CapsNet.

    Mazzia, Salvetti, Chiaberge 2021. Unlike `squash` it keeps short vectors as they are (v = s near zero, gradient
    one), so that no capsule starts without a gradient. s: any shape, the capsule's values along `dim`; the result has
    the same shape. Value and gradient are finite everywhere (the 1e-12 acts only below a length of about 1e-6).
    """
    length = (s.square().sum(dim=dim, keepdim=True) + 1e-12).sqrt()
    return s * (-torch.expm1(-length) / length)


def capsule_lengths(poses: Float[Tensor, "*shape dim"]) -> Float[Tensor, "*shape"]:
    """Return the length of each capsule, with a finite gradient at zero: poses [..., D] -> [...]."""
    return (poses.square().sum(dim=-1) + 1e-12).sqrt()
