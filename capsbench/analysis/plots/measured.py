"""The plot of a protocol that gives curves: axes for each experiment and curve, a line per variant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from capsbench.analysis.measures import Measures
from capsbench.analysis.plots.curves import in_parts
from capsbench.analysis.plots.panels import Panel, lay_out, nothing, plain, title_of, wrapped
from capsbench.analysis.plots.style import QUIET, SMALL, Look, handle, looks, styled
from capsbench.study import Plan

_COLUMNS = 2
_HEIGHT, _BELOW, _ABOVE = 1.05, 0.48, 0.14  # inches; below: the axis label in two lines; above: the title of the axes
_LETTERS = 25  # in a line as wide as one of two axes
_NOTE = "Mean over the seeds; the band goes from the lowest seed to the highest."
_MOST_TICKS = 5
_EACH = " Where seeds have values at different places, each has a line of its own."
_UNEVEN = " Where an axis has at most five values, unevenly spaced, they are drawn at equal distances."
_CONFIDENCE = "confidence"  # the x axis of reliability diagrams: a calibrated network lies on the diagonal


Seeds = Sequence[tuple[np.ndarray, np.ndarray]]  # x and y of each


@dataclass(frozen=True)
class _Drawing:
    """What one pair of axes shows. lines: by variant. every: those of all variants of the experiment."""

    name: str
    x_label: str
    y_label: str
    lines: Mapping[str, Seeds]
    every: Mapping[str, Seeds]

    @property
    def seeds(self) -> Seeds:
        """The curves of all seeds of all variants of the experiment."""
        return [pair for seeds in self.every.values() for pair in seeds]

    @property
    def places(self) -> np.ndarray:
        """Where the curves have values."""
        return np.unique(np.concatenate([x for x, _ in self.seeds]))

    @property
    def is_reliability(self) -> bool:
        """Whether both axes have the same scale."""
        return self.x_label.startswith(_CONFIDENCE)

    @property
    def is_uneven(self) -> bool:
        """Whether places are few, and some so near to one another that they stand equally far apart instead."""
        few = not self.is_reliability and 2 < len(self.places) <= _MOST_TICKS
        return bool(few and np.diff(self.places).min() < np.ptp(self.places) / _MOST_TICKS)


@styled
def plot_measured(name: str, plan: Plan, runs: pd.DataFrame, measures: Measures, note: str = _NOTE) -> Figure:
    """Draw the curves of a protocol: the mean over the seeds, with a band from the lowest to the highest.

    A curve that is 0 for all variants of an experiment is not drawn: the note names it.

    Args:
        name: of the protocol.
        plan: the study.
        runs: from `collect` or `read_runs`.
        measures: from `read_measures` or `load_measures`.
        note: stands below the figure.
    """
    styles = looks(plan)
    labels = {(row["experiment"], row["variant"]): row["label"] for row in runs.to_dict("records")}
    panels: list[Panel] = []
    rows: list[list[_Drawing]] = []
    left_out: dict[str, list[str]] = {}  # by experiment
    for experiment in plan.study.experiments:
        found = _curves(name, experiment, plan, measures)
        if found:
            left_out[experiment] = _at_zero(found)
        every = {curve: _lines(found, curve) for curve in _names(found)}
        for part, which in in_parts(list(found), styles) if found else ():
            own = {variant: found[variant] for variant in part}
            drawings = [
                _Drawing(curve, x_label, y_label, _lines(own, curve), every[curve])
                for curve, (x_label, y_label) in _names(own).items()
                if curve not in left_out[experiment]
            ]
            legend = [handle(styles[variant], labels[experiment, variant]) for variant in part]
            for start in range(0, len(drawings), _COLUMNS):
                title = "" if start else title_of(plan, experiment, runs) + which
                is_last = start + _COLUMNS >= len(drawings)
                panels.append(Panel(title, _HEIGHT, _BELOW, legend if is_last else (), above=_ABOVE))
                rows.append(drawings[start : start + _COLUMNS])
    if not panels:
        return nothing(f"no finished run has curves of '{name}'")
    note += _on_places(list(chain(*rows))) + _named(left_out, plan)
    figure, axes = lay_out(panels, columns=_COLUMNS, left=0.48, gap=0.58, note=note)
    for places, drawings in zip(axes, rows, strict=True):
        for axis, drawing in zip(places, drawings, strict=False):
            _draw(axis, drawing, styles)
        for axis in places[len(drawings) :]:
            axis.remove()
    return figure


def _curves(name: str, experiment: str, plan: Plan, measures: Measures) -> dict[str, list[Sequence[Mapping[str, Any]]]]:
    """Return the curves of each variant of an experiment, a list per seed."""
    found: dict[str, list[Sequence[Mapping[str, Any]]]] = {}
    for run in plan.runs:
        result = measures.get(run.key, {}).get(name, {})
        if run.experiment == experiment and result.get("curves"):
            found.setdefault(run.variant, []).append(result["curves"])
    return found


def _names(found: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> dict[str, tuple[str, str]]:
    """Return the names of all curves, with the labels of their axes."""
    return {
        curve["name"]: (curve["x_label"], curve["y_label"])
        for seeds in found.values() for curves in seeds for curve in curves
    }  # fmt: skip


def _lines(found: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]], name: str) -> dict[str, Seeds]:
    """Return the curve of one name of each variant that has it."""
    lines: dict[str, Seeds] = {}
    for variant, seeds in found.items():
        own = [curve for curves in seeds for curve in curves if curve["name"] == name and curve["x"]]
        if own:
            lines[variant] = [(np.array(curve["x"]), np.array(curve["y"])) for curve in own]
    return lines


def _differ(seeds: Seeds) -> bool:
    return any(not np.array_equal(x, seeds[0][0]) for x, _ in seeds)


def _on_places(drawings: Sequence[_Drawing]) -> str:
    """Return what is said of the x axes, with a space before it."""
    note = _EACH if any(_differ(seeds) for drawing in drawings for seeds in drawing.lines.values()) else ""
    return note + (_UNEVEN if any(drawing.is_uneven for drawing in drawings) else "")


def _is_seen(lines: Mapping[str, Seeds]) -> bool:
    return any(y.any() for seeds in lines.values() for _, y in seeds)


def _at_zero(found: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> list[str]:
    """Return the curves that are 0 for all variants; none where that would leave no axes."""
    unseen = [name for name in _names(found) if not _is_seen(_lines(found, name))]
    return unseen if len(unseen) < len(_names(found)) else []


def _named(left_out: Mapping[str, Sequence[str]], plan: Plan) -> str:
    """Return what is said of curves that are not drawn, with a space before it; where, if that is not everywhere."""
    titles: dict[str, list[str]] = {}
    for experiment, names in left_out.items():
        for name in names:
            titles.setdefault(name.replace("_", " "), []).append(plan.data[experiment].facts.title)
    where = {name: f" ({', '.join(own)})" if len(own) < len(left_out) else "" for name, own in titles.items()}
    each = ", ".join(name + place for name, place in where.items())
    return f" Not drawn, as all values are 0: {each}." if each else ""


def _set_scale(axis: Any, drawing: _Drawing) -> None:
    """Give all axes of an experiment and a curve one scale, with ticks where values are if they are few."""
    places = drawing.places
    if len(places) <= _MOST_TICKS and not drawing.is_reliability:
        axis.set_xticks(range(len(places)) if drawing.is_uneven else places, [plain(place) for place in places])
    elif np.array_equal(places, np.round(places)):
        axis.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    values = np.concatenate([y for _, y in drawing.seeds])
    values = values[np.isfinite(values)]
    if not values.any():
        axis.set(ylim=(-0.05, 1), yticks=[0, 1])
        return
    low, high = float(values.min()), float(values.max())
    edge = 0.05 * (high - low) or 0.05 * abs(high)
    axis.set_ylim(low - edge, high + edge)


def _draw(axis: Any, drawing: _Drawing, styles: Mapping[str, Look]) -> None:
    lines: Mapping[str, Seeds] = drawing.lines
    if drawing.is_uneven:
        lines = {name: [(np.searchsorted(drawing.places, x), y) for x, y in seeds] for name, seeds in lines.items()}
    for place, (variant, seeds) in enumerate(lines.items()):
        look, first = styles[variant], seeds[0][0]
        step = max(1, len(first) // 6)
        marked = {"markevery": (place % step, step), "markersize": 3.0, "label": variant, "zorder": 4}
        if _differ(seeds):  # no mean of values at different x
            for x, y in seeds:
                axis.plot(x, y, **(marked | look.line() | {"linewidth": 0.7}))
            continue
        every = np.stack([y for _, y in seeds])  # [seeds, points]
        axis.plot(first, every.mean(axis=0), **marked, **look.line())
        if len(every) > 1:
            axis.fill_between(first, every.min(axis=0), every.max(axis=0), color=look.color, alpha=0.12, lw=0)
    _set_scale(axis, drawing)
    if drawing.is_reliability:
        axis.axline((0, 0), slope=1, color=QUIET, linewidth=0.6, zorder=1)
        axis.set(xlim=(-4, 104), ylim=(-4, 104))
    axis.set_title("\n".join(wrapped(drawing.name.replace("_", " "), _LETTERS)), fontsize=SMALL, loc="left", pad=3)
    x_label, y_label = ("\n".join(wrapped(text, _LETTERS)) for text in (drawing.x_label, drawing.y_label))
    axis.set(xlabel=x_label, ylabel=y_label)
