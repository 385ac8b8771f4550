"""What a routing is given and what it returns; lengths of capsules, and squashes to lengths below one."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.routing.kernels.stored import votes_children_last

Poses = Float[Tensor, "batch children child_dim"]
Activations = Float[Tensor, "batch children"]
Weight = Float[Tensor, "children parents parent_dim child_dim"]
Votes = Float[Tensor, "batch children parents parent_dim"]


class LayerSize(NamedTuple):
    """The sizes of the two layers that a routing joins: numbers of capsules and of the elements of their poses."""

    children: int  # I
    child_dim: int  # d
    parents: int  # J
    parent_dim: int  # D


class Routed(NamedTuple):
    """Poses [B, J, D] and activations [B, J] of the parents, couplings [B, I, J] of the last iteration.

    Activations lie in [0, 1]. The couplings of a child sum to one over the parents, or to less where the rest goes to
    none of them.
    """

    poses: Float[Tensor, "batch parents parent_dim"]
    activations: Float[Tensor, "batch parents"]
    couplings: Float[Tensor, "batch children parents"]

    @property
    def logits(self) -> Float[Tensor, "batch parents"] | None:
        """Return the numbers [B, J] whose logistic function the activations are, or None where there are none."""
        return None


class RoutedByLogits(Routed):
    """The same three, from a routing whose activations are the logistic function of `logits`.

    Logits keep the order of activations that round to 1.
    """

    _logits: Tensor

    def __new__(cls, poses: Tensor, logits: Tensor, couplings: Tensor) -> "RoutedByLogits":
        """Take the logits in place of the activations."""
        routed = super().__new__(cls, poses, logits.sigmoid(), couplings)
        routed._logits = logits
        return routed

    @property
    def logits(self) -> Float[Tensor, "batch parents"]:
        """Return the logits of the activations, [B, J]."""
        return self._logits


class Routing(nn.Module):
    """Base of all routings: built as Class(size, *, options), with what it learns as its parameters.

    Votes are linear in the poses of the children, vote_ij = W_ij u_i. A routing that needs them makes them with
    `stored_votes`; one that needs only sums over them takes these from `capsbench.routing.votes`.
    """

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route the children, poses u [B, I, d] and activations [B, I], through weight W [I, J, D, d]."""
        raise NotImplementedError


def stored_votes(poses: Poses, weight: Weight) -> Votes:
    """Return all votes, vote_ij = W_ij u_i: [B, I, J, D], a view of memory in the order [B, J, D, I]."""
    return votes_children_last(poses, weight).permute(0, 3, 1, 2)


def check_iterations(iterations: int) -> None:
    """Raise ValueError for fewer than one iteration."""
    if iterations < 1:
        raise ValueError(f"routing needs at least 1 iteration, not {iterations}")


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
