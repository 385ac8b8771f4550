"""Which children the parents on a grid see, and which of these entries compete: tables for the kernels of EM routing.

Shapes: C child positions, P parent positions, KK places in the kernel of each, Q groups, E the most entries of one.
An entry is a place in the kernel of a parent position, p * KK + k.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """Tables of a layer on a grid, on one device.

    Attributes:
        positions: P.
        places: KK.
        cells: C.
        number: Q.
        over_types: parents of all types compete, else those of each type alone.
        seen: the child position of each entry.
        groups: the group of each entry; entries of one group compete.
        start: the first shares of each entry, times the number of parent types.
        cell_entries: the entries of each child position, in order; the rest of a row is zero.
        cell_counts: how many these are.
        group_entries: the entries of each group.
        group_counts: how many these are.
    """

    positions: int
    places: int
    cells: int
    number: int
    over_types: bool
    seen: Int[Tensor, " entries"]
    groups: Int[Tensor, " entries"]
    start: Float[Tensor, " entries"]
    cell_entries: Int[Tensor, "cells most"]
    cell_counts: Int[Tensor, " cells"]
    group_entries: Int[Tensor, "groups most_of_group"]
    group_counts: Int[Tensor, " groups"]

    @classmethod
    def of(
        cls,
        children: Int[Tensor, "positions places"],
        cells: int,
        over_types: bool,
        rivals: Int[Tensor, "positions places"] | None = None,
    ) -> "Windows":
        """Make the tables, on the CPU.

        Args:
            children: the child position at each place of each parent position's kernel.
            cells: the number of child positions; some may be seen by no parent.
            over_types: parents of all types compete, else those of each type alone.
            rivals: a number for each entry; those of the same number compete. None: those of the same child.
        """
        seen = children.flatten().cpu()
        groups = seen if rivals is None else rivals.flatten().cpu()
        number = cells if rivals is None else int(groups.max()) + 1
        cell_entries, cell_counts = _entries(seen, cells)
        group_entries, group_counts = (cell_entries, cell_counts) if rivals is None else _entries(groups, number)
        start = 1 / cell_counts[seen].float() if over_types else torch.ones(len(seen))
        return cls(
            len(children), children.shape[1], cells, number, over_types, seen.int(), groups.int(), start,
            cell_entries, cell_counts, group_entries, group_counts,
        )  # fmt: skip

    def to(self, device: torch.device | int | str) -> "Windows":
        """Return the same tables on a device."""
        moved: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)


def _entries(index: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Return the entries of each of `number` cells or groups, in order, [number, E], and how many these are."""
    counts = torch.bincount(index, minlength=number)
    found = torch.zeros(number, max(1, int(counts.max())), dtype=torch.int32)
    order = index.argsort(stable=True)
    first = (counts.cumsum(0) - counts)[index[order]]
    found[index[order], torch.arange(len(index)) - first] = order.int()
    return found, counts.int()
