"""One iteration of EM routing as kernels of a GPU, votes made in registers from 4x4 poses and 4x4 transforms.

One iteration is an E-step from the Gaussians of the iteration before it, and the sums of the M-step:

    l_nj = g_j - sum_h precision_jh (V_njh - mean_jh)^2,  R = exp(l - log-sum-exp of l over what competes),
    w_nj = R_nj a_n,  mass_j = sum_n w_nj,  m_j = sum_n w_nj V_nj / (mass_j + EPSILON),
    s_j = sum_n w_nj (V_nj - m_j)^2.

Neither votes nor l, R and w are stored, which are [B, P, N, J] and more: each kernel makes them again. Stored are the
log-sum-exps, and on the way back one sum for each of them. A program has all parents of a few rows or samples, and goes
through children; sums over children lie within one program or are in parts that are added afterwards: no atomic
operations, so that the same inputs give the same bits. Squares are taken of deviations, as in `moments`.

Shapes: B batch, C child positions, T child types, P parent positions, KK places in the kernel, N = KK * T, J parents,
H = 16 elements of a pose; all float32. A fully connected layer has one parent position, which sees all places.
"""

import logging
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

    from capsbench.routing.kernels import em_programs as programs
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
    """Of the parents of each row, as the iteration before found them: heights g, means and precisions (half of 1/v)."""

    heights: Rows
    means: RowPoses
    precisions: RowPoses


class Sums(NamedTuple):
    """What the M-step is made of, and with `keep` the shares R, else an empty tensor."""

    mass: Rows
    means: RowPoses
    squares: RowPoses
    shares: Tensor  # [B * P, N, J]


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
        generator = torch.Generator("cuda").manual_seed(0)
        shapes = ((1, 2, 2, 16), (1, 2, 2), (4, 3, 16))
        draws = [torch.rand(shape, device=device, generator=generator) for shape in shapes]
        with torch.enable_grad():
            children = Children(*(draw.requires_grad_() for draw in draws))
            for over_types in (False, True):
                windows = Windows.of(torch.tensor([[0, 1]]), 2, over_types).to(device)
                first = assigned_sums(children, None, windows)
                gaussians = Gaussians(first.mass, first.means, first.squares)
                torch.cat([x.flatten() for x in assigned_sums(children, gaussians, windows)]).sum().backward()
        torch.cuda.synchronize(device)
    except Exception as error:  # of Triton, its compiler or the driver
        log.warning("the fused kernels of EM routing do not run here and are not used: %s", str(error)[:200])
        return False
    return True


def assigned_sums(children: Children, gaussians: Gaussians | None, windows: Windows, keep: bool = False) -> Sums:
    """Return the sums of one iteration, rows in the order sample, position.

    Args:
        children: what votes are made of.
        gaussians: those of the iteration before; None at the first one, whose shares are `windows.start` / J.
        windows: which children each position sees.
        keep: return the shares R [B * P, N, J] too, with a gradient of their own.
    """
    heights, means, precisions = (None, None, None) if gaussians is None else gaussians
    return Sums(*AssignedSums.apply(*children, heights, means, precisions, windows, keep))


