"""The layout that all figures share, in inches: panels one below the other, each with its title and legend.

A figure that would be a strip stands in columns, like a newspaper. Breaks are before titles, and within what would be a
strip by itself.
"""

import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from capsbench.analysis.plots.style import FONT, INK, QUIET, SMALL, WIDTH
from capsbench.analysis.statistics import Summary
from capsbench.study import Plan

LINE = 0.115  # inches: a line of text
LETTERS = 63  # in a line as wide as the figure
LOG_FROM = 4  # an axis is logarithmic where its values span this factor: else the best could not be distinguished
_EDGE, _RIGHT = 0.06, 0.17  # inches; half of a number at the end of an axis has room on the right
_LEGEND_COLUMNS = 2
_LEGEND_LETTERS = 25
_STRIP, _PAGE = 2.6, 1.4  # height over width: from where on a figure is a strip, and what its columns come down to
_GAIN = 0.9  # of the height: what a column more has to come down to
_TINY = 1e-9  # inches
_SHORT = 0.35  # decades: ticks at equal steps do better below
# inches for a decade of a logarithmic axis -> which ticks have room for a number
_TICKS: list[tuple[float, tuple[float, ...]]] = [
    (2.2, (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)), (1.0, (1, 1.5, 2, 3, 4, 6)), (0.55, (1, 2, 5)), (0.3, (1, 3)),
    (0.0, (1,)),
]  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """One row of a figure. height: of its axes; below: of ticks and axis label; above: of titles of axes; in inches."""

    title: str
    height: float
    below: float = 0.34
    legend: Sequence[Any] = field(default=())
    above: float = 0.0


def lay_out(
    panels: Sequence[Panel],
    columns: int = 1,
    left: float = 0.42,
    gap: float = 0.42,
    note: str = "",
    width: float = WIDTH,
    right: float = _RIGHT,
) -> tuple[Figure, list[list[Any]]]:
    """Make a figure and the axes of its panels.

    Args:
        panels: from top to bottom.
        columns: axes side by side in each panel.
        left: inches for what stands left of the first axes.
        gap: inches between axes side by side.
        note: stands below everything.
        width: inches of the figure, or of each column where it would be a strip.
        right: inches for what stands right of the last axes.

    Returns:
        The figure and, for each panel, its axes from left to right.
    """
    titles = [wrapped(panel.title, int((LETTERS - 12) * width / WIDTH)) for panel in panels]
    heads = [_head(panel, len(title)) for panel, title in zip(panels, titles, strict=True)]
    heights = [
        head + panel.height + panel.below + _legend_height(panel) for panel, head in zip(panels, heads, strict=True)
    ]
    places = _in_columns(panels, heights, width)
    beside = max(places, default=0) + 1
    wide = beside * width
    notes = wrapped(note, int(LETTERS * wide / WIDTH))
    longest = max(sum(h for h, place in zip(heights, places, strict=True) if place == n) for n in range(beside))
    total = longest + LINE * len(notes) + 2 * _EDGE
    figure = plt.figure(figsize=(wide, total))
    each = (width - left - right - gap * (columns - 1)) / columns
    rows: list[list[Any]] = []
    tops = [total - _EDGE] * beside
    for panel, height, head, title, place in zip(panels, heights, heads, titles, places, strict=True):
        top, start = tops[place], place * width
        figure.text(
            (start + _EDGE) / wide, top / total, "\n".join(title), va="top", fontsize=FONT, fontweight="bold",
            linespacing=1.15,
        )  # fmt: skip
        bottom = top - head - panel.height
        rows.append(
            [
                figure.add_axes(
                    ((start + left + n * (each + gap)) / wide, bottom / total, each / wide, panel.height / total),
                    label=f"{len(rows)}.{n}",
                )
                for n in range(columns)
            ]
        )
        if panel.legend:
            _add_legend(figure, panel.legend, ((start + _EDGE) / wide, (bottom - panel.below) / total))
        tops[place] -= height
    if notes:
        figure.text(_EDGE / wide, _EDGE / total, "\n".join(notes), va="bottom", fontsize=SMALL, color=QUIET)
    return figure, rows


