"""Error on the test against error on the familiar test, where there are both; matched runs are joined."""

from pathlib import Path
from typing import Any, Literal

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.plots.panels import Panel, lay_out, make_log, nothing, spans_much, title_of
from capsbench.analysis.plots.style import FAINT, QUIET, Look, handle, looks, styled
from capsbench.study import Plan

_HEIGHT = 1.75


@styled
def plot_familiar_novel(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """Novel against familiar test error of every seed; a line joins a run to the one it was matched to."""
    if not any(plan.data[experiment].has_familiar_test for experiment in plan.data):
        return nothing("no data set of the study has a familiar test beside its test")
    found = [cell for cell in cells(plan, runs) if cell.familiar and cell.errors]
    if not found:
        return nothing("no finished run with a familiar test")
    styles = looks(plan)
    experiments = list(dict.fromkeys(cell.experiment for cell in found))
    layouts = [[cell for cell in found if cell.experiment == experiment] for experiment in experiments]
    panels = [
        Panel(
            title_of(plan, experiment, runs), _HEIGHT,
            legend=[handle(styles[cell.variant], cell.label, line=False) for cell in layout] + _lines(layout),
        )
        for experiment, layout in zip(experiments, layouts, strict=True)
    ]  # fmt: skip
    figure, axes = lay_out(panels, left=0.5)
    for (axis,), layout in zip(axes, layouts, strict=True):
        _draw(axis, layout, styles)
    return figure


def _lines(layout: list[Cell]) -> list[Line2D]:
    found = []
    if _diagonal(layout) is not None:
        found.append(Line2D([], [], color=QUIET, linestyle=":", linewidth=0.9, label="both errors the same"))
    if any(cell.matching for cell in layout):
        found.append(Line2D([], [], color=FAINT, linewidth=0.9, label="matched, at the same seed"))
    return found


def _draw(axis: Any, layout: list[Cell], styles: dict[str, Look]) -> None:
    names: tuple[tuple[Literal["x", "y"], str], ...] = (("x", "familiar"), ("y", "novel"))
    for (which, name), values in zip(names, _values(layout), strict=True):
        getattr(axis, f"set_{which}lim")(*_limits(values))
        if spans_much(values):
            make_log(axis, which)
        getattr(axis, f"set_{which}label")(f"{name} test error (%{', log scale' if spans_much(values) else ''})")
    if (ends := _diagonal(layout)) is not None:
        axis.plot(ends, ends, color=QUIET, linestyle=":", linewidth=0.9, zorder=1, label="diagonal")
    _draw_matches(axis, layout)
    for cell in layout:
        seeds = _seeds(cell)
        axis.plot(
            [cell.familiar[seed] for seed in seeds], [cell.errors[seed] for seed in seeds], linestyle="", zorder=4,
            label=cell.variant, **styles[cell.variant].points(),
        )  # fmt: skip


def _seeds(cell: Cell) -> list[int]:
    return [seed for seed in cell.errors if seed in cell.familiar]


def _values(layout: list[Cell]) -> tuple[list[float], list[float]]:
    """Return all familiar and all novel errors of a panel."""
    pairs = [(cell.familiar[seed], cell.errors[seed]) for cell in layout for seed in _seeds(cell)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _limits(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if spans_much(values):
        return low / 1.15, high * 1.15
    edge = 0.08 * ((high - low) or high or 1.0)
    return max(low - edge, -edge), high + edge


def _diagonal(layout: list[Cell]) -> tuple[float, float] | None:
    """Return the ends of the line of equal errors, None where it misses the panel."""
    (low, high), (bottom, top) = (_limits(values) for values in _values(layout))
    ends = max(low, bottom), min(high, top)
    return ends if ends[0] < ends[1] else None


def _draw_matches(axis: Any, layout: list[Cell]) -> None:
    by_variant = {cell.variant: cell for cell in layout}
    for cell in layout:
        other = by_variant.get(cell.run.training.match or "")
        if other is None:
            continue
        for seed in _seeds(cell):
            if seed in _seeds(other):
                axis.plot(
                    [other.familiar[seed], cell.familiar[seed]], [other.errors[seed], cell.errors[seed]], color=FAINT,
                    linewidth=0.9, zorder=2, label="matched",
                )  # fmt: skip
