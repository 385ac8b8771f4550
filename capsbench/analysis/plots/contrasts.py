"""Differences between variants at equal seeds, a line per contrast, grouped by family, a panel per experiment."""

import math
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from capsbench.analysis.contrasts import SIGNIFICANT, compare, digits_for, number
from capsbench.analysis.plots.panels import nothing, title_of
from capsbench.study import Plan

_WIDTH, _LEFT, _RIGHT = 8.0, 3.0, 2.0  # inches: of the figure, of the names, of the numbers
_LINE = 0.17  # inches, of a line of text
_TITLE, _TICKS, _LEGEND = 0.4, 0.3, 0.75
_LETTERS = 46  # in a line of a name
_WIDEST = 6  # a line that is this many times as wide as the median line is cut, with an arrow
_SMALL = 8


def plot_contrasts(plan: Plan, results: Path, runs: pd.DataFrame) -> Figure:
    """Forest plot: the mean difference of each contrast with its 95 % t interval, and the difference at each seed."""
    if not plan.contrasts:
        return nothing("no contrasts")
    table = compare(plan.contrasts, runs)
    if not table["n"].any():
        return nothing("no seed with results of both variants of a contrast")
    experiments = list(dict.fromkeys(table["experiment"]))
    layouts = [_rows(table[table["experiment"] == experiment]) for experiment in experiments]
    heights = [_LINE * (0.7 + sum(height for *_, height in layout)) for layout in layouts]
    height = sum(heights) + len(heights) * (_TITLE + _TICKS) + _LEGEND
    figure = plt.figure(figsize=(_WIDTH, height))
    top = height
    for experiment, layout, inches in zip(experiments, layouts, heights, strict=True):
        top -= _TITLE + inches
        axis = figure.add_axes(
            (_LEFT / _WIDTH, top / height, (_WIDTH - _LEFT - _RIGHT) / _WIDTH, inches / height), label=experiment
        )
        _draw(axis, layout)
        axis.set_title(title_of(plan, experiment, runs), loc="left", fontsize=_SMALL + 2, x=-_LEFT / 3)
        top -= _TICKS
    said = "difference in test error (points), first minus second; left of 0: the first is better"
    axis.set_xlabel(said, fontsize=_SMALL + 1)
    _legend(figure)
    return figure


def _rows(table: pd.DataFrame) -> list[tuple[str, Any, float]]:
    """Return what stands in a panel from top to bottom: text, the contrast (None for a family), height in lines."""
    rows: list[tuple[str, Any, float]] = []
    for family in dict.fromkeys(table["family"]):
        rows.append((family, None, 1.3))
        for row in table[table["family"] == family].itertuples():
            lines = textwrap.wrap(row.contrast, _LETTERS)
            rows.append(("\n".join(lines), row, len(lines) + 0.45))
    return rows


def _draw(axis: Any, layout: Sequence[tuple[str, Any, float]]) -> None:
    low, high = _limits([row for _, row, _ in layout if row is not None])
    axis.axvline(0, color="0.2", linewidth=1, zorder=1)
    place = 0.35
    for text, row, height in layout:
        middle = place + height / 2
        style = {"fontweight": "bold"} if row is None else {}
        axis.annotate(
            text, (0, middle), (-_LEFT * 72 + (0 if row is None else 8), 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="center", fontsize=_SMALL, annotation_clip=False, **style,
        )  # fmt: skip
        if row is not None:
            _draw_contrast(axis, row, middle, (low, high))
            axis.annotate(
                _in_numbers(row), (1, middle), (6, 0), xycoords=("axes fraction", "data"),
                textcoords="offset points", va="center", fontsize=_SMALL, annotation_clip=False,
            )  # fmt: skip
        place += height
    axis.set(xlim=(low, high), ylim=(place + 0.35, 0), yticks=[])
    axis.tick_params(axis="x", labelsize=_SMALL)
    axis.grid(axis="x", linewidth=0.5)


def _draw_contrast(axis: Any, row: Any, place: float, limits: tuple[float, float]) -> None:
    """Draw one line; what lies outside the panel is cut with an arrow at its edge."""
    low, high = limits
    seeds = [d for d in row.differences.values() if low <= d <= high]
    axis.plot(seeds, [place] * len(seeds), "o", color="C0", markersize=4.5, alpha=0.55, markeredgewidth=0, zorder=3)
    ends = (row.mean, row.mean) if math.isnan(row.low) else (row.low, row.high)
    reach = [*row.differences.values(), *ends]
    axis.plot([min(max(end, low), high) for end in ends], [place] * 2, color="black", linewidth=1.2, zorder=2)
    for edge, sign, beyond in ((low, "<", min(reach) < low), (high, ">", max(reach) > high)):
        if beyond:
            axis.plot([edge], [place], sign, color="black", markersize=6, clip_on=False, zorder=5)
    if low <= row.mean <= high:
        face = "black" if row.p_holm < SIGNIFICANT else "white"
        axis.plot([row.mean], [place], "D", color="black", markerfacecolor=face, markersize=5, zorder=4)


def _limits(rows: Sequence[Any]) -> tuple[float, float]:
    """Return the range of a panel: that of all seeds and intervals, but for contrasts far wider than the others."""
    extents = [[0.0, *row.differences.values(), *(v for v in (row.low, row.high) if not math.isnan(v))] for row in rows]
    sizes = [size for size in (max(map(abs, extent)) for extent in extents) if size > 0]
    widest = _WIDEST * statistics.median(sizes) if sizes else 1.0
    values = [value for extent in extents for value in extent if abs(value) <= widest]
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin


def _in_numbers(row: Any) -> str:
    seeds = "" if row.n in (0, row.planned) else f" (n = {row.n} of {row.planned})"
    if math.isnan(row.low):
        text = row.shows.split(" (")[0].split(":")[0].split(";")[0]
        return textwrap.fill(text.replace("-", "−") + seeds, 30)
    digits = digits_for(row.low, row.high)
    mean, low, high = (number(value, digits) for value in (row.mean, row.low, row.high))
    return f"{mean} [{low}, {high}]".replace("-", "−") + seeds.replace(" (", "\n(")


def _legend(figure: Figure) -> None:
    form: dict[str, Any] = {"color": "black", "linewidth": 1.2, "marker": "D", "markersize": 5}
    handles = [
        Line2D([], [], **form, label=f"mean and 95 % interval, p (Holm) < {SIGNIFICANT:g}"),
        Line2D([], [], **form, markerfacecolor="white", label="p not below that, or none"),
        Line2D([], [], color="C0", linestyle="", marker="o", markersize=4.5, alpha=0.55, label="a seed"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=3, fontsize=_SMALL, frameon=False)
