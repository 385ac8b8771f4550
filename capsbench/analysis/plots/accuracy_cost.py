"""Error against what it costs, in measured time and in parameters, two panels per experiment, with the Pareto front."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.plots.panels import (
    Panel,
    bounds_of,
    interval,
    lay_out,
    make_log,
    nothing,
    spans_much,
    title_of,
)
from capsbench.analysis.plots.style import QUIET, Look, handle, looks, styled
from capsbench.study import Plan

_HEIGHT = 1.45
_COSTS: list[tuple[str, Callable[[Cell], float]]] = [
    ("training time per image\n(ms, log scale)", lambda cell: 1000 / cell.images_per_second),
    ("parameters\n(log scale)", lambda cell: cell.parameters),
]


@styled
def plot_accuracy_cost(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """Mean test error of each variant against its training time per image and its parameters (decoder included)."""
    found = [cell for cell in cells(plan, runs) if cell.errors]
    if not found:
        return nothing("no finished run")
    styles = looks(plan)
    experiments = list(dict.fromkeys(cell.experiment for cell in found))
    layouts = [[cell for cell in found if cell.experiment == experiment] for experiment in experiments]
    panels = [
        Panel(
            title_of(plan, experiment, runs), _HEIGHT, below=0.45,
            legend=[*(handle(styles[cell.variant], cell.label, line=False) for cell in layout), _front_line([], [])],
        )
        for experiment, layout in zip(experiments, layouts, strict=True)
    ]  # fmt: skip
    note = "Mean over the seeds, 95 % interval. Time: of training, median over the seeds, on each run's machine."
    if any(is_unsure(layout, cost) for layout in layouts for _, cost in _COSTS):
        note += " Fronts are of means; intervals overlap, so that other seeds may give other fronts."
    if any(_is_cut(layout) for layout in layouts):
        note += " An arrow: goes on beyond the panel."
    figure, axes = lay_out(panels, columns=2, gap=0.2, note=note)
    for row, layout in zip(axes, layouts, strict=True):
        for axis, (name, cost) in zip(row, _COSTS, strict=True):
            _draw(axis, layout, name, [cost(cell) for cell in layout], styles)
        row[1].tick_params(axis="y", labelleft=False)
        row[1].set_ylabel("")
    return figure


def pareto_front(costs: Sequence[float], errors: Sequence[float]) -> list[int]:
    """Return the places of the points that no other point beats in one and equals in the other, by rising cost."""
    order = sorted(range(len(costs)), key=lambda place: (costs[place], errors[place]))
    front: list[int] = []
    for place in order:
        if not front or errors[place] < errors[front[-1]]:
            front.append(place)
    return front


def is_unsure(layout: Sequence[Cell], cost: Callable[[Cell], float]) -> bool:
    """Tell whether a front rests on errors whose intervals overlap: of its points, or of one and a point behind it.

    Args:
        layout: the cells of a panel, each with an error.
        cost: what a cell costs.
    """
    front = [layout[place] for place in pareto_front([cost(c) for c in layout], [c.summary.mean for c in layout])]
    for first in front:
        for other in layout:
            ends = bounds_of(first.summary), bounds_of(other.summary)
            if other is not first and ends[0] and ends[1] and ends[0][0] <= ends[1][1] and ends[1][0] <= ends[0][1]:
                return True
    return False


def _draw(axis: Any, layout: list[Cell], name: str, costs: list[float], styles: dict[str, Look]) -> None:
    means = [cell.summary.mean for cell in layout]
    limits = _error_limits(layout)
    axis.set_ylim(*limits)
    is_log = spans_much(means)
    if is_log:
        make_log(axis, "y")
    edge = 1.1 * (max(costs) / min(costs)) ** 0.08
    axis.set_xlim(min(costs) / edge, max(costs) * edge)
    make_log(axis, "x")
    front = pareto_front(costs, means)
    axis.add_line(_front_line([costs[n] for n in front], [means[n] for n in front]))
    for cell, cost, mean in zip(layout, costs, means, strict=True):
        look = styles[cell.variant]
        if (bounds := bounds_of(cell.summary)) is not None:
            interval(axis, cost, bounds, limits, upright=True, color=look.color, linewidth=0.8)
        axis.plot([cost], [mean], linestyle="", zorder=5, label=cell.variant, **look.points())
    axis.set_xlabel(name)
    axis.set_ylabel("test error (%, log scale)" if is_log else "test error (%)")


def _front_line(costs: list[float], errors: list[float]) -> Line2D:
    """Return the Pareto front: at each cost, the lowest error that can be had for it."""
    return Line2D(
        costs, errors, color=QUIET, linestyle=(0, (2, 1.5)), linewidth=0.8, drawstyle="steps-post", zorder=1,
        label="Pareto front",
    )  # fmt: skip


def _error_limits(layout: list[Cell]) -> tuple[float, float]:
    """Return the range of the errors: of all means, and of intervals as far as they do not dwarf them.

    A linear axis goes beyond the lowest and the highest mean by at most the span of the means or half the median
    interval, whichever is longer; where all means are equal it shows all of their intervals.
    """
    means = [cell.summary.mean for cell in layout]
    low, high = _ends(layout)
    if spans_much(means):
        return 0.88 * max(low, 0.6 * min(means)), 1.14 * min(high, 1.6 * max(means))
    lengths = [bounds[1] - bounds[0] for cell in layout if (bounds := bounds_of(cell.summary)) is not None]
    if span := float(np.ptp(means)):
        span = max(span, float(np.median(lengths or [0.0])) / 2)
        low, high = max(low, min(means) - span), min(high, max(means) + span)
    edge = 0.08 * ((high - low) or 0.2 * high or 1.0)
    return max(0.0, low - edge) if low > 0 else -edge, high + edge


def _ends(layout: list[Cell]) -> tuple[float, float]:
    """Return the lowest and the highest value among the means and the ends of their intervals."""
    bounds = [bounds_of(cell.summary) for cell in layout]
    values = [cell.summary.mean for cell in layout] + [end for both in bounds if both is not None for end in both]
    return min(values), max(values)


def _is_cut(layout: list[Cell]) -> bool:
    (low, high), limits = _ends(layout), _error_limits(layout)
    return low < limits[0] or high > limits[1]
