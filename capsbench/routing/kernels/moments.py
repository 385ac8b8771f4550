"""Sums over squared deviations of votes, without storing the deviations: what EM routing needs of its votes.

A deviation V - mu is as large as the votes, and autograd would keep several for each routing iteration. Here each
is made from a scratch tensor that stays in cache and is made again on the way back, so that memory holds the votes
once and not once an operation. Squares are taken of deviations, never as E[V^2] - E[V]^2, which loses every digit
where the votes agree.

Shapes: X rows (a sample, or a sample and a parent position), J parents, N children, H elements of a pose;
votes [X, J, N, H], weights and distances [X, J, N], means and precisions [X, J, H], mass [X, J, 1].
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Votes = Float[Tensor, "rows parents children dim"]
Weights = Float[Tensor, "rows parents children"]  # distances too
Means = Float[Tensor, "rows parents dim"]  # sums of squares and precisions too

EPSILON = 1e-7  # added to the mass, so that a parent without data has a mean (the authors' code: 1e-7)
_SCRATCH_ELEMENTS = 2**18  # on a CPU: 1 MiB of float32


class WeightedMoments(Function):
    """Means m = sum_n w V / (mass + EPSILON) and sums of squares s = sum_n w (V - m)^2, both [X, J, H]."""

    @staticmethod
    def forward(ctx: Any, votes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        mass = weights.sum(dim=2, keepdim=True) + EPSILON
        means = torch.matmul(weights.unsqueeze(2), votes).squeeze(2) / mass
        squares = torch.empty_like(means)
        for rows, deviations in _deviations(votes, means):
            squares[rows] = torch.matmul(weights[rows].unsqueeze(2), deviations.square_()).squeeze(2)
        ctx.save_for_backward(votes, weights, means, mass)
        return means, squares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_means: Tensor, grad_squares: Tensor) -> tuple[Tensor, Tensor]:  # noqa: D102
        votes, weights, means, mass = ctx.saved_tensors
        # s moves with m only through sum_n w (V - m) = EPSILON m
        shift = ((grad_means - 2 * EPSILON * means * grad_squares) / mass).unsqueeze(2)  # [X, J, 1, H]
        grad_squares = grad_squares.unsqueeze(3)  # [X, J, H, 1]
        grad_votes, grad_weights = torch.empty_like(votes), torch.empty_like(weights)
        for rows, deviations in _deviations(votes, means):
            grad_vote = grad_votes[rows]
            torch.mul(deviations, 2 * grad_squares[rows].transpose(2, 3), out=grad_vote).add_(shift[rows])
            grad_weight = torch.matmul(deviations, shift[rows].transpose(2, 3))
            grad_weight += torch.matmul(deviations.square_(), grad_squares[rows])
            grad_weights[rows] = grad_weight.squeeze(3)
            grad_vote.mul_(weights[rows].unsqueeze(3))
        return grad_votes, grad_weights


class SquaredDistances(Function):
    """d = sum_h precision (V - mean)^2, [X, J, N]."""

    @staticmethod
    def forward(ctx: Any, votes: Tensor, means: Tensor, precisions: Tensor) -> Tensor:  # noqa: D102
        distances = votes.new_empty(votes.shape[:3])
        for rows, deviations in _deviations(votes, means):
            distances[rows] = torch.matmul(deviations.square_(), precisions[rows].unsqueeze(3)).squeeze(3)
        ctx.save_for_backward(votes, means, precisions)
        return distances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: D102
        votes, means, precisions = ctx.saved_tensors
        grad_distances = grad_distances.unsqueeze(2)  # [X, J, 1, N]
        grad_votes = torch.empty_like(votes)
        grad_means, grad_precisions = torch.empty_like(means), torch.empty_like(precisions)
        for rows, deviations in _deviations(votes, means):
            grad_distance, grad_vote = grad_distances[rows], grad_votes[rows]
            torch.mul(deviations, 2 * precisions[rows].unsqueeze(2), out=grad_vote)
            grad_vote.mul_(grad_distance.transpose(2, 3))
            grad_means[rows] = -2 * precisions[rows] * torch.matmul(grad_distance, deviations).squeeze(2)
            grad_precisions[rows] = torch.matmul(grad_distance, deviations.square_()).squeeze(2)
        return grad_votes, grad_means, grad_precisions


def weighted_moments(votes: Votes, weights: Weights) -> tuple[Means, Means]:
    """Means and sums of squares about them: votes [X, J, N, H], weights [X, J, N] -> two [X, J, H]."""
    moments: tuple[Tensor, Tensor] = WeightedMoments.apply(votes, weights)
    return moments


def squared_distances(votes: Votes, means: Means, precisions: Means) -> Weights:
    """sum_h precision (V - mean)^2: votes [X, J, N, H], means and precisions [X, J, H] -> [X, J, N]."""
    distances: Tensor = SquaredDistances.apply(votes, means, precisions)
    return distances


def _deviations(votes: Tensor, means: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows, V - mean of those rows), in a scratch tensor that the caller may overwrite.

    A few rows at a time on a CPU, where they then stay in cache; all at once on a GPU.
    """
    rows_at_once = votes.shape[0] if votes.is_cuda else max(1, _SCRATCH_ELEMENTS // votes[:1].numel())
    for first in range(0, votes.shape[0], rows_at_once):
        rows = slice(first, first + rows_at_once)
        yield rows, votes[rows] - means[rows].unsqueeze(2)
