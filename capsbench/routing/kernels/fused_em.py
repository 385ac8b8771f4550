"""One iteration of EM routing as kernels of a GPU, votes made in registers from 4x4 poses and 4x4 transforms.

One iteration is an E-step from the Gaussians of the iteration before it, and an M-step, a kernel a line:

    l_nj = g_j - sum_h precision_jh (V_njh - mean_jh)^2, log-sum-exps of l over what competes,
    R = exp(l - these), w_nj = R_nj a_n, mass_j = sum_n w_nj, m_j = sum_n w_nj V_nj / (mass_j + EPSILON),
    s_j = sum_n w_nj (V_nj - m_j)^2,
    from these the new means, precisions (half of one over the variances), logits of the activations, heights g_j.

Neither votes nor l, R and w are stored, which are [B, P, N, J] and more: each kernel makes them again. Stored are the
log-sum-exps, and on the way back one sum for each of them. A program has all parents of a few rows or samples, and goes
through children; sums over children lie within one program or are in parts that are added afterwards: no atomic
operations, so that the same inputs give the same bits. Squares are taken of deviations, as in `moments`.

Shapes: B batch, C child positions, T child types, P parent positions, KK places in the kernel, N = KK * T, J parents,
H = 16 elements of a pose; all float32. A fully connected layer has one parent position, which sees all places.
"""

import logging
import math
import os
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from capsbench.routing.kernels.forms import counts_launches
from capsbench.routing.kernels.moments import EPSILON
from capsbench.routing.kernels.windows import Windows

try:
    import triton

    from capsbench.routing.kernels import em_gradients, em_sums
except ImportError:  # torch for the CPU alone comes without it
    triton = None

log = logging.getLogger(__name__)

POSE_SIZE = 16
MOST_PARENTS = 64  # of one position: a tile of all of them fits into registers
TILE = 64  # pairs of a row and a parent in a program
PROGRAMS = 1024  # about so many at once, a few for each of a GPU's processors
FOLDED = 1024  # numbers that one program folds

Rows = Float[Tensor, "rows parents"]
RowPoses = Float[Tensor, "rows parents 16"]


class Children(NamedTuple):
    """What votes are made of.

    poses [B, C, T, 16], activations [B, C, T]; maps [N, J, 16], or [T, J, 16] where places share them: 4x4 transforms,
    row by row; offsets [KK, 16] are added to the votes of each place.
    """

    poses: Float[Tensor, "batch cells types 16"]
    activations: Float[Tensor, "batch cells types"]
    maps: Float[Tensor, "maps parents 16"]
    offsets: Float[Tensor, "places 16"] | None = None


class Gaussians(NamedTuple):
    """Of the parents of each row: means and precisions, half of one over the variances.

    heights: log of the activation and of one over the root of the variances' product: the log-likelihood of a vote at
    the mean, a constant off.
    """

    means: RowPoses
    precisions: RowPoses
    heights: Rows


class Step(NamedTuple):
    """The numbers of one iteration: the damping that acts in it, variance floor and inverse temperature."""

    damping: float
    variance_floor: float
    temperature: float


def runs_here(poses: Tensor, transforms: Tensor) -> bool:
    """Tell whether the kernels can be taken: on a GPU that they compile for, in float32, for 4x4 transforms [N, J].

    There are kernels for up to MOST_PARENTS parents at a position.
    """
    if triton is None or poses.dtype != torch.float32 or transforms.dtype != torch.float32:
        return False
    if transforms.shape[2:] != (4, 4) or transforms.shape[1] > MOST_PARENTS:
        return False
    return _compiles(poses.get_device())


@cache
def _compiles(device: int) -> bool:
    """Try the kernels once, on a small layer; where they fail, say so and take the other form from then on."""
    try:
        _route_a_small_layer(device)
        torch.cuda.synchronize(device)
    except Exception as error:  # of Triton, its compiler or the driver
        log.warning("the fused kernels of EM routing do not run here and are not used: %s", str(error)[:200])
        return False
    return True


@torch.enable_grad()
def _route_a_small_layer(device: int | str) -> None:
    """Run every kernel, on two positions that see two cells of two types each, and three parents."""
    shapes = ((1, 2, 2, 16), (1, 2, 2), (4, 3, 16), (3,), (3,))
    given = [torch.linspace(0.1, 1, math.prod(shape), device=device).view(shape).requires_grad_() for shape in shapes]
    children, betas, step = Children(*given[:3]), (given[3], given[4]), Step(0.1, 1e-3, 1.0)
    for over_types in (False, True):
        windows = Windows.of(torch.tensor([[0, 1], [1, 0]]), 2, over_types).to(device)
        gaussians, _, _ = iterate(children, None, betas, windows, step)
        _, logits, shares = iterate(children, gaussians, betas, windows, step, keep=True)
        torch.autograd.grad(logits.sum() + shares.square().sum(), given)


