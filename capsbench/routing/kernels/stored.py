"""All votes, in the order in which routing by Gaussians goes through them: children last.

vote_ij = W_ij u_i. A matrix product gives votes with parents last, and turning 47 MB of them around, forwards and back,
takes longer than making them. So on a CPU each sample's votes are summed up over the elements of the children's poses,
by products along memory.

Shapes: poses u [B, I, d], weight W [I, J, D, d], votes [B, J, D, I].
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from capsbench.routing.kernels.forms import takes_plain_forms


def votes_children_last(
    poses: Float[Tensor, "batch children child_dim"], weight: Float[Tensor, "children parents dim child_dim"]
) -> Float[Tensor, "batch parents dim children"]:
    """Return W_ij u_i: poses [B, I, d], weight [I, J, D, d] -> [B, J, D, I]."""
    if takes_plain_forms() or poses.is_cuda or poses.dtype not in (torch.float32, torch.float64):
        return torch.einsum("ijkd,bid->bjki", weight, poses)
    votes: Tensor = _Votes.apply(poses, weight)
    return votes


class _Votes(Function):
    @staticmethod
    def forward(ctx: Any, poses: Tensor, weight: Tensor) -> Tensor:
        poses, weight = poses.transpose(1, 2).contiguous(), weight.permute(3, 1, 2, 0).contiguous()
        ctx.save_for_backward(poses, weight)  # [B, d, I], [d, J, D, I]
        votes = poses.new_empty(len(poses), *weight.shape[1:])
        for sample, own in zip(poses, votes, strict=True):
            torch.mul(weight[0], sample[0], out=own)
            for element in range(1, len(weight)):
                own.addcmul_(weight[element], sample[element])
        return votes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_votes: Tensor) -> tuple[Tensor, Tensor]:
        poses, weight = ctx.saved_tensors
        grad_poses, grad_weight = torch.empty_like(poses), torch.zeros_like(weight)
        scratch = torch.empty_like(weight[0])
        for sample, grad, grad_sample in zip(poses, grad_votes, grad_poses, strict=True):
            for element in range(len(weight)):
                torch.sum(torch.mul(weight[element], grad, out=scratch), dim=(0, 1), out=grad_sample[element])
                grad_weight[element].addcmul_(grad, sample[element])
        return grad_poses.transpose(1, 2), grad_weight.permute(3, 1, 2, 0)