def _in_columns(panels: Sequence[Panel], heights: Sequence[float], width: float) -> list[int]:
    """Return the column in which each panel stands: 0 for all unless that would be a strip."""
    if sum(heights) <= _STRIP * width:
        return [0] * len(panels)
    groups: list[list[float]] = []  # heights; a panel without a title belongs to the one above it
    for panel, height in zip(panels, heights, strict=True):
        if panel.title or not groups:
            groups.append([])
        groups[-1].append(height)
    groups = [part for group in groups for part in ([[h] for h in group] if sum(group) > _STRIP * width else [group])]
    sizes = [sum(group) for group in groups]
    places, longest = [0] * len(sizes), sum(sizes)
    for count in range(2, len(sizes) + 1):
        if longest <= _PAGE * (count - 1) * width:
            break
        found, height = balanced(sizes, count)
        if height < _GAIN * longest:
            places, longest = found, height
    return [place for group, place in zip(groups, places, strict=True) for _ in group]


def balanced(sizes: Sequence[float], count: int) -> tuple[list[int], float]:
    """Cut a sequence into so many parts at most that the largest is as small as can be.

    Returns:
        The part of each, from 0, and the size of the largest part.
    """
    sums = [0.0, *itertools.accumulate(sizes)]
    limits = sorted(later - earlier for earlier, later in itertools.combinations(sums, 2))
    limit = next(limit for limit in limits if limit >= max(sizes) - _TINY and cut_at(sizes, limit)[-1] < count)
    return cut_at(sizes, limit), limit


def cut_at(sizes: Sequence[float], limit: float) -> list[int]:
    """Return the part of each, from 0, where a part is full at `limit`; what is larger than that has its own."""
    parts: list[int] = []
    filled = 0.0
    for size in sizes:
        begins = bool(parts) and filled + size > limit + _TINY
        parts.append((parts[-1] if parts else 0) + begins)
        filled = size if begins else filled + size
    return parts


def _head(panel: Panel, lines: int) -> float:
    return LINE * lines + (0.07 if lines else 0.0) + panel.above


def _add_legend(figure: Figure, handles: Sequence[Any], corner: tuple[float, float]) -> None:
    for shown in handles:
        shown.set_label("\n".join(wrapped(str(shown.get_label()), _LEGEND_LETTERS)))
    figure.legend(
        handles=list(handles), loc="upper left", bbox_to_anchor=corner, ncols=_LEGEND_COLUMNS,
        frameon=False, borderpad=0.2, borderaxespad=0, handlelength=2.6, columnspacing=1.0,
        labelspacing=0.25, handletextpad=0.5,
    )  # fmt: skip


