"""Forest plots: a row per difference, with its interval.

In a column of a page a row is a line of text and a stripe below it. Many rows fill a page: there the names stand on the
left of the stripes, once for all panels that are side by side, and the numbers, if there are any, on the right.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from capsbench.analysis.contrasts import digits_for, number
from capsbench.analysis.plots.panels import LINE, interval, wrapped
from capsbench.analysis.plots.style import FAINT, INK, QUIET, SMALL

STRIPE = 1.15  # lines high
_NAME, _NUMBERS = 34, 24  # letters
_USUAL_NUMBERS = 21  # letters; a name makes room for each one more
NAMES_BESIDE, NUMBERS_BESIDE = 2.85, 1.35  # inches
_NAME_BESIDE = 56  # letters
_APART = 0.24  # inches between the numbers of ticks in a panel of many rows
_EDGE = 0.07  # of the width of such a panel, beyond the outermost value
_WIDEST = 2  # rows that reach this many times as far out as all others are cut, with an arrow
_FAR = 4  # times the median
_BAND = "0.87"
SAME = "s"  # the marker of two that are the same within the band


@dataclass(frozen=True)
class Row:
    """A difference in points with its interval (nan: none), the points it is made of, and the band that counts as 0.

    name, numbers: text on the left and on the right. filled: the diamond. same: shown to lie within the band. mark: a
    letter right of the panel. color: of diamond and line. quiet: what cannot be compared. A row with a name alone is
    a heading.
    """

    name: str
    numbers: str = ""
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    points: Sequence[float] = ()
    margin: float = 0.0
    filled: bool = True
    same: bool = False
    mark: str = ""
    color: str = INK
    quiet: bool = False
    heading: bool = False

    @property
    def names(self) -> list[str]:
        """The name in lines."""
        if not self.numbers:
            return wrapped(self.name, _NAME + _NUMBERS)
        widest = max(map(len, wrapped(self.numbers, _NUMBERS)))
        return wrapped(self.name, _NAME - max(0, widest - _USUAL_NUMBERS))

    @property
    def lines(self) -> int:
        """How many lines of text there are."""
        return max(len(self.names), len(wrapped(self.numbers, _NUMBERS)))

    @property
    def extent(self) -> list[float]:
        """All differences that the row shows."""
        return [value for value in (self.mean, self.low, self.high, *self.points) if not math.isnan(value)]


def forest_height(rows: Sequence[Row]) -> float:
    """Return the inches that the rows of a panel need."""
    return LINE * (0.5 + sum(_height(row) for row in rows))


def draw_forest(axis: Any, rows: Sequence[Row]) -> None:
    """Draw the rows from top to bottom. What lies outside the panel is cut, with an arrow at its edge and the mean."""
    limits = forest_limits(rows)
    axis.set(xlim=limits, ylim=(0.5 + sum(map(_height, rows)), 0), yticks=[])
    axis.grid(visible=False)
    place = 0.25
    for row in rows:
        _write(axis, row, place)
        if row.extent:
            _draw(axis, row, place + row.lines + 0.1, limits)
        place += _height(row)


def beside_height(rows: Sequence[Row]) -> float:
    """Return the inches that rows need whose text stands beside their stripes."""
    return LINE * (0.5 + sum(_height_beside(row) for row in rows))


def draw_beside(axes: Sequence[Any], rows: Sequence[Sequence[Row]]) -> None:
    """Draw panels side by side, with the names of the rows once, on their left, and numbers on the right of the last.

    Args:
        axes: of the panels.
        rows: of each panel, equal but for their differences.
    """
    for axis, own in zip(axes, rows, strict=True):
        axis.set(ylim=(0.5 + sum(map(_height_beside, own)), 0), yticks=[])
        axis.grid(visible=False)
        limits = _set_wide_scale(axis, own)
        place = 0.25
        for row in own:
            if axis is axes[0]:
                style = {"fontweight": "bold"} if row.heading else {}
                top = place + 0.3 * row.heading
                axis.annotate(
                    "\n".join(_names_beside(row)), (0, top), (6 - 72 * NAMES_BESIDE, 0), ha="left", va="top",
                    xycoords=("axes fraction", "data"), textcoords="offset points", annotation_clip=False,
                    fontsize=SMALL, linespacing=1.25, **style,
                )  # fmt: skip
            if axis is axes[-1] and row.numbers:
                axis.annotate(
                    "\n".join(wrapped(row.numbers, _NUMBERS)), (1, place), (6, 0), ha="left", va="top",
                    xycoords=("axes fraction", "data"), textcoords="offset points", annotation_clip=False,
                    fontsize=SMALL, linespacing=1.25,
                )  # fmt: skip
            if row.extent:
                _draw(axis, row, place, limits)
            place += _height_beside(row)


def forest_limits(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the range of a panel: that of all points and intervals, but for a third at most that dwarf the others.

    A sixth at most is left out, too, where its means lie far beyond the median of what rows reach. The range holds the
    narrowest band, if all rows have one. Quiet rows do not widen it, unless all are quiet.
    """
    counted = [row for row in rows if row.extent and not row.quiet] or [row for row in rows if row.extent]
    extents = [[0.0, -row.margin, row.margin, *row.extent] for row in counted]
    least = min((row.margin for row in counted), default=0.0)
    reached = sorted(((max(least, *map(abs, row.extent)), abs(row.mean)) for row in counted), reverse=True)
    sizes = [size for size, _ in reached]
    far = list(itertools.pairwise(sizes[: len(sizes) // 3 + 1]))
    widest = next((near for out, near in far if out > _WIDEST * near > 0), max(sizes, default=1.0))
    if sizes:
        usual = _FAR * statistics.median(sizes)
        near_enough = (size for size, mean in reached[: len(sizes) // 6] if not mean > usual)
        widest = min(widest, next(near_enough, sizes[len(sizes) // 6]))
    values = [0.0, *(value for extent in extents for value in extent if abs(value) <= widest)]
    low, high = min(values), max(values)
    margin = 0.06 * (high - low) or 1.0
    return low - margin, high + margin


def _set_wide_scale(axis: Any, rows: Sequence[Row]) -> tuple[float, float]:
    """Make a panel of many rows linear as far out as the usual band goes, and logarithmic beyond; return its range."""
    counted = [row for row in rows if row.extent and not row.quiet] or [row for row in rows if row.extent]
    values = [0.0, *(value for row in counted for value in row.extent)]
    bands = [row.margin for row in counted if row.margin] or [max(map(abs, values)) or 1.0]
    linear = statistics.median(bands)
    low, high = min(*values, -linear), max(*values, linear)
    axis.set_xscale("symlog", linthresh=linear, linscale=0.7)
    scale = axis.xaxis.get_transform()
    left, right = scale.transform([low, high])
    edge = _EDGE * (right - left)
    limits = tuple(map(float, scale.inverted().transform([left - edge, right + edge])))
    places = [factor * 10.0**n for n in range(-6, 4) for factor in range(1, 10)]
    beyond = [sign * place for place in places if place >= linear for sign in (-1, 1)]
    inches = axis.get_position().width * axis.figure.get_size_inches()[0] / (right - left + 2 * edge)
    labelled = [0.0]
    for sign in (-1, 1):
        last = scale.transform([0.0])[0]
        within = [sign * place for place in places if limits[0] <= sign * place <= limits[1]]
        powers = [place for place in within if abs(place) >= linear and math.log10(abs(place)).is_integer()]
        for place in powers or within[-1:]:
            at = scale.transform([place])[0]
            if inches * abs(at - last) >= _APART:
                labelled, last = [*labelled, place], at
    axis.set_xticks(labelled, [number(tick, None) if tick else "0" for tick in labelled])
    axis.set_xticks([place for place in beyond if limits[0] <= place <= limits[1]], minor=True)
    axis.set_xlim(limits)
    return limits[0], limits[1]


def order_of(table: pd.DataFrame, column: str) -> list[str]:
    """Return the values of a column, each once, as they come."""
    return list(dict.fromkeys(table[column]))


def _height(row: Row) -> float:
    if row.heading:
        return row.lines + 0.35
    return row.lines + (STRIPE + 0.15 if row.extent else 0.3)


def _names_beside(row: Row) -> list[str]:
    return wrapped(row.name, _NAME_BESIDE)


def _height_beside(row: Row) -> float:
    lines = max(len(_names_beside(row)), len(wrapped(row.numbers, _NUMBERS)))
    return lines + (0.35 if row.heading else STRIPE - 1)


def _write(axis: Any, row: Row, place: float) -> None:
    color = QUIET if row.quiet else INK
    style: dict[str, Any] = {
        "va": "top", "fontsize": SMALL, "annotation_clip": False, "linespacing": 1.25, "zorder": 7, "color": color,
        "xycoords": ("axes fraction", "data"), "textcoords": "offset points",
        "fontweight": "bold" if row.heading else "normal",
    }  # fmt: skip
    axis.annotate("\n".join(row.names), (0, place), (3, 0), ha="left", **style)
    if row.numbers:
        axis.annotate("\n".join(wrapped(row.numbers, _NUMBERS)), (1, place), (-3, 0), ha="right", **style)


def _draw(axis: Any, row: Row, top: float, limits: tuple[float, float]) -> None:
    low, high = limits
    bottom, middle = top + STRIPE - 0.15, top + STRIPE / 2 - 0.08
    if row.margin:
        axis.fill_betweenx([top, bottom], -row.margin, row.margin, color=_BAND, linewidth=0, zorder=0, label="margin")
    axis.plot([low, high], [middle] * 2, color=FAINT, linewidth=0.4, zorder=1, label="guide")
    axis.plot([0, 0], [top, bottom], color=QUIET, linewidth=0.8, zorder=1, label="zero")
    seeds = [value for value in row.points if low <= value <= high]
    axis.plot(seeds, [middle] * len(seeds), "o", color=QUIET, markersize=3.2, alpha=0.6, markeredgewidth=0, zorder=4)
    color = QUIET if row.quiet else row.color
    if row.mark:
        axis.annotate(
            row.mark, (1, middle), (1.5, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="center", fontsize=SMALL,
        )  # fmt: skip
    ends = (row.mean, row.mean) if math.isnan(row.low) else (row.low, row.high)
    interval(axis, middle, ends, limits, reach=row.points, color=color)
    if low <= row.mean <= high:
        face = color if row.filled else "white"
        marker = SAME if row.same else "D"
        axis.plot([row.mean], [middle], marker, color=color, markerfacecolor=face, markersize=4.2, zorder=5)
    elif not math.isnan(row.mean):  # an arrow alone would not say how far
        at_left = row.mean < low
        text = number(row.mean, digits_for(row.mean) if math.isnan(row.low) else digits_for(row.low, row.high))
        axis.annotate(
            text, (low if at_left else high, middle), (6 if at_left else -6, 0), textcoords="offset points",
            ha="left" if at_left else "right", va="center", fontsize=SMALL, color=color, zorder=7,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip
