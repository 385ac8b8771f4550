"""One iteration of routing by agreement as one kernel of a GPU, votes in registers alone.

Logits add up agreements with the poses of each iteration, and agreement is linear in the poses, so that the logits of
iteration t are agreements with their sum: b_ij = <W_ij u_i, V_j> with V_j = v_j(1) + ... + v_j(t - 1). One iteration is
therefore

    s_j = sum_i c_ij W_ij u_i,  c_i = softmax over j of <W_ij u_i, V_j>,

which needs neither stored logits nor stored votes: a program makes the votes of one child for some samples, uses them
three times, and goes on to the next child. Inputs and weights are read once per iteration and once more in each of the
two kernels of its gradient. Sums over children are in parts, one for each program, which are added afterwards: no
atomic operations, so that the same inputs give the same bits.

Shapes: V and s [B, J, D], inputs u [B, I, d], weight W [I, J, D, d], couplings c [B, I, J], all float32.
"""

import logging
import os
from functools import cache
from typing import Any, no_type_check

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

try:
    import triton
    import triton.language as tl
except ImportError:  # torch for the CPU alone comes without it
    triton = None

log = logging.getLogger(__name__)

SAMPLES = 16  # of a program: the fewest rows of a matrix product in Triton
MOST_ELEMENTS = 1024  # J x D, both as powers of two: votes of a child that fit into registers
PROGRAMS = 512  # about so many at once, a few for each of a GPU's processors


def runs_here(inputs: Tensor, weight: Tensor) -> bool:
    """Tell whether the kernel can be taken: on a GPU that it compiles for, in float32, for layers that fit."""
    if triton is None or inputs.dtype != torch.float32 or weight.dtype != torch.float32:
        return False
    return _elements(weight) <= MOST_ELEMENTS and _compiles(inputs.get_device())


@cache
def _compiles(device: int) -> bool:
    """Try the kernels once, on a small layer; where they fail, say so and take the other form from then on."""
    try:
        generator = torch.Generator("cuda").manual_seed(0)
        shapes = ((2, 3, 4), (2, 5, 8), (5, 3, 4, 8))
        draws = [torch.randn(shape, device=device, generator=generator) for shape in shapes]
        with torch.enable_grad():
            total, inputs, weight = (draw.requires_grad_() for draw in draws)
            RoutedSum.apply(total, inputs, weight, False, True)[0].sum().backward()
        torch.cuda.synchronize(device)
    except Exception as error:  # of Triton, its compiler or the driver
        log.warning("the fused kernel of dynamic routing does not run here and is not used: %s", str(error)[:200])
        return False
    return True


def routed_sum(
    total: Tensor, inputs: Tensor, weight: Tensor, leaky: bool = False, constant: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the weighted sums s [B, J, D] and the couplings c [B, I, J] of one iteration.

    Args:
        total: sum of the poses of the iterations so far, V [B, J, D].
        inputs: u [B, I, d].
        weight: W [I, J, D, d].
        leaky: the softmax has one more output, of logit zero.
        constant: the couplings are constants to the gradient of s.
    """
    sums, couplings = RoutedSum.apply(total, inputs, weight, leaky, not constant)
    return sums, couplings


class RoutedSum(Function):
    """`routed_sum` with its gradient; `through`: the gradient of s goes through the couplings too."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, total: Tensor, inputs: Tensor, weight: Tensor, leaky: bool, through: bool
    ) -> tuple[Tensor, Tensor]:
        total, inputs, weight = total.contiguous(), inputs.contiguous(), weight.contiguous()
        ctx.save_for_backward(total, inputs, weight)
        ctx.leaky, ctx.through = leaky, through
        batch, children = inputs.shape[:2]
        parts, each = _parts(batch, children)
        sums = inputs.new_empty(parts, *total.shape)
        couplings = inputs.new_empty(batch, children, weight.shape[1])
        grid = (triton.cdiv(batch, SAMPLES), parts)
        _forward[grid](total, inputs, weight, sums, couplings, batch, children, each, **_sizes(weight, leaky))
        return sums.sum(dim=0), couplings

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_sums: Tensor, grad_couplings: Tensor) -> tuple[Tensor | None, ...]:  # noqa: D102
        total, inputs, weight = ctx.saved_tensors
        batch, children = inputs.shape[:2]
        parts, each = _parts(batch, children)
        grads = (grad_sums.contiguous(), grad_couplings.contiguous())
        sizes = _sizes(weight, ctx.leaky) | {"THROUGH": ctx.through}
        grad_totals = inputs.new_empty(parts, *total.shape)
        grad_inputs, grad_weight = torch.empty_like(inputs), torch.empty_like(weight)
        given = (total, inputs, weight, *grads)
        grid = (triton.cdiv(batch, SAMPLES), parts)
        _backward_inputs[grid](*given, grad_totals, grad_inputs, batch, children, each, **sizes)
        _backward_weight[(children,)](*given, grad_weight, batch, children, **sizes)
        return grad_totals.sum(dim=0), grad_inputs, grad_weight, None, None