def _legend_height(panel: Panel) -> float:
    if not panel.legend:
        return 0.06
    lines = [len(wrapped(str(shown.get_label()).replace("\n", " "), _LEGEND_LETTERS)) for shown in panel.legend]
    per_column = -(-len(lines) // _LEGEND_COLUMNS)
    parts = [lines[start : start + per_column] for start in range(0, len(lines), per_column)]
    return LINE * max(sum(part) + 0.2 * len(part) for part in parts) + 0.08


def wrapped(text: str, letters: int) -> list[str]:
    """Break a text into lines; the line breaks that it has stay."""
    kept = re.sub(r"\b(iterations?) (\d)", "\\1\u00a0\\2", text)  # a name and its number stay together
    lines = [line for part in kept.split("\n") for line in textwrap.wrap(part, letters, break_long_words=False)]
    return [line.replace("\u00a0", " ") for line in lines]


def title_of(plan: Plan, experiment: str, runs: pd.DataFrame) -> str:
    """Name an experiment by its data set; mention files that are not the official ones."""
    data = plan.data[experiment]
    title = data.facts.title
    lines = runs.loc[runs["experiment"] == experiment, "unofficial"] if "unofficial" in runs else []
    if any(isinstance(line, str) and line for line in lines):
        title += ", not the official files"
    return title if experiment == data.name else f"{experiment} ({title})"


def first_seeds(runs: pd.DataFrame, file_of: Callable[[str], Path]) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield for each variant of each experiment the first run that ended and has a file, and that file.

    Args:
        runs: from `collect`.
        file_of: takes the key of a run.
    """
    found = set()
    for row in runs[runs["status"] == "ok"].to_dict("records"):
        variant, path = (row["experiment"], row["variant"]), file_of(row["key"])
        if variant not in found and path.exists():
            found.add(variant)
            yield {str(name): value for name, value in row.items()}, path


def nothing(reason: str) -> Figure:
    """Make a figure that says why there is nothing to show."""
    text = wrapped(f"nothing to show: {reason}", LETTERS - 12)
    figure = plt.figure(figsize=(WIDTH, 0.3 + LINE * len(text)))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.text(0.5, 0.5, "\n".join(text), ha="center", va="center", fontsize=FONT)
    axis.axis("off")
    return figure


def spans_much(values: Iterable[float]) -> bool:
    """Tell whether an axis for these values should be logarithmic."""
    found = [value for value in values if np.isfinite(value)]
    return bool(found) and min(found) > 0 and max(found) > LOG_FROM * min(found)


def make_log(axis: Any, which: Literal["x", "y"]) -> None:
    """Make an axis logarithmic, with plain numbers as ticks; its label should say "log scale". Set its limits first."""
    low, high = sorted(getattr(axis, f"get_{which}lim")())
    getattr(axis, f"set_{which}scale")("log")
    getattr(axis, f"set_{which}lim")(low, high)
    of = axis.xaxis if which == "x" else axis.yaxis
    place, size = axis.get_position(), axis.figure.get_size_inches()
    inches = place.width * size[0] / 1.8 if which == "x" else place.height * size[1]  # numbers are wider than high
    decades = max(np.log10(high / low), 1e-9)
    if decades < _SHORT:
        of.set_major_locator(MaxNLocator(max(2, round(3 * inches)), steps=[1, 2, 5, 10]))
    else:
        room = inches / decades
        of.set_major_locator(LogLocator(subs=next(subs for least, subs in _TICKS if room >= least), numticks=20))
    of.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    of.set_minor_locator(LogLocator(subs=tuple(range(1, 10)), numticks=20))
    of.set_minor_formatter(NullFormatter())


def plain(value: float) -> str:
    """Write the number of a tick as 0.5, 20, 30k or 2M."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


def interval(
    axis: Any,
    where: float,
    ends: Sequence[float],
    limits: tuple[float, float],
    upright: bool = False,
    reach: Sequence[float] = (),
    **style: Any,
) -> None:
    """Draw an interval as far as it lies in a panel, with an arrow at the edge where it goes on.

    Args:
        axis: of the panel.
        where: its place across.
        ends: low and high.
        limits: of the panel.
        upright: along the y axis.
        reach: other values of the same row, which an arrow stands for as well.
        style: of the line.
    """
    style = {"color": INK, "linewidth": 1.0, "zorder": 3, "label": "interval"} | style
    inside = [min(max(end, limits[0]), limits[1]) for end in ends]
    along, across = ([where] * 2, inside) if upright else (inside, [where] * 2)
    axis.plot(along, across, linestyle="-", marker="", **style)
    cut = min([*ends, *reach]) < limits[0], max([*ends, *reach]) > limits[1]
    carets = (CARETDOWN, CARETUP) if upright else (CARETLEFT, CARETRIGHT)  # their tips lie on the edge
    for edge, caret, is_cut in zip(limits, carets, cut, strict=True):
        if is_cut:
            place = ([where], [edge]) if upright else ([edge], [where])
            look = {"color": style["color"], "markerfacecolor": "white", "markeredgewidth": 0.7, "markersize": 4.5}
            axis.plot(*place, linestyle="", marker=caret, zorder=6, label="cut", **look)


def bounds_of(found: Summary) -> tuple[float, float] | None:
    """Return the interval of a mean error, or of another quantity that is never negative; None where there is none."""
    low, high = found.interval
    return None if np.isnan(low) else (max(0.0, low), high)
