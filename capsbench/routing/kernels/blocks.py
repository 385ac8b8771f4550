"""Routing a few samples at a time, so that votes and all that is made of them stay in cache.

Votes are as many times larger than what they are made of as there are parents times their dimensions. A procedure that
needs each of them several times reads and writes them through memory at every step, forwards and backwards. Samples do
not meet in routing, so a block of them can be routed from beginning to end, and only results are kept. On the way back
each block is routed again and then followed back, which costs one more forward pass and no memory.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

VOTES_IN_CACHE = 2**20  # elements: 4 MiB of float32
# children's poses [b, I, d] and activations [b, I] of some samples, weight [I, J, D, d], what is learnt -> results [b, ...]
Procedure = Callable[..., tuple[Tensor, ...]]


def in_blocks(
    procedure: Procedure, poses: Tensor, activations: Tensor, weight: Tensor, learnt: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Route samples in blocks, on a CPU; all at once on a GPU, where large launches beat small ones.

    Args:
        procedure: takes poses, activations, weight and `learnt`, in this order; draws nothing.
        poses: [B, I, d].
        activations: [B, I].
        weight: [I, J, D, d], which makes B x I x J x D elements of votes.
        learnt: further tensors that take gradients, the same for all samples.

    Returns:
        What the procedure returns of all samples; each result has them first.
    """
    rows = max(1, VOTES_IN_CACHE // weight[..., 0].numel())
    if poses.is_cuda or rows >= len(poses):
        return procedure(poses, activations, weight, *learnt)
    results: tuple[Tensor, ...] = _InBlocks.apply(procedure, rows, poses, activations, weight, *learnt)
    return results


class _InBlocks(Function):
    """The results of a procedure on blocks of samples, made again for the gradients."""

    @staticmethod
    def forward(ctx: Any, procedure: Procedure, rows: int, poses: Tensor, activations: Tensor, *shared: Tensor) -> Any:
        ctx.procedure, ctx.rows = procedure, rows
        ctx.save_for_backward(poses, activations, *shared)
        blocks = zip(poses.split(rows), activations.split(rows), strict=True)
        found = [procedure(*block, *shared) for block in blocks]
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        poses, activations, *shared = ctx.saved_tensors
        shared = [tensor.detach().requires_grad_() for tensor in shared]
        totals = [torch.zeros_like(tensor) for tensor in shared]
        of_samples: list[tuple[Tensor, Tensor]] = []
        blocks = zip(
            poses.split(ctx.rows), activations.split(ctx.rows), *(g.split(ctx.rows) for g in gradients), strict=True
        )
        for block_poses, block_activations, *outer in blocks:
            own = [block_poses.detach().requires_grad_(), block_activations.detach().requires_grad_()]
            with torch.enable_grad():
                results = ctx.procedure(*own, *shared)
            taken = [(result, gradient) for result, gradient in zip(results, outer, strict=True) if result.requires_grad]
            found = torch.autograd.grad(
                [result for result, _ in taken],
                [*own, *shared],
                [gradient for _, gradient in taken],
                allow_unused=True,
                materialize_grads=True,
            )
            of_samples.append(found[:2])
            for total, gradient in zip(totals, found[2:], strict=True):
                total += gradient
        return None, None, *(torch.cat(parts) for parts in zip(*of_samples, strict=True)), *totals
