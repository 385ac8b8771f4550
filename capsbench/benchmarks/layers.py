"""Routing layers as cases: every routing at one size, how three of them grow, and EM routing on a grid."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsbench.benchmarks.routings import CHILD_DIM, FORMS, PARENT_DIM, make_leaves, make_routings, route_once
from capsbench.benchmarks.turns import Case
from capsbench.models.matrix_capsnet import POSE_SIZE, ConvMatrixCaps
from capsbench.registry import ROUTINGS
from capsbench.routing import LayerSize, conv_em_routing
from capsbench.routing.kernels.forms import plain_forms

GROWING = ("dynamic", "em", "uniform")  # uniform: the votes alone, without agreement
AXES = ("inputs", "parents", "iterations", "batch")
# grid, stride and types of the convolutional capsules of H18, 32x32 images: 14x14 -> 6x6 -> 4x4
CONV_LAYERS = ((14, 2, 32), (6, 1, 32))
KERNEL = 3
VOTES_HELD = 6  # at once, in votes: what routing with stored votes takes at the most on the way forth and back


class RoutingSize(NamedTuple):
    """The sizes that the time of a routing layer grows with."""

    inputs: int
    parents: int
    iterations: int
    batch: int

    def __str__(self) -> str:
        return f"{self.inputs} x {self.parents}, iterations {self.iterations}, batch {self.batch}"

    @property
    def operations(self) -> float:
        """Return those of the products that every routing has: votes, and the gradients of poses and weight."""
        return 6.0 * self.batch * self.inputs * self.parents * CHILD_DIM * PARENT_DIM

    @property
    def moved(self) -> float:
        """Return the bytes that no routing avoids.

        Poses, activations and weight are read on the way forth and on the way back, and their gradients are written.
        """
        children = self.batch * self.inputs * (CHILD_DIM + 1)
        return 3 * 4.0 * (children + self.inputs * self.parents * CHILD_DIM * PARENT_DIM)

    @property
    def least_needed(self) -> float:
        """Return bytes of memory that routing with stored votes may take."""
        return VOTES_HELD * 4.0 * self.batch * self.inputs * self.parents * PARENT_DIM


def routing_cases(size: RoutingSize, device: str) -> Iterator[Case]:
    """Yield every routing in both forms, with its default options; of the size its own iterations do not count."""
    layer = LayerSize(size.inputs, CHILD_DIM, size.parents, PARENT_DIM)
    leaves, routings = (
        cache(partial(make_leaves, size.batch, layer, device)),
        cache(partial(make_routings, layer, device)),
    )

    def prepare(name: str, form: str) -> Callable[[], object]:
        return partial(route_once, routings()[name], form, leaves())

    for name in ROUTINGS.names():
        for form in FORMS:
            facts = {
                "group": "routing", "name": name, "form": form, "batch": size.batch, "inputs": size.inputs,
                "parents": size.parents, "case": f"{size.inputs} x {size.parents}, batch {size.batch}",
            }  # fmt: skip
            yield Case(partial(prepare, name, form), facts, size.operations, size.moved, least_needed=size.least_needed)


def growth_cases(base: RoutingSize, growth: Mapping[str, tuple[int, ...]], device: str) -> Iterator[Case]:
    """Yield the routings GROWING at all sizes that differ from a base in one of AXES, and at the base."""
    sizes = [base._replace(**{axis: value}) for axis in AXES for value in growth[axis]]
    for size in sorted({base, *sizes}):
        layer = LayerSize(size.inputs, CHILD_DIM, size.parents, PARENT_DIM)
        leaves = cache(partial(make_leaves, size.batch, layer, device))
        for name in GROWING:
            iterates = "iterations" in ROUTINGS.options(name).model_fields
            if not iterates and size.iterations != base.iterations:
                continue
            options = {"iterations": size.iterations} if iterates else {}
            facts = {
                "group": "growth", "name": name, "form": "fast", "case": str(size), **size._asdict(),
                "iterations": size.iterations if iterates else None,
            }  # fmt: skip
            prepare = partial(_prepare, name, options, layer, device, leaves)
            yield Case(prepare, facts, size.operations, size.moved, least_needed=size.least_needed)


def conv_cases(batch: int, device: str) -> Iterator[Case]:
    """Yield EM routing of the convolutional capsules of H18, both forms, on votes that are given."""
    for side, stride, types in CONV_LAYERS:
        layer = cache(partial(_ConvVotes, batch, side, stride, types, device))
        out = (side - KERNEL) // stride + 1
        votes = 4.0 * batch * out**2 * KERNEL**2 * types * types * POSE_SIZE
        for form in FORMS:
            facts = {
                "group": "routing", "name": "conv_em_routing", "form": form, "batch": batch,
                "case": f"{side}x{side}x{types} -> {out}x{out}x{types}, batch {batch}",
            }  # fmt: skip
            prepare = partial(_prepare_conv, layer, form)
            yield Case(prepare, facts, moved=3 * votes, least_needed=VOTES_HELD * votes)


def _prepare(
    name: str, options: dict[str, Any], size: LayerSize, device: str, leaves: Callable[[], list[Tensor]]
) -> Callable[[], object]:
    torch.manual_seed(0)
    return partial(route_once, ROUTINGS.build(name, size, **options).to(device), "fast", leaves())


def _prepare_conv(layer: Callable[[], "_ConvVotes"], form: str) -> Callable[[], object]:
    return partial(layer().once, form)


class _ConvVotes:
    """A convolutional capsule layer with its votes [B, P, N, J, 16], N in the order that the layer stores."""

    def __init__(self, batch: int, side: int, stride: int, types: int, device: str):
        torch.manual_seed(0)
        self.layer = ConvMatrixCaps((side, side), types, types, KERNEL, stride).to(device)
        positions, places = self.layer.child_positions.shape
        votes = torch.randn(batch, positions, types, POSE_SIZE, places * types, device=device)
        activations = torch.rand(batch, side * side, types, device=device)
        self.votes, self.activations = votes.permute(0, 1, 4, 2, 3).requires_grad_(), activations.requires_grad_()

    def once(self, form: str) -> tuple[Tensor, ...]:
        """Route and go back."""
        layer = self.layer
        beta_u, beta_a = layer.betas()
        with plain_forms() if form == "plain" else nullcontext():
            means, activations, _ = conv_em_routing(
                self.votes, self.activations, layer.child_positions, beta_u, beta_a, layer.settings, "positions"
            )
            total = means.square().sum() + activations.sum()
            return torch.autograd.grad(total, (self.votes, self.activations))
