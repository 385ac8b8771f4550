"""Routing by agreement of Sabour, Frosst, Hinton 2017 (S17), Procedure 1, in two forms.

Symbols of the paper: i an input capsule, j an output capsule, u_i the input's pose, W_ij the transform,
û_j|i = W_ij u_i the vote, b_ij the logit, c_ij the coupling, s_j the weighted sum, v_j the output's pose.
Shapes: B batch, I inputs, J outputs, d input size, D output size.
"""

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.registry import ROUTINGS, Iterations, Said
from capsbench.routing.contract import (
    Activations,
    LayerSize,
    Poses,
    Routed,
    Routing,
    Weight,
    capsule_lengths,
    check_iterations,
    squash,
)
from capsbench.routing.kernels.forms import takes_plain_forms
from capsbench.routing.kernels.linear_votes import agreement, weighted_sum


@ROUTINGS.register("dynamic", loss="margin")
class DynamicRouting(Routing):
    """Routing by agreement, votes never stored.

    detach: couplings stay outside the gradient, as in much public code. bias: learn a bias [J, D], added before each
    squash, as in the authors' code (0.1 at the start); the paper has none. leaky: each child has one parent more, with
    a logit of zero, which takes what fits nowhere (S17, section 7: the "none of the above" category on CIFAR-10).
    """

    def __init__(
        self,
        size: LayerSize,
        *,
        iterations: Annotated[Iterations, Said("3", "3", "S17, section 4")] = 3,
        detach: Annotated[bool, Said("silent", "false", "S17; much public code: true")] = False,
        bias: Annotated[bool, Said("none", "a bias per class capsule, 0.1 at the start", "S17")] = False,
        leaky: Annotated[
            bool, Said("on CIFAR-10 alone", "off, a flag", "S17, section 7; one parent more: none of the above")
        ] = False,
    ):
        super().__init__()
        self.iterations, self.detach, self.leaky = iterations, detach, leaky
        self.bias = nn.Parameter(torch.full((size.parents, size.parent_dim), 0.1)) if bias else None

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `linear_dynamic_routing`; the activations of the children are the lengths of their poses."""
        poses, couplings = linear_dynamic_routing_with_couplings(
            poses, weight, self.iterations, self.detach, self.bias, self.leaky
        )
        return Routed(poses, capsule_lengths(poses), couplings)


def dynamic_routing(
    votes: Float[Tensor, "batch children parents dim"],
    iterations: int = 3,
    detach: bool = False,
    bias: Float[Tensor, "parents dim"] | None = None,
    leaky: bool = False,
) -> tuple[Float[Tensor, "batch parents dim"], Float[Tensor, "batch children parents"]]:
    """Route stored votes: the procedure of the paper, and the reference for the form without votes.

    votes [B, I, J, D], bias [J, D] or none -> (poses [B, J, D], couplings [B, I, J] of the last iteration).
    One iteration is the uniform average over outputs, c = 1/J. With `detach`, all but the last weighted sum
    leave the gradient: same values, another gradient (the same at one iteration). With `leaky` the softmax has one more
    output, whose logit is zero and which is not given back. Source: S17, Procedure 1.
    Raises ValueError where iterations < 1.
    """
    check_iterations(iterations)
    routed_votes = votes.detach() if detach else votes
    routed_bias = bias.detach() if detach and bias is not None else bias
    logits = votes.new_zeros(votes.shape[:3])  # b [B, I, J], one for each sample
    for _ in range(iterations - 1):
        couplings = _shares(logits, 2, leaky)  # c [B, I, J]: each input shares itself out over the outputs
        poses = squash(_weighted_sum(couplings, routed_votes, routed_bias))  # v [B, J, D]
        logits = logits + torch.einsum("bijd,bjd->bij", routed_votes, poses)  # the agreement û · v
    couplings = _shares(logits, 2, leaky)
    return squash(_weighted_sum(couplings, votes, bias)), couplings


def linear_dynamic_routing(
    inputs: Float[Tensor, "batch children child_dim"],
    weight: Float[Tensor, "children parents dim child_dim"],
    iterations: int = 3,
    detach: bool = False,
    bias: Float[Tensor, "parents dim"] | None = None,
) -> Float[Tensor, "batch parents dim"]:
    """Route inputs [B, I, d] through weight [I, J, D, d] -> poses [B, J, D], votes never stored.

    Equal to `dynamic_routing` on votes W_ij u_i, in value and in gradient: both the weighted sum over the votes
    and the agreement with them are sums that `linear_votes` takes without the votes, so that memory grows with
    [B, I, d] and [B, I, J] where stored votes take [B, I, J, D] several times over.
    Raises ValueError where iterations < 1.
    """
    return linear_dynamic_routing_with_couplings(inputs, weight, iterations, detach, bias)[0]


def linear_dynamic_routing_with_couplings(
    inputs: Float[Tensor, "batch children child_dim"],
    weight: Float[Tensor, "children parents dim child_dim"],
    iterations: int = 3,
    detach: bool = False,
    bias: Float[Tensor, "parents dim"] | None = None,
    leaky: bool = False,
) -> tuple[Float[Tensor, "batch parents dim"], Float[Tensor, "batch children parents"]]:
    """The same as `linear_dynamic_routing`, with the last couplings [B, I, J] beside the poses [B, J, D]."""
    check_iterations(iterations)
    if _has_kernel(inputs, weight):
        return _fused_dynamic_routing(inputs, weight, iterations, detach, bias, leaky)
    num_outputs, out_dim = weight.shape[1:3]
    inputs = inputs.transpose(1, 2).contiguous()  # u [B, d, I]
    weight = weight.permute(1, 2, 3, 0).reshape(num_outputs, out_dim, -1)  # W_j [J, D, d * I]
    bias = None if bias is None else bias.unsqueeze(1)  # [J, 1, D]

    couplings: Tensor | None = None  # c [J, B, I]; none means one share of `alike` for all
    alike = num_outputs + leaky
    if iterations > 1:
        # detach: the couplings are constants, so the iterations that find them stay out of the graph
        with torch.set_grad_enabled(torch.is_grad_enabled() and not detach):
            logits = agreement(squash(_linear_sum(alike, inputs, weight, bias)), inputs, weight)  # b [J, B, I]
            for _ in range(iterations - 2):
                poses = squash(_linear_sum(_shares(logits, 0, leaky), inputs, weight, bias))  # v [J, B, D]
                logits = logits + agreement(poses, inputs, weight)
            couplings = _shares(logits, 0, leaky)
    last = alike if couplings is None else couplings
    poses = squash(_linear_sum(last, inputs, weight, bias)).transpose(0, 1)  # [B, J, D]
    if couplings is None:
        return poses, inputs.new_full((inputs.shape[0], inputs.shape[2], num_outputs), 1 / alike)
    return poses, couplings.permute(1, 2, 0)


def _has_kernel(inputs: Tensor, weight: Tensor) -> bool:
    """Tell whether a GPU takes an iteration as one kernel."""
    if not inputs.is_cuda or takes_plain_forms():
        return False
    from capsbench.routing.kernels.fused import runs_here  # imports Triton

    return runs_here(inputs, weight)


def _fused_dynamic_routing(
    inputs: Tensor, weight: Tensor, iterations: int, detach: bool, bias: Tensor | None, leaky: bool
) -> tuple[Tensor, Tensor]:
    """`linear_dynamic_routing_with_couplings`, each iteration after the first one a kernel."""
    from capsbench.routing.kernels.fused import routed_sum

    alike = weight.shape[1] + leaky
    # of the poses so far, [B, J, D]: agreement with it is what the logits of the next iteration are
    total = inputs.new_zeros(inputs.shape[0], *weight.shape[1:3])
    for iteration in range(iterations):
        in_graph = iteration == iterations - 1 or not detach
        with torch.set_grad_enabled(torch.is_grad_enabled() and in_graph):
            if iteration == 0:
                sums = torch.einsum("bid,ijed->bje", inputs, weight) / alike  # s [B, J, D]
                couplings = inputs.new_full((*inputs.shape[:2], weight.shape[1]), 1 / alike)
            else:
                sums, couplings = routed_sum(total, inputs, weight, leaky, constant=detach)
            poses = squash(sums if bias is None else sums + bias)
            total = total + poses
    return poses, couplings


def _shares(logits: Tensor, dim: int, leaky: bool) -> Tensor:
    """Softmax over the outputs along `dim`; leaky: over them and one more, of logit zero, which is left out."""
    if not leaky:
        return logits.softmax(dim=dim)
    with_leak = torch.cat([logits, torch.zeros_like(logits.narrow(dim, 0, 1))], dim=dim)
    return with_leak.softmax(dim=dim).narrow(dim, 0, logits.shape[dim])


def _linear_sum(couplings: Tensor | int, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if isinstance(couplings, int):  # one share of so many for all: one matrix product for all parents together
        sums = inputs.flatten(1) @ weight.flatten(0, 1).T / couplings  # [B, J * D]
        sums = sums.unflatten(1, weight.shape[:2]).transpose(0, 1)  # s [J, B, D]
    else:
        sums = weighted_sum(couplings, inputs, weight)
    return sums if bias is None else sums + bias


def _weighted_sum(couplings: Tensor, votes: Tensor, bias: Tensor | None) -> Tensor:
    sums = torch.einsum("bij,bijd->bjd", couplings, votes)  # s [B, J, D]
    return sums if bias is None else sums + bias
