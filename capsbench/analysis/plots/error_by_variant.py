"""Test errors of all variants, a panel per experiment."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.plots.panels import (
    LINE,
    Panel,
    bounds_of,
    interval,
    lay_out,
    make_log,
    nothing,
    spans_much,
    title_of,
    wrapped,
)
from capsbench.analysis.plots.style import FAINT, INK, Look, looks, styled
from capsbench.study import Plan

_LETTERS = 23  # in a line of a label
_LEFT = 1.32  # inches, for the labels
_BELOW = 0.3  # of a row, from the seeds to the mean
_REACH = 1.5  # an interval may widen a linear axis by this many times what the seeds span


@styled
def plot_error_by_variant(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """Test error of every seed, joined across variants; below, the mean of the variant with its 95 % t interval."""
    found = [cell for cell in cells(plan, runs) if cell.errors or cell.diverged or cell.failed]
    if not any(cell.errors for cell in found):
        return nothing("no finished run")
    experiments = list(dict.fromkeys(cell.experiment for cell in found if cell.errors))
    layouts = [[cell for cell in found if cell.experiment == experiment] for experiment in experiments]
    panels = [
        Panel(title_of(plan, experiment, runs), 0.12 + sum(map(_height, layout)))
        for experiment, layout in zip(experiments, layouts, strict=True)
    ]
    panels[-1] = Panel(panels[-1].title, panels[-1].height, legend=_legend())
    figure, axes = lay_out(panels, left=_LEFT)
    styles = looks(plan)
    for (axis,), layout in zip(axes, layouts, strict=True):
        _draw(axis, layout, styles)
    return figure


def _draw(axis: Any, layout: list[Cell], styles: dict[str, Look]) -> None:
    low, high = _limits(layout)
    axis.set_xlim(low, high)
    errors = [error for cell in layout for error in cell.errors.values()]
    is_log = spans_much(errors)
    if is_log:
        make_log(axis, "x")
    axis.set_xlabel("test error (%, log scale)" if is_log else "test error (%)")
    places, top = [], 0.06
    for cell in layout:
        places.append(top + _height(cell) / 2 - 0.02)
        top += _height(cell)
    axis.set_ylim(top + 0.06, 0)
    axis.set_yticks(places, [_label(cell) for cell in layout])
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False, axis="y")
    for seed in sorted({seed for cell in layout for seed in cell.errors}):
        there = [(cell.errors[seed], place) for cell, place in zip(layout, places, strict=True) if seed in cell.errors]
        axis.plot(*zip(*there, strict=True), color=FAINT, linewidth=0.6, zorder=2, label=f"seed {seed}")
    for cell, place in zip(layout, places, strict=True):
        look = styles[cell.variant]
        values = list(cell.errors.values())
        axis.plot(
            values, [place] * len(values), linestyle="", alpha=0.85, zorder=4, label=cell.variant, **look.points()
        )
        if not values:
            continue
        below = place + 0.075
        if (bounds := bounds_of(cell.summary)) is not None:
            interval(axis, below, bounds, (low, high))
        axis.plot([cell.summary.mean], [below], "|", color=INK, markersize=6, markeredgewidth=1.3, zorder=5)


def _limits(layout: list[Cell]) -> tuple[float, float]:
    """Return the range of a panel: all seeds, and intervals as far as they do not dwarf the seeds."""
    errors = [error for cell in layout for error in cell.errors.values()]
    bounds = [bound for bound in (bounds_of(cell.summary) for cell in layout) if bound is not None]
    least, most = min(errors), max(errors)
    if spans_much(errors):
        low = max(0.6 * least, min([least, *(bound[0] for bound in bounds if bound[0] > 0)]))
        high = min(1.6 * most, max([most, *(bound[1] for bound in bounds)]))
        return 0.88 * low, 1.14 * high
    span = (most - least) or 0.1 * most or 1.0
    low = max(least - _REACH * span, min([least, *(bound[0] for bound in bounds)]))
    high = min(most + _REACH * span, max([most, *(bound[1] for bound in bounds)]))
    edge = 0.06 * ((high - low) or span)
    return low - edge, high + edge


def _label(cell: Cell) -> str:
    counts = {"diverged": cell.diverged, "failed": cell.failed, "not run yet": cell.missing, "stuck": cell.stuck}
    said = ", ".join(f"{count} of {cell.planned} {word}" for word, count in counts.items() if count)
    return "\n".join(wrapped(cell.label, _LETTERS) + (wrapped(f"({said})", _LETTERS) if said else []))


def _height(cell: Cell) -> float:
    return max(0.25, LINE * (_label(cell).count("\n") + 1) + 0.07)


def _legend() -> list[Line2D]:
    point = {"color": INK, "marker": "o", "markersize": 4}
    return [
        Line2D([], [], linestyle="", **point, label="a seed"),  # type: ignore[arg-type]
        Line2D([], [], color=FAINT, linewidth=0.6, label="the same seed in other variants"),
        Line2D(
            [], [], color=INK, linewidth=1.0, marker="|", markersize=6, label="mean, 95 % interval (3 seeds or more)"
        ),
    ]
