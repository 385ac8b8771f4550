"""Sums over votes that are never stored, for routing whose votes are linear: vote_ij = W_ij u_i.

Everything routing needs of the votes comes from one form, linear in each of its four arguments,

    F(c, u, W, v) = sum_ij c_ij <W_ij u_i, v_j>,

and is one of its partial derivatives: by v_j the weighted sum s_j = sum_i c_ij W_ij u_i, by c_ij the agreement
<W_ij u_i, v_j>, by u and W the gradients of both. Each is computed parent by parent from a scratch tensor of
the size of the inputs, which stays in cache, so that memory does not grow with the number of parents.

Shapes: couplings and agreements [J, B, I], inputs [B, d, I] (I last, so that products run along memory),
weight [J, D, d * I], poses [J, B, D].
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Inputs = Float[Tensor, "batch child_dim children"]
Weight = Float[Tensor, "parents dim child_dim*children"]
Couplings = Float[Tensor, "parents batch children"]  # agreements too
Poses = Float[Tensor, "parents batch dim"]  # weighted sums too


class WeightedSum(Function):
    """s_j = sum_i c_ij W_ij u_i: couplings [J, B, I], inputs [B, d, I], weight [J, D, d * I] -> [J, B, D]."""

    @staticmethod
    def forward(ctx: Any, couplings: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(couplings, inputs, weight)
        sums = inputs.new_empty(weight.shape[0], inputs.shape[0], weight.shape[1])
        for parents, scratch, flat in _parent_blocks(inputs, weight):
            torch.mul(couplings[parents].unsqueeze(2), inputs, out=scratch)  # c_ij u_i
            torch.bmm(flat, weight[parents].transpose(1, 2), out=sums[parents])
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: D102
        couplings, inputs, weight = ctx.saved_tensors
        grad_sums = grad_sums.contiguous()
        grad_couplings, grad_weight = torch.empty_like(couplings), torch.empty_like(weight)
        grad_inputs = torch.zeros_like(inputs)
        for parents, scratch, flat in _parent_blocks(inputs, weight):
            coupling = couplings[parents].unsqueeze(2)
            torch.mul(coupling, inputs, out=scratch)
            torch.bmm(grad_sums[parents].transpose(1, 2), flat, out=grad_weight[parents])
            torch.bmm(grad_sums[parents], weight[parents], out=flat)  # W_ij^T ds_j
            _add_product(grad_inputs, coupling, scratch)
            torch.sum(scratch.mul_(inputs), dim=2, out=grad_couplings[parents])
        return grad_couplings, grad_inputs, grad_weight


class Agreement(Function):
    """<W_ij u_i, v_j>: poses [J, B, D], inputs [B, d, I], weight [J, D, d * I] -> [J, B, I]."""

    @staticmethod
    def forward(ctx: Any, poses: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:  # noqa: D102
        ctx.save_for_backward(poses, inputs, weight)
        agreements = inputs.new_empty(weight.shape[0], inputs.shape[0], inputs.shape[2])
        for parents, scratch, flat in _parent_blocks(inputs, weight):
            torch.bmm(poses[parents], weight[parents], out=flat)  # W_ij^T v_j
            torch.sum(scratch.mul_(inputs), dim=2, out=agreements[parents])
        return agreements

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_agreements: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: D102
        poses, inputs, weight = ctx.saved_tensors
        grad_poses, grad_weight = torch.empty_like(poses), torch.empty_like(weight)
        grad_inputs = torch.zeros_like(inputs)
        for parents, scratch, flat in _parent_blocks(inputs, weight):
            grad_agreement = grad_agreements[parents].unsqueeze(2)
            torch.mul(grad_agreement, inputs, out=scratch)
            torch.bmm(poses[parents].transpose(1, 2), flat, out=grad_weight[parents])
            torch.bmm(flat, weight[parents].transpose(1, 2), out=grad_poses[parents])
            torch.bmm(poses[parents], weight[parents], out=flat)
            _add_product(grad_inputs, grad_agreement, scratch)
        return grad_poses, grad_inputs, grad_weight


def weighted_sum(couplings: Couplings, inputs: Inputs, weight: Weight) -> Poses:
    """s_j = sum_i c_ij W_ij u_i: couplings [J, B, I], inputs [B, d, I], weight [J, D, d * I] -> [J, B, D]."""
    sums: Tensor = WeightedSum.apply(couplings, inputs, weight)
    return sums


def agreement(poses: Poses, inputs: Inputs, weight: Weight) -> Couplings:
    """<W_ij u_i, v_j>: poses [J, B, D], inputs [B, d, I], weight [J, D, d * I] -> [J, B, I]."""
    agreements: Tensor = Agreement.apply(poses.contiguous(), inputs, weight)
    return agreements


def _parent_blocks(inputs: Tensor, weight: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (parents, scratch [P, B, d, I], the same memory as [P, B, d * I]) until all parents had their turn.

    One parent at a time on a CPU, where the scratch tensor then stays in cache; all at once on a GPU, where
    one large launch beats many small ones.
    """
    num_parents = weight.shape[0]
    block = num_parents if inputs.is_cuda else 1
    scratch = inputs.new_empty(block, *inputs.shape)
    for first in range(0, num_parents, block):
        yield slice(first, first + block), scratch, scratch.flatten(2)


def _add_product(total: Tensor, factors: Tensor, scratch: Tensor) -> None:
    """Add sum over parents of factors [P, B, 1, I] x scratch [P, B, d, I] to total [B, d, I], in place."""
    if scratch.shape[0] == 1:
        total.addcmul_(factors[0], scratch[0])
    else:
        total.add_((factors * scratch).sum(dim=0))