@dataclass
class _Layer:
    """The sizes of a layer, and how its programs are laid out."""

    batch: int
    types: int
    parents: int
    maps: int
    windows: Windows

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

    def constants(self, offsets: bool, **more: Any) -> dict[str, Any]:
        """Return what kernels are compiled for."""
        found = {
            "J": self.parents, "JP": triton.next_power_of_2(self.parents), "BX": self.at_once,
            "EACH": not self.windows.over_types, "SHARED": self.maps != self.children, "OFFSETS": offsets,
            **more,
        }  # fmt: skip
        return found if os.environ.get("TRITON_INTERPRET") else {**found, "num_warps": 4}

    def group_grid(self) -> tuple[tuple[int, int, int], int]:
        """Return the grid of a kernel by groups, and how many types a program has."""
        samples = -(-self.batch // self.at_once)
        each = _each(self.types, PROGRAMS // (self.windows.number * samples))
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


def _run(kernel: str, grid: tuple[int, ...], *operands: Any, **constants: Any) -> None:
    """Run a kernel, or tell of it where launches are counted."""
    count = counts_launches()
    if count is not None:
        count(kernel, [operand for operand in operands if isinstance(operand, Tensor)])
    else:
        getattr(programs, kernel)[grid](*operands, **constants)


class AssignedSums(Function):
    """`assigned_sums` with its gradient."""

    @staticmethod
    def forward(  # noqa: D102, PLR0913
        ctx: Any,
        poses: Tensor,
        activations: Tensor,
        maps: Tensor,
        offsets: Tensor | None,
        heights: Tensor | None,
        means: Tensor | None,
        precisions: Tensor | None,
        windows: Windows,
        keep: bool,
    ) -> tuple[Tensor, ...]:
        poses, activations, maps = poses.contiguous(), activations.contiguous(), maps.contiguous()
        layer = _Layer(len(poses), poses.shape[2], maps.shape[1], len(maps), windows)
        inputs = (maps, maps if offsets is None else offsets)
        norms = mass = poses.new_empty(layer.rows, layer.parents)
        found, squares = (poses.new_empty(*mass.shape, POSE_SIZE) for _ in range(2))
        shares = poses.new_empty((layer.rows, layer.children, layer.parents) if keep else (0,))
        before: tuple[Tensor, ...] = (poses, poses, poses)  # never read
        if heights is not None and means is not None and precisions is not None:
            before = (heights.contiguous(), means.contiguous(), precisions.contiguous())
            norms, (grid, each) = layer.norms(poses), layer.group_grid()
            _run(
                "log_norms", grid,
                poses, *inputs, *before, windows.seen, windows.group_entries, windows.group_counts, norms,
                layer.batch, each, windows.group_entries.shape[1], *layer.sizes(), **layer.constants(offsets is not None),
            )  # fmt: skip
        _run(
            "moments", (layer.blocks,),
            poses, activations, *inputs, *before, norms, windows.start, windows.seen, windows.groups,
            mass, found, squares, shares, layer.rows, *layer.sizes(),
            **layer.constants(offsets is not None, FIRST=heights is None, STORE=keep, EPSILON=EPSILON),
        )  # fmt: skip
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(poses, activations, *inputs, *before, norms, mass, found)
        ctx.layer, ctx.offsets, ctx.first = layer, offsets is not None, heights is None
        return mass, found, squares, shares

    @staticmethod
    @once_differentiable
    def backward(  # noqa: D102
        ctx: Any, grad_mass: Tensor | None, grad_means: Tensor | None, grad_squares: Tensor | None, given: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        poses, activations, maps, offsets, heights, means, precisions, norms, mass, found = ctx.saved_tensors
        layer, windows, first = ctx.layer, ctx.layer.windows, ctx.first
        grad_mass = torch.zeros_like(mass) if grad_mass is None else grad_mass.contiguous()
        grad_means = torch.zeros_like(found) if grad_means is None else grad_means
        scale = torch.zeros_like(found) if grad_squares is None else grad_squares.contiguous()
        # s moves with m only through sum_n w (V - m) = EPSILON m
        shift = ((grad_means - 2 * EPSILON * found * scale) / (mass + EPSILON).unsqueeze(2)).contiguous()
        shares = None if first or given is None or not given.numel() else given.contiguous()
        inputs, before = (poses, activations, maps, offsets), (heights, means, precisions)
        slopes, grad_shares = norms, mass if shares is None else shares
        constants = layer.constants(ctx.offsets, GIVEN=shares is not None)
        if not first:
            slopes, (grid, each) = layer.norms(poses), layer.group_grid()
            _run(
                "group_gradients", grid,
                *inputs, *before, norms, found, shift, scale, grad_mass, grad_shares,
                windows.seen, windows.group_entries, windows.group_counts, slopes,
                layer.batch, each, windows.group_entries.shape[1], *layer.sizes(), **constants,
            )  # fmt: skip
        constants["FIRST"] = first
        all_of_them = (
            *inputs, *before, norms, windows.start, windows.seen, windows.groups,
            found, shift, scale, grad_mass, slopes, grad_shares,
        )  # fmt: skip
        grads_before = [poses.new_empty(0) if first else torch.empty_like(x) for x in before]
        row_poses = poses.new_empty(layer.rows, layer.children, POSE_SIZE)
        row_activations = poses.new_empty(layer.rows, layer.children)
        _run(
            "parent_gradients", (layer.blocks,),
            *all_of_them, *grads_before, row_poses, row_activations, layer.rows, *layer.sizes(), **constants,
        )  # fmt: skip
        (grid, each) = layer.map_grid()
        grad_maps = poses.new_empty(grid[1], layer.children, *maps.shape[1:])
        _run("map_gradients", grid, *all_of_them, grad_maps, each, layer.rows, *layer.sizes(), **constants)
        return (
            _folded(row_poses, layer).view_as(poses),
            _folded(row_activations, layer).view_as(activations),
            grad_maps.view(-1, *maps.shape).sum(dim=0),  # over parts, and places that share maps
            None,
            *((None, None, None) if first else grads_before),
            None,
            None,
        )


def _folded(values: Tensor, layer: _Layer) -> Tensor:
    """Sum values of entries [B * P, KK * T, ...] over those of each child position -> [B, C, numbers of a position]."""
    windows, width = layer.windows, values[0].numel() // layer.windows.places
    folded = values.new_empty(layer.batch, windows.cells, width)
    block = min(FOLDED, int(triton.next_power_of_2(width)))
    _run(
        "fold", (windows.cells, layer.batch, -(-width // block)),
        values, folded, windows.cell_entries, windows.cell_counts, width, windows.cell_entries.shape[1],
        windows.positions * windows.places, windows.cells, BLOCK=block,
    )  # fmt: skip
    return folded