def iterate(
    children: Children,
    gaussians: Gaussians | None,
    betas: tuple[Float[Tensor, " parents"], Float[Tensor, " parents"]],
    windows: Windows,
    step: Step,
    keep: bool = False,
) -> tuple[Gaussians, Rows, Tensor]:
    """Return the Gaussians of one iteration and the logits of the activations, rows in the order sample, position.

    Args:
        children: what votes are made of.
        gaussians: those of the iteration before; None at the first one, whose shares are `windows.start` / J.
        betas: beta_u and beta_a.
        windows: which children each position sees.
        step: the numbers of this iteration.
        keep: return the shares R [B * P, N, J] too, in place of an empty tensor.
    """
    before = (None, None, None) if gaussians is None else gaussians
    means, precisions, heights, logits, shares = Iteration.apply(*children, *betas, *before, windows, step, keep)
    return Gaussians(means, precisions, heights), logits, shares


@dataclass
class _Layer:
    """The sizes of a layer, and how its programs are laid out."""

    batch: int
    types: int
    parents: int
    maps: int
    windows: Windows
    step: Step

    @property
    def rows(self) -> int:
        return self.batch * self.windows.positions

    @property
    def children(self) -> int:
        return self.windows.places * self.types

    @property
    def at_once(self) -> int:
        """Rows of a program."""
        return max(1, TILE // int(triton.next_power_of_2(self.parents)))

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.at_once)

    def sizes(self) -> tuple[int, ...]:
        """Return P, KK, T, C, Q."""
        windows = self.windows
        return windows.positions, windows.places, self.types, windows.cells, windows.number

    def tile(self) -> dict[str, Any]:
        """Return the sizes of a program's tile, which kernels are compiled for."""
        sizes = {"J": self.parents, "JP": triton.next_power_of_2(self.parents), "BX": self.at_once}
        return sizes if os.environ.get("TRITON_INTERPRET") else {**sizes, "num_warps": 4}

    def constants(self, offsets: Tensor | None) -> dict[str, Any]:
        """Return what kernels with votes are compiled for."""
        flags = {"EACH": not self.windows.over_types, "SHARED": self.maps != self.children}
        return {**self.tile(), **flags, "OFFSETS": offsets is not None}

    def group_grid(self) -> tuple[tuple[int, int, int], int]:
        """Return the grid of a kernel by groups, and how many types a program has."""
        samples = -(-self.batch // self.at_once)
        each = _each(self.types, PROGRAMS // max(1, self.windows.number * samples))
        return (self.windows.number, samples, -(-self.types // each)), each

    def map_grid(self) -> tuple[tuple[int, int], int]:
        """Return the grid of a kernel by children, and how many blocks of rows a program has."""
        each = _each(self.blocks, PROGRAMS // self.children)
        return (self.children, -(-self.blocks // each)), each

    def norms(self, like: Tensor) -> Tensor:
        """Return room for a number of each group, type and, where they compete alone, parent type."""
        shape = (self.batch, self.windows.number, self.types)
        return like.new_empty(shape if self.windows.over_types else (*shape, self.parents))


def _each(number: int, parts: int) -> int:
    """Return how many of `number` are in each of at most `parts` parts, of which there is at least one."""
    return -(-number // max(1, min(number, parts)))


def _run(kernel: Any, grid: tuple[int, ...], *operands: Any, **constants: Any) -> None:
    """Run a kernel, or tell of it where launches are counted."""
    count = counts_launches()
    if count is None:
        kernel[grid](*operands, **constants)
    else:
        count(kernel.fn.__name__, [operand for operand in operands if isinstance(operand, Tensor)])


class Iteration(Function):
    """`iterate` with its gradient."""

    @staticmethod
    def forward(  # noqa: D102, PLR0913
        ctx: Any,
        poses: Tensor,
        activations: Tensor,
        maps: Tensor,
        offsets: Tensor | None,
        beta_u: Tensor,
        beta_a: Tensor,
        means: Tensor | None,
        precisions: Tensor | None,
        heights: Tensor | None,
        windows: Windows,
        step: Step,
        keep: bool,
    ) -> tuple[Tensor, ...]:
        poses, activations, maps = poses.contiguous(), activations.contiguous(), maps.contiguous()
        layer = _Layer(len(poses), poses.shape[2], maps.shape[1], len(maps), windows, step)
        first, inputs = heights is None, (maps, maps if offsets is None else offsets)
        mass, new_heights, logits = (poses.new_empty(layer.rows, layer.parents) for _ in range(3))
        found, squares, new_means, new_precisions = (poses.new_empty(*mass.shape, POSE_SIZE) for _ in range(4))
        shares = poses.new_empty((layer.rows, layer.children, layer.parents) if keep else (0,))
        norms, before = mass, (mass, found, found)  # never read at the first iteration
        if heights is not None and means is not None and precisions is not None:
            before = (heights.contiguous(), means.contiguous(), precisions.contiguous())
            norms, (grid, each) = layer.norms(poses), layer.group_grid()
            _run(
                em_sums.log_norms, grid,
                poses, *inputs, *before, windows.seen, windows.group_entries, windows.group_counts, norms,
                layer.batch, each, windows.group_entries.shape[1], *layer.sizes(), **layer.constants(offsets),
            )  # fmt: skip
        _run(
            em_sums.moments, (layer.blocks,),
            poses, activations, *inputs, *before, norms, windows.start, windows.seen, windows.groups,
            mass, found, squares, shares, layer.rows, *layer.sizes(),
            **layer.constants(offsets), FIRST=first, STORE=keep, EPSILON=EPSILON,
        )  # fmt: skip
        beta_u, beta_a = beta_u.contiguous(), beta_a.contiguous()
        _run(
            em_sums.fit, (layer.blocks,),
            mass, found, squares, before[1], beta_u, beta_a, new_means, new_precisions, new_heights, logits,
            layer.rows, *step, **layer.tile(), FIRST=first, EPSILON=EPSILON,
        )  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(poses, activations, *inputs, *before, norms, mass, found, squares, beta_u, logits)
        ctx.layer, ctx.constants, ctx.first = layer, layer.constants(offsets), first
        return new_means, new_precisions, new_heights, logits, shares

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: D102
        *inputs, norms, mass, found, squares, beta_u, logits = ctx.saved_tensors
        layer, windows, first, constants = ctx.layer, ctx.layer.windows, ctx.first, ctx.constants
        maps, before = inputs[2], inputs[4:]  # heights, means, precisions

        grad_means, grad_precisions, grad_heights, grad_logits = (
            torch.zeros_like(like) if grad is None else grad.contiguous()
            for grad, like in zip(grads[:4], (found, found, mass, mass), strict=True)
        )
        grad_mass, shift, scale, of_logits = (torch.empty_like(x) for x in (mass, found, found, mass))
        of_before = mass if first else torch.empty_like(found)  # what damping keeps of the means before
        _run(
            em_gradients.fit_gradients, (layer.blocks,),
            mass, found, squares, before[1], beta_u, logits, grad_means, grad_precisions, grad_heights, grad_logits,
            grad_mass, shift, scale, of_before, of_logits, layer.rows, *layer.step,
            **layer.tile(), FIRST=first, EPSILON=EPSILON,
        )  # fmt: skip
        grad_beta_a = layer.step.temperature * of_logits
        grad_beta_u = -POSE_SIZE * (grad_beta_a * mass).sum(dim=0)

        shares = grads[4]
        constants = {**constants, "GIVEN": shares is not None and shares.numel() > 0 and not first}
        slopes, grad_shares = norms, shares.contiguous() if shares is not None and constants["GIVEN"] else mass
        if not first:
            slopes, (grid, each) = layer.norms(maps), layer.group_grid()
            _run(
                em_gradients.group_gradients, grid,
                *inputs, norms, found, shift, scale, grad_mass, grad_shares,
                windows.seen, windows.group_entries, windows.group_counts, slopes,
                layer.batch, each, windows.group_entries.shape[1], *layer.sizes(), **constants,
            )  # fmt: skip
        known = (
            *inputs, norms, windows.start, windows.seen, windows.groups,
            found, shift, scale, grad_mass, slopes, grad_shares,
        )  # fmt: skip
        of_heights, of_means, of_precisions = (mass, mass, mass) if first else map(torch.empty_like, before)
        row_poses = maps.new_empty(layer.rows, layer.children, POSE_SIZE)
        row_activations = maps.new_empty(layer.rows, layer.children)
        _run(
            em_gradients.parent_gradients, (layer.blocks,),
            *known, of_heights, of_means, of_precisions, row_poses, row_activations, layer.rows, *layer.sizes(),
            **constants, FIRST=first,
        )  # fmt: skip
        (grid, each) = layer.map_grid()
        grad_maps = maps.new_empty(grid[1], layer.children, *maps.shape[1:])
        _run(
            em_gradients.map_gradients,
            grid,
            *known,
            grad_maps,
            each,
            layer.rows,
            *layer.sizes(),
            **constants,
            FIRST=first,
        )
        return (
            _folded(row_poses, layer).view_as(inputs[0]),
            _folded(row_activations, layer).view_as(inputs[1]),
            grad_maps.view(-1, *maps.shape).sum(dim=0),  # over parts, and places that share maps
            None,
            grad_beta_u,
            grad_beta_a.sum(dim=0),
            *((None, None, None) if first else (of_means.add_(of_before), of_precisions, of_heights)),
            None,
            None,
            None,
        )


def _folded(values: Tensor, layer: _Layer) -> Tensor:
    """Sum values of entries [B * P, KK * T, ...] over those of each child position -> [B, C, numbers of a position]."""
    windows, width = layer.windows, values[0].numel() // layer.windows.places
    folded = values.new_empty(layer.batch, windows.cells, width)
    block = min(FOLDED, int(triton.next_power_of_2(width)))
    _run(
        em_gradients.fold, (windows.cells, layer.batch, -(-width // block)),
        values, folded, windows.cell_entries, windows.cell_counts, width, windows.cell_entries.shape[1],
        windows.positions * windows.places, windows.cells, BLOCK=block,
    )  # fmt: skip
    return folded
