"""What a routing is given and what it returns."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

Poses = Float[Tensor, "batch children child_dim"]
Activations = Float[Tensor, "batch children"]
Weight = Float[Tensor, "children parents parent_dim child_dim"]
Votes = Float[Tensor, "batch children parents parent_dim"]


class LayerSize(NamedTuple):
    """The two layers that a routing joins: so many children of so many numbers, so many parents of so many."""

    children: int  # I
    child_dim: int  # d
    parents: int  # J
    parent_dim: int  # D


class Routed(NamedTuple):
    """Poses [B, J, D] and activations [B, J] of the parents, couplings [B, I, J] of the last iteration.

    Activations lie in [0, 1]. The couplings of a child sum to one over the parents.
    """

    poses: Float[Tensor, "batch parents parent_dim"]
    activations: Float[Tensor, "batch parents"]
    couplings: Float[Tensor, "batch children parents"]


class Routing(nn.Module):
    """Base of all routings: built as Class(size, *, options), with what it learns as its parameters.

    Votes are linear in the poses of the children, vote_ij = W_ij u_i. A routing that needs them makes them with
    `stored_votes`; one that needs only sums over them takes these from `capsbench.routing.kernels.linear_votes`.
    """

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route the children, poses u [B, I, d] and activations [B, I], through weight W [I, J, D, d]."""
        raise NotImplementedError


def stored_votes(poses: Poses, weight: Weight) -> Votes:
    """Return all votes, vote_ij = W_ij u_i: [B, I, J, D]."""
    return torch.einsum("ijkd,bid->bijk", weight, poses)


def check_iterations(iterations: int) -> None:
    """Raise ValueError for fewer than one iteration."""
    if iterations < 1:
        raise ValueError(f"routing needs at least 1 iteration, not {iterations}")
