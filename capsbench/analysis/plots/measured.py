"""The plot of a protocol that gives curves: a panel per experiment and curve, a line per variant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from capsbench.analysis.measures import Measures
from capsbench.analysis.plots.curves import in_parts
from capsbench.analysis.plots.panels import Panel, lay_out, nothing, title_of
from capsbench.analysis.plots.style import QUIET, Look, handle, looks, styled
from capsbench.study import Plan

_HEIGHT = 1.4
_CONFIDENCE = "confidence"  # the x axis of reliability diagrams: a calibrated network lies on the diagonal


@dataclass(frozen=True)
class _Line:
    """The curves of a variant: x and y of each seed."""

    variant: str
    label: str
    seeds: Sequence[tuple[np.ndarray, np.ndarray]]


@styled
def plot_measured(name: str, plan: Plan, runs: pd.DataFrame, measures: Measures) -> Figure:
    """Draw the curves of a protocol: the mean over the seeds, with a band from the lowest to the highest.

    Args:
        name: of the protocol.
        plan: the study.
        runs: from `collect` or `read_runs`.
        measures: from `read_measures` or `load_measures`.
    """
    styles = looks(plan)
    labels = {(row["experiment"], row["variant"]): row["label"] for row in runs.to_dict("records")}
    panels, drawn = [], []
    for experiment in plan.study.experiments:
        variants = list(dict.fromkeys(run.variant for run in plan.runs if run.experiment == experiment))
        found = _curves(name, experiment, plan, measures)
        for curve, (x_label, y_label) in _names(found).items():
            there = [
                _Line(variant, labels[experiment, variant], own)
                for variant in variants
                if (own := _of_name(found.get(variant, []), curve))
            ]
            for part, which in in_parts([line.variant for line in there]):
                lines = [line for line in there if line.variant in part]
                title = f"{title_of(plan, experiment, runs)}: {curve}{which}"
                legend = [handle(styles[line.variant], line.label) for line in lines]
                panels.append(Panel(title, _HEIGHT, legend=legend))
                drawn.append((lines, x_label, y_label))
    if not panels:
        return nothing(f"no finished run has curves of '{name}'")
    panels = [_without_repeats(panels, place) for place in range(len(panels))]
    note = (
        "Mean over the seeds; the band goes from the lowest seed to the highest. Where seeds have values at different "
        "places, each has a line of its own."
    )
    figure, axes = lay_out(panels, left=0.5, note=note)
    for (axis,), (lines, x_label, y_label) in zip(axes, drawn, strict=True):
        _draw(axis, lines, styles)
        if x_label.startswith(_CONFIDENCE):
            axis.axline((0, 0), slope=1, color=QUIET, linewidth=0.6, zorder=1)
        axis.set(xlabel=x_label, ylabel=y_label)
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


def _of_name(seeds: Sequence[Sequence[Mapping[str, Any]]], name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return x and y of the curve of this name in each seed that has it."""
    own = [curve for curves in seeds for curve in curves if curve["name"] == name and curve["x"]]
    return [(np.array(curve["x"]), np.array(curve["y"])) for curve in own]


def _without_repeats(panels: Sequence[Panel], place: int) -> Panel:
    """Leave a legend out where the panel below has the same."""
    own = panels[place]
    below = panels[place + 1] if place + 1 < len(panels) else None
    same = below is not None and [h.get_label() for h in own.legend] == [h.get_label() for h in below.legend]
    return Panel(own.title, own.height, own.below) if same else own


def _draw(axis: Any, lines: Sequence[_Line], styles: Mapping[str, Look]) -> None:
    for place, line in enumerate(lines):
        look, first = styles[line.variant], line.seeds[0][0]
        step = max(1, len(first) // 6)
        marked = {"markevery": (place % step, step), "markersize": 3.4, "label": line.variant, "zorder": 4}
        if any(not np.array_equal(x, first) for x, _ in line.seeds):  # no mean of values at different x
            for x, y in line.seeds:
                axis.plot(x, y, **(marked | look.line() | {"linewidth": 0.7}))
            continue
        every = np.stack([y for _, y in line.seeds])  # [seeds, points]
        axis.plot(first, every.mean(axis=0), **marked, **look.line())
        if len(every) > 1:
            axis.fill_between(first, every.min(axis=0), every.max(axis=0), color=look.color, alpha=0.12, lw=0)
