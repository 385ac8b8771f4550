"""How routing layers grow with their sizes, from a measurement of `capsbench bench`: a page wide."""

import math
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from capsbench.analysis.plots.panels import make_log, nothing, plain
from capsbench.analysis.plots.style import FAINT, FONT, PAGE, SMALL, styled

AXES = {
    "inputs": "input capsules",
    "parents": "output capsules",
    "iterations": "iterations",
    "batch": "images per batch",
}
MEASURES = {"fastest_ms": "fastest pass\n(ms, log scale)", "peak_mb": "peak memory\n(MB, log scale)"}
_LOOKS: dict[str, dict[str, Any]] = {
    "dynamic": {"color": "#0072B2", "marker": "o", "linestyle": "-", "label": "dynamic routing"},
    "em": {"color": "#D55E00", "marker": "s", "linestyle": (0, (4, 1.5)), "label": "EM routing"},
    "uniform": {"color": "#000000", "marker": "^", "linestyle": (0, (1, 1.2)), "label": "uniform: votes alone"},
}
_PROPORTIONAL: dict[str, Any] = {"color": FAINT, "linestyle": "-", "linewidth": 0.8, "marker": ""}
_LETTER = 0.058  # inches: a digit of a tick
_LEFT, _GAP, _RIGHT, _TOP, _BETWEEN, _BOTTOM, _HEIGHT = 0.62, 0.34, 0.14, 0.22, 0.2, 0.62, 1.35  # inches


@styled
def plot_growth(frame: pd.DataFrame) -> Figure:
    """Draw time, and on a GPU peak memory, against each size, both axes logarithmic; the other sizes are those named.

    Args:
        frame: the columns `group`, `name`, `fastest_ms`, `peak_mb` and AXES.
    """
    own = frame[(frame["group"] == "growth") & frame["fastest_ms"].notna()]
    if own.empty:
        return nothing("there are no measurements of growth")
    base = {axis: int(own[axis].dropna().mode().iloc[0]) for axis in AXES}  # each size is varied alone
    measures = [measure for measure in MEASURES if own[measure].notna().any()]
    height = _TOP + len(measures) * _HEIGHT + (len(measures) - 1) * _BETWEEN + _BOTTOM
    figure = plt.figure(figsize=(PAGE, height))
    width = (PAGE - _LEFT - _RIGHT - (len(AXES) - 1) * _GAP) / len(AXES)
    for row, measure in enumerate(measures):
        limits = _limits(own[measure].astype(float))
        bottom = height - _TOP - (row + 1) * _HEIGHT - row * _BETWEEN
        for column, axis in enumerate(AXES):
            place = (_LEFT + column * (width + _GAP)) / PAGE, bottom / height, width / PAGE, _HEIGHT / height
            panel = figure.add_axes(place, label=f"{row}.{column}")
            _draw(panel, own, axis, measure, base, limits)
            panel.set_ylabel(MEASURES[measure] if column == 0 else "")
            panel.set_xlabel(f"{AXES[axis]} (log scale)" if row == len(measures) - 1 else "")
            if row == 0:
                others = ", ".join(f"{_SHORT[other]} {base[other]}" for other in AXES if other != axis)
                panel.set_title(others, fontsize=SMALL - 0.5, pad=3)
    names = [name for name in _LOOKS if name in set(own["name"])]
    handles = [Line2D([], [], **_LOOKS[name]) for name in names]
    handles.append(Line2D([], [], label="proportional", **_PROPORTIONAL))
    figure.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.5, 0.0), ncols=len(handles), frameon=False,
        fontsize=FONT, handlelength=2.6,
    )  # fmt: skip
    return figure


_SHORT = {"inputs": "in", "parents": "out", "iterations": "iterations", "batch": "batch"}


def _limits(values: pd.Series) -> tuple[float, float]:
    found = values[values > 0]
    return 0.7 * found.min(), 1.4 * found.max()


def _draw(
    panel: Any, own: pd.DataFrame, axis: str, measure: str, base: dict[str, int], limits: tuple[float, float]
) -> None:
    """Draw the lines of one size: rows whose other sizes are those of the base."""
    for other in AXES:
        if other != axis:
            own = own[own[other].isna() | (own[other] == base[other])]
    values = sorted(own[axis].dropna().astype(int).unique())
    panel.set_xlim(*_ends(values))
    panel.set_ylim(*limits)
    make_log(panel, "x")
    make_log(panel, "y")
    panel.set_xticks(values, _labels(values, panel.get_position().width * PAGE))
    for name, look in _LOOKS.items():
        line = own[(own["name"] == name) & own[measure].notna()].sort_values(axis)
        if line.empty:
            continue
        if line[axis].isna().any():  # a routing without iterations
            panel.axhline(float(line[measure].iloc[0]), **(look | {"marker": ""}), linewidth=1.1)
            continue
        panel.plot(line[axis].astype(float), line[measure].astype(float), **look)
    _draw_proportional(panel, values, limits)


def _labels(values: list[int], inches: float) -> list[str]:
    """Return the numbers of ticks on a logarithmic axis that is so long, empty where they would touch the next one."""
    left, right = _ends(values)
    labels: list[str] = []
    edge = math.inf
    for value in reversed(values):
        text = plain(value)
        place, half = inches * math.log(value / left) / math.log(right / left), _LETTER * len(text) / 2
        has_room = place + half < edge
        labels.append(text if has_room else "")
        if has_room:
            edge = place - half - _LETTER
    return labels[::-1]


def _ends(values: list[int]) -> tuple[float, float]:
    """Return the ends of a logarithmic axis."""
    margin = (values[-1] / values[0]) ** 0.06
    return values[0] / margin, values[-1] * margin


def _draw_proportional(panel: Any, values: list[int], limits: tuple[float, float]) -> None:
    """Draw faint lines along which what is measured grows as the size does."""
    low = limits[0] / (values[-1] / values[0])
    while low < limits[1]:
        ends = [low, low * values[-1] / values[0]]
        panel.plot([values[0], values[-1]], ends, zorder=1, label="proportional", **_PROPORTIONAL)
        low *= 10
