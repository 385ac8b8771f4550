"""Which children the parents on a grid see, and which of these entries compete: tables for the kernels of EM routing.

Shapes: C child positions, P parent positions, KK places in the kernel of each, Q groups, E the most entries of one.
An entry is a place in the kernel of a parent position, p * KK + k.
"""

import torch
from jaxtyping import Int
from torch import Tensor, nn


class Windows(nn.Module):
    """Tables of a layer on a grid, int32 buffers that are no part of its state.

    Args:
        children: the child position at each place of each parent position's kernel, [P, KK].
        cells: C, the number of child positions; some may be seen by no parent.
        over_types: parents of all types compete, else those of each type alone.
        rivals: a number for each entry; those of the same number compete. None: those of the same child.

    Attributes:
        seen: the child position of each entry, [P * KK].
        groups: the group of each entry, [P * KK].
        start: the first shares of each entry, times the number of parent types, [P * KK].
    """

    def __init__(
        self,
        children: Int[Tensor, "positions places"],
        cells: int,
        over_types: bool,
        rivals: Int[Tensor, "positions places"] | None = None,
    ):
        super().__init__()
        self.positions, self.places = children.shape
        self.cells, self.over_types = cells, over_types
        self.seen: Tensor
        self.groups: Tensor
        self.start: Tensor
        self.cell_entries: Tensor
        self.cell_counts: Tensor
        self.group_entries: Tensor
        self.group_counts: Tensor
        of_child = children.flatten()
        of_group = of_child if rivals is None else rivals.flatten()
        self.number = cells if rivals is None else int(of_group.max()) + 1
        counts = torch.bincount(of_child, minlength=cells)
        tables = {
            "seen": of_child.int(),
            "groups": of_group.int(),
            "start": 1 / counts[of_child].float() if over_types else torch.ones(len(of_child)),
            "cell_entries": _entries(of_child, cells),
            "cell_counts": counts.int(),
            "group_entries": _entries(of_group, self.number),
            "group_counts": torch.bincount(of_group, minlength=self.number).int(),
        }
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)


def _entries(index: Tensor, number: int) -> Tensor:
    """Return the entries of each of `number` cells or groups, in order, [number, E]; the rest of a row is zero."""
    most = int(torch.bincount(index, minlength=number).max())
    found = torch.zeros(number, most, dtype=torch.int32)
    for row in range(number):
        own = (index == row).nonzero().flatten()
        found[row, : len(own)] = own.int()
    return found
