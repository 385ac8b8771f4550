"""Votes as routing uses them: what is needed of them are sums, which can be had without storing a vote.

Symbols: i a child, j a parent, û_ij = W_ij u_i the vote. Shapes: B batch, I children, J parents, d and D the size of a
child's and of a parent's pose. Here parents come first, so that what is summed over runs along memory: couplings and
agreements [J, B, I], poses and weighted sums [J, B, D].
"""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor

from capsbench.routing.contract import Poses, Weight, stored_votes
from capsbench.routing.kernels.forms import takes_plain_forms
from capsbench.routing.kernels.linear_votes import agreement, weighted_sum

Couplings = Float[Tensor, "parents samples children"]  # samples: B, or 1 where all share them
Agreements = Float[Tensor, "parents batch children"]
Sums = Float[Tensor, "parents batch dim"]


class Votes(ABC):
    """The votes of all children for all parents, of a batch.

    Attributes:
        like: any of their tensors, for its type and device.
        batch, children, parents, dim: B, I, J and D.
    """

    like: Tensor
    batch: int
    children: int
    parents: int
    dim: int

    @abstractmethod
    def total(self) -> Sums:
        """Return sum_i û_ij, [J, B, D]."""

    @abstractmethod
    def weighted_sum(self, couplings: Couplings) -> Sums:
        """Return sum_i c_ij û_ij, [J, B, D], for couplings [J, B, I], or [J, 1, I] where all samples share them."""

    @abstractmethod
    def agreement(self, poses: Sums) -> Agreements:
        """Return the products <û_ij, v_j> [J, B, I] with poses v [J, B, D]."""

    def uniform(self) -> Float[Tensor, "batch children parents"]:
        """Return couplings [B, I, J] of 1/J."""
        return self.like.new_full((self.batch, self.children, self.parents), 1 / self.parents)


class StoredVotes(Votes):
    """Votes [B, I, J, D] as they are, the reference for the form without."""

    def __init__(self, votes: Float[Tensor, "batch children parents dim"]):
        self.votes = self.like = votes
        self.batch, self.children, self.parents, self.dim = votes.shape

    def total(self) -> Sums:
        """Return sum_i û_ij, [J, B, D]."""
        return self.votes.sum(dim=1).transpose(0, 1)

    def weighted_sum(self, couplings: Couplings) -> Sums:
        """Return sum_i c_ij û_ij, [J, B, D]."""
        return torch.einsum("jbi,bijd->jbd", couplings.expand(-1, self.batch, -1), self.votes)

    def agreement(self, poses: Sums) -> Agreements:
        """Return the products <û_ij, v_j>, [J, B, I]."""
        return torch.einsum("bijd,jbd->jbi", self.votes, poses)


class LinearVotes(Votes):
    """Votes û_ij = W_ij u_i that are never stored, see `capsbench.routing.kernels.linear_votes`."""

    def __init__(self, poses: Poses, weight: Weight):
        self.like = poses
        self.batch, self.children = poses.shape[:2]
        self.parents, self.dim = weight.shape[1:3]
        self.inputs = poses.transpose(1, 2).contiguous()  # u [B, d, I]
        self.weight = weight.permute(1, 2, 3, 0).reshape(self.parents, self.dim, -1)  # W_j [J, D, d * I]

    def total(self) -> Sums:
        """Return sum_i û_ij, [J, B, D]."""
        return self._sum_of_all(self.weight)

    def weighted_sum(self, couplings: Couplings) -> Sums:
        """Return sum_i c_ij û_ij, [J, B, D]; couplings that all samples share go into the weight."""
        if couplings.shape[1] < self.batch:
            shared = self.weight.view(self.parents, self.dim, -1, self.children) * couplings.unsqueeze(2)
            return self._sum_of_all(shared.flatten(2))
        return weighted_sum(couplings.contiguous(), self.inputs, self.weight)

    def agreement(self, poses: Sums) -> Agreements:
        """Return the products <û_ij, v_j>, [J, B, I]."""
        return agreement(poses, self.inputs, self.weight)

    def _sum_of_all(self, weight: Tensor) -> Tensor:
        """One matrix product for all parents together: weight [J, D, d * I] -> [J, B, D]."""
        sums: Tensor = self.inputs.flatten(1) @ weight.flatten(0, 1).T  # [B, J * D]
        return sums.view(-1, self.parents, self.dim).transpose(0, 1)


def votes_of(poses: Poses, weight: Weight) -> Votes:
    """Return the votes W_ij u_i of poses u [B, I, d] through weight W [I, J, D, d], in the form that is taken."""
    return StoredVotes(stored_votes(poses, weight)) if takes_plain_forms() else LinearVotes(poses, weight)


def as_votes(votes: Float[Tensor, "batch children parents dim"] | Votes) -> Votes:
    """Take votes in either form; a tensor [B, I, J, D] is stored votes."""
    return StoredVotes(votes) if isinstance(votes, Tensor) else votes