def _parts(batch: int, children: int) -> tuple[int, int]:
    """Return into how many parts the children are divided, and how many are in each."""
    parts = max(1, min(children, PROGRAMS // triton.cdiv(batch, SAMPLES)))
    each = triton.cdiv(children, parts)
    return triton.cdiv(children, each), each


def _elements(weight: Tensor) -> int:
    return int(triton.next_power_of_2(weight.shape[1])) * int(triton.next_power_of_2(weight.shape[2]))


def _sizes(weight: Tensor, leaky: bool) -> dict[str, Any]:
    """Return the sizes that kernels are compiled for: parents, their elements and those of a child, padded."""
    _, parents, dim, child_dim = weight.shape
    sizes = {
        "J": parents, "D": dim, "K": child_dim, "JP": triton.next_power_of_2(parents),
        "DP": triton.next_power_of_2(dim), "KP": max(16, triton.next_power_of_2(child_dim)), "BP": SAMPLES,
        "LEAKY": leaky,
    }  # fmt: skip
    return sizes if os.environ.get("TRITON_INTERPRET") else {**sizes, "num_warps": 4 if _elements(weight) <= 256 else 8}


if triton is not None:

    @triton.jit
    @no_type_check
    def _load_parents(at, samples, batch, J: tl.constexpr, D: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr):
        """Load [B, J, D] of some samples -> [BP, JP, DP], zeros where there is nothing."""
        parent, element = tl.arange(0, JP)[None, :, None], tl.arange(0, DP)[None, None, :]
        there = (samples < batch)[:, None, None] & (parent < J) & (element < D)
        return tl.load(at + samples[:, None, None] * J * D + parent * D + element, mask=there, other=0.0)

    @triton.jit
    @no_type_check
    def _store_parents(
        at, values, samples, batch, J: tl.constexpr, D: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr
    ):
        """Store [BP, JP, DP] of some samples to [B, J, D]."""
        parent, element = tl.arange(0, JP)[None, :, None], tl.arange(0, DP)[None, None, :]
        there = (samples < batch)[:, None, None] & (parent < J) & (element < D)
        tl.store(at + samples[:, None, None] * J * D + parent * D + element, values, mask=there)

    @triton.jit
    @no_type_check
    def _load_child(inputs, child, samples, batch, children, K: tl.constexpr, KP: tl.constexpr):
        """Load u_i of some samples -> [BP, KP]."""
        k = tl.arange(0, KP)[None, :]
        there = (samples < batch)[:, None] & (k < K)
        return tl.load(inputs + samples[:, None] * children * K + child * K + k, mask=there, other=0.0)

    @triton.jit
    @no_type_check
    def _weight_offsets(
        child, J: tl.constexpr, D: tl.constexpr, K: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr, KP: tl.constexpr
    ):
        """Return the places of W_i as [KP, JP * DP], and which of them there are."""
        k, n = tl.arange(0, KP)[:, None], tl.arange(0, JP * DP)[None, :]
        parent, element = n // DP, n % DP
        there = (k < K) & (parent < J) & (element < D)
        return child.to(tl.int64) * J * D * K + parent * D * K + element * K + k, there

    @triton.jit
    @no_type_check
    def _shares(votes, total, J: tl.constexpr, JP: tl.constexpr, LEAKY: tl.constexpr):
        """Votes and V, [BP, JP, DP] -> couplings [BP, JP]: softmax over the parents of their agreement."""
        logits = tl.sum(votes * total, axis=2)
        logits = tl.where(tl.arange(0, JP)[None, :] < J, logits, float("-inf"))
        highest = tl.max(logits, axis=1)
        if LEAKY:
            highest = tl.maximum(highest, 0.0)
        shares = tl.exp(logits - highest[:, None])
        norm = tl.sum(shares, axis=1)
        if LEAKY:
            norm += tl.exp(-highest)
        return shares / norm[:, None]

    @triton.jit
    @no_type_check
    def _couplings_at(couplings, child, samples, batch, children, J: tl.constexpr, JP: tl.constexpr):
        """Return the places of c_i of some samples, [BP, JP], and which of them there are."""
        parent = tl.arange(0, JP)[None, :]
        there = (samples < batch)[:, None] & (parent < J)
        return couplings + samples[:, None] * children * J + child * J + parent, there

    @triton.jit
    @no_type_check
    def _forward(
        total, inputs, weight, sums, couplings, batch, children, each,
        J: tl.constexpr, D: tl.constexpr, K: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr, KP: tl.constexpr,
        BP: tl.constexpr, LEAKY: tl.constexpr,
    ):  # fmt: skip
        """Sum over some children of their votes, weighted by the couplings, for BP samples."""
        samples, part = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1)
        so_far = _load_parents(total, samples, batch, J, D, JP, DP)  # V
        weighted = tl.zeros((BP, JP, DP), dtype=tl.float32)
        for child in range(part * each, min(children, (part + 1) * each)):
            u = _load_child(inputs, child, samples, batch, children, K, KP)
            places, there = _weight_offsets(tl.full((), 0, tl.int32) + child, J, D, K, JP, DP, KP)
            w = tl.load(weight + places, mask=there, other=0.0)
            votes = tl.reshape(tl.dot(u, w, input_precision="ieee"), (BP, JP, DP))
            shares = _shares(votes, so_far, J, JP, LEAKY)
            weighted += shares[:, :, None] * votes
            at, known = _couplings_at(couplings, child, samples, batch, children, J, JP)
            tl.store(at, shares, mask=known)
        _store_parents(sums + part * batch * J * D, weighted, samples, batch, J, D, JP, DP)

    @triton.jit
    @no_type_check
    def _gradients(
        u, w, so_far, grad, grad_shares,
        J: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr, BP: tl.constexpr, LEAKY: tl.constexpr,
        THROUGH: tl.constexpr,
    ):  # fmt: skip
        """Return the gradients of the votes and of V, [BP, JP, DP], of one child."""
        votes = tl.reshape(tl.dot(u, w, input_precision="ieee"), (BP, JP, DP))
        shares = _shares(votes, so_far, J, JP, LEAKY)
        if THROUGH:
            grad_shares += tl.sum(votes * grad, axis=2)
        grad_logits = shares * (grad_shares - tl.sum(shares * grad_shares, axis=1)[:, None])
        grad_votes = shares[:, :, None] * grad + grad_logits[:, :, None] * so_far
        return grad_votes, grad_logits[:, :, None] * votes

    @triton.jit
    @no_type_check
    def _backward_inputs(
        total, inputs, weight, grad_sums, grad_couplings, grad_totals, grad_inputs, batch, children, each,
        J: tl.constexpr, D: tl.constexpr, K: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr, KP: tl.constexpr,
        BP: tl.constexpr, LEAKY: tl.constexpr, THROUGH: tl.constexpr,
    ):  # fmt: skip
        """Gradients of u, and in parts of V, for BP samples and some children."""
        samples, part = tl.program_id(0) * BP + tl.arange(0, BP), tl.program_id(1)
        so_far = _load_parents(total, samples, batch, J, D, JP, DP)
        grad = _load_parents(grad_sums, samples, batch, J, D, JP, DP)
        grad_total = tl.zeros((BP, JP, DP), dtype=tl.float32)
        for child in range(part * each, min(children, (part + 1) * each)):
            u = _load_child(inputs, child, samples, batch, children, K, KP)
            places, there = _weight_offsets(tl.full((), 0, tl.int32) + child, J, D, K, JP, DP, KP)
            w = tl.load(weight + places, mask=there, other=0.0)
            at, known = _couplings_at(grad_couplings, child, samples, batch, children, J, JP)
            grad_shares = tl.load(at, mask=known, other=0.0)
            grad_votes, own = _gradients(u, w, so_far, grad, grad_shares, J, JP, DP, BP, LEAKY, THROUGH)
            grad_total += own
            grad_u = tl.dot(tl.reshape(grad_votes, (BP, JP * DP)), tl.trans(w), input_precision="ieee")
            k = tl.arange(0, KP)[None, :]
            there = (samples < batch)[:, None] & (k < K)
            tl.store(grad_inputs + samples[:, None] * children * K + child * K + k, grad_u, mask=there)
        _store_parents(grad_totals + part * batch * J * D, grad_total, samples, batch, J, D, JP, DP)

    @triton.jit
    @no_type_check
    def _backward_weight(
        total, inputs, weight, grad_sums, grad_couplings, grad_weight, batch, children,
        J: tl.constexpr, D: tl.constexpr, K: tl.constexpr, JP: tl.constexpr, DP: tl.constexpr, KP: tl.constexpr,
        BP: tl.constexpr, LEAKY: tl.constexpr, THROUGH: tl.constexpr,
    ):  # fmt: skip
        """Gradient of W_i of one child, over all samples."""
        child = tl.program_id(0)
        places, there = _weight_offsets(child, J, D, K, JP, DP, KP)
        w = tl.load(weight + places, mask=there, other=0.0)
        found = tl.zeros((KP, JP * DP), dtype=tl.float32)
        for first in range(0, batch, BP):
            samples = first + tl.arange(0, BP)
            u = _load_child(inputs, child, samples, batch, children, K, KP)
            so_far = _load_parents(total, samples, batch, J, D, JP, DP)
            grad = _load_parents(grad_sums, samples, batch, J, D, JP, DP)
            at, known = _couplings_at(grad_couplings, child, samples, batch, children, J, JP)
            grad_shares = tl.load(at, mask=known, other=0.0)
            grad_votes, _ = _gradients(u, w, so_far, grad, grad_shares, J, JP, DP, BP, LEAKY, THROUGH)
            found += tl.dot(tl.trans(u), tl.reshape(grad_votes, (BP, JP * DP)), input_precision="ieee")
        tl.store(grad_weight + places, found, mask=there)
