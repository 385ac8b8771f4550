"""Sums over squared deviations of votes, without storing the deviations: what EM routing needs of its votes.

A deviation V - mu is as large as the votes, and autograd would keep several for each routing iteration. Here each
is made from a scratch tensor that stays in cache and is made again on the way back, so that memory holds the votes
once and not once an operation. Squares are taken of deviations, never as E[V^2] - E[V]^2, which loses every digit
where the votes agree.

The gradient of the votes is as large as they are too. That of one sum is V K + O, where K and O are outer products of
a number for each child and one for each element of a pose. So each sum hands on these numbers alone, and the gradient
of all sums together is made once, at the end. Its rounding error is in proportion to V, not to V - mu.

Shapes: X rows (a sample, or a sample and a parent position), J parents, N children, H elements of a pose;
votes [X, J, H, N] (N last, so that sums over children and sums over elements both run along memory), weights and
distances [X, J, N], means and precisions [X, J, H], mass [X, J, 1].
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Weights = Float[Tensor, "rows parents children"]  # distances too
Means = Float[Tensor, "rows parents dim"]  # sums of squares and precisions too

EPSILON = 1e-7  # added to the mass, so that a parent without data has a mean (the authors' code: 1e-7)
_SCRATCH_ELEMENTS = 2**18  # on a CPU: 1 MiB of float32


class GaussianVotes:
    """Votes [X, J, H, N] of which routing takes moments and distances, `sums` times altogether.

    Raises RuntimeError where more sums are taken.
    """

    def __init__(self, votes: Float[Tensor, "rows parents dim children"], sums: int):
        votes = votes.contiguous()
        self._votes = votes.detach()
        self._slots = iter(_Slots.apply(votes, sums))

    def moments(self, weights: Weights) -> tuple[Means, Means]:
        """Return means m = sum_n w V / (mass + EPSILON) and sums of squares sum_n w (V - m)^2, [X, J, H] each."""
        found: tuple[Tensor, Tensor] = _WeightedMoments.apply(self._slot(), self._votes, weights)
        return found

    def distances(self, means: Means, precisions: Means) -> Weights:
        """Return sum_h precision (V - mean)^2, [X, J, N], for means and precisions [X, J, H]."""
        found: Tensor = _SquaredDistances.apply(self._slot(), self._votes, means, precisions)
        return found

    def _slot(self) -> Tensor:
        slot: Tensor | None = next(self._slots, None)
        if slot is None:
            raise RuntimeError("more sums over the votes are taken than were announced")
        return slot


class _Slots(Function):
    """Votes -> a slot for each sum over them, [X, J, N + 2 H] without memory, which takes its share of the gradient.

    The gradient of a slot is (l, r, o), [N], [H] and [H], for each row and parent: the votes' is V (r l^T) + o l^T.
    """

    @staticmethod
    def forward(ctx: Any, votes: Tensor, sums: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(votes)
        ctx.set_materialize_grads(False)
        rows, parents, dim, children = votes.shape
        return tuple(votes.new_zeros(()).expand(rows, parents, children + 2 * dim) for _ in range(sums))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slots: Tensor | None) -> tuple[Tensor | None, None]:
        (votes,) = ctx.saved_tensors
        dim, children = votes.shape[2:]
        used = [slot.split([children, dim, dim], dim=2) for slot in slots if slot is not None]
        if not used:
            return None, None
        left, scale, shift = (torch.stack(parts, dim=2) for parts in zip(*used, strict=True))  # [X, J, S, N or H]
        gradient = torch.empty_like(votes)
        for rows, _ in _few_rows(votes):
            own, part = left[rows].flatten(0, 1), gradient[rows].flatten(0, 1)  # [., S, N], [., H, N]
            torch.bmm(scale[rows].flatten(0, 1).transpose(1, 2), own, out=part)
            part.mul_(votes[rows].flatten(0, 1)).baddbmm_(shift[rows].flatten(0, 1).transpose(1, 2), own)
        return gradient, None


class _WeightedMoments(Function):
    @staticmethod
    def forward(ctx: Any, slot: Tensor, votes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        mass = weights.sum(dim=2, keepdim=True) + EPSILON
        means, squares = votes.new_empty(2, *votes.shape[:3])
        for rows, scratch in _few_rows(votes):
            torch.div(_over_children(votes[rows], weights[rows]), mass[rows], out=means[rows])
            deviations = torch.sub(votes[rows], means[rows].unsqueeze(3), out=scratch)
            squares[rows] = _over_children(deviations.square_(), weights[rows])
        ctx.save_for_backward(votes, weights, means, mass)
        return means, squares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_means: Tensor, grad_squares: Tensor) -> tuple[Tensor, None, Tensor]:
        votes, weights, means, mass = ctx.saved_tensors
        # s moves with m only through sum_n w (V - m) = EPSILON m
        shift = (grad_means - 2 * EPSILON * means * grad_squares) / mass  # [X, J, H]
        grad_weights = torch.empty_like(weights)
        for rows, deviations in _deviations(votes, means):
            grad_weight = _over_elements(deviations, shift[rows])
            grad_weights[rows] = grad_weight + _over_elements(deviations.square_(), grad_squares[rows])
        scale = 2 * grad_squares  # of the votes: w (2 ds (V - m) + shift)
        return torch.cat([weights, scale, shift - scale * means], dim=2), None, grad_weights


class _SquaredDistances(Function):
    @staticmethod
    def forward(ctx: Any, slot: Tensor, votes: Tensor, means: Tensor, precisions: Tensor) -> Tensor:
        rows, parents, _, children = votes.shape
        distances = votes.new_empty(rows, parents, children)
        for part, deviations in _deviations(votes, means):
            distances[part] = _over_elements(deviations.square_(), precisions[part])
        ctx.save_for_backward(votes, means, precisions)
        return distances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_distances: Tensor) -> tuple[Tensor, None, Tensor, Tensor]:
        votes, means, precisions = ctx.saved_tensors
        grad_means, grad_precisions = torch.empty_like(means), torch.empty_like(precisions)
        for rows, deviations in _deviations(votes, means):
            grad_means[rows] = -2 * precisions[rows] * _over_children(deviations, grad_distances[rows])
            grad_precisions[rows] = _over_children(deviations.square_(), grad_distances[rows])
        scale = 2 * precisions  # of the votes: dd 2 precision (V - mean)
        return torch.cat([grad_distances, scale, -scale * means], dim=2), None, grad_means, grad_precisions


def _over_children(values: Tensor, weights: Tensor) -> Tensor:
    """Sum values [X, J, H, N] over children by weights [X, J, N] -> [X, J, H]."""
    return torch.matmul(weights.unsqueeze(2), values.transpose(2, 3)).squeeze(2)


def _over_elements(values: Tensor, factors: Tensor) -> Tensor:
    """Sum values [X, J, H, N] over elements by factors [X, J, H] -> [X, J, N]."""
    return torch.matmul(factors.unsqueeze(2), values).squeeze(2)


def _deviations(votes: Tensor, means: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows, V - mean of those rows), in a scratch tensor that the caller may overwrite."""
    for rows, scratch in _few_rows(votes):
        yield rows, torch.sub(votes[rows], means[rows].unsqueeze(3), out=scratch)


def _few_rows(votes: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield (rows, scratch as large as their votes), a few rows at a time on a CPU, where they then stay in cache.

    On a GPU all are taken at once.
    """
    at_once = votes.shape[0] if votes.is_cuda else max(1, _SCRATCH_ELEMENTS // votes[:1].numel())
    scratch = torch.empty_like(votes[:at_once])
    for first in range(0, votes.shape[0], at_once):
        yield slice(first, first + at_once), scratch[: votes.shape[0] - first]
