"""The plot of a protocol that gives numbers alone: axes for each number of its table, a row per network."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from capsbench.analysis.measures import Measures
from capsbench.analysis.plots.panels import LINE, Panel, lay_out, make_log, nothing, spans_much, title_of, wrapped
from capsbench.analysis.plots.style import INK, SMALL, Look, looks, styled
from capsbench.registry import PROTOCOLS
from capsbench.study import Plan

_COLUMNS = 2
_LEFT, _GAP, _BELOW = 1.24, 0.14, 0.2  # inches
_LETTERS, _TITLE_LETTERS = 22, 19  # in a line of a label, and of the title of axes
_NOTE = "Marks: seeds; line: their mean. Panels of the same unit or measure have the same scale."
_LOG_NOTE = " Scales with a unit other than % are logarithmic where their values span more than a factor of four."

Values = Mapping[str, Sequence[float]]  # by variant, of its seeds


@styled
def plot_values(name: str, plan: Plan, runs: pd.DataFrame, measures: Measures) -> Figure:
    """Draw the numbers of a protocol's table, each seed and the mean.

    Args:
        name: of the protocol.
        plan: the study.
        runs: from `collect` or `read_runs`.
        measures: from `read_measures` or `load_measures`.
    """
    labels = {(row["experiment"], row["variant"]): row["label"] for row in runs.to_dict("records")}
    headings: Mapping[str, str] = PROTOCOLS[name].facts["shows"]
    panels: list[Panel] = []
    rows: list[tuple[list[tuple[str, Values]], dict[str, str], dict[str, list[float]]]] = []
    for experiment in plan.study.experiments:
        found = {heading: _values(name, key, experiment, plan, measures) for key, heading in headings.items()}
        drawings = [(heading, values) for heading, values in found.items() if values]
        variants = [v for v in dict.fromkeys(run.variant for run in plan.runs) if any(v in own for _, own in drawings)]
        names = {variant: "\n".join(wrapped(labels[experiment, variant], _LETTERS)) for variant in variants}
        scales: dict[str, list[float]] = {}
        for heading, values in drawings:
            scales.setdefault(_unit(heading), []).extend(value for seeds in values.values() for value in seeds)
        for start in range(0, len(drawings), _COLUMNS):
            title, here = "" if start else title_of(plan, experiment, runs), drawings[start : start + _COLUMNS]
            above = LINE * max(len(wrapped(heading, _TITLE_LETTERS)) for heading, _ in here)
            panels.append(Panel(title, sum(map(_height, names.values())), _BELOW, above=above))
            rows.append((here, names, scales))
    if not panels:
        return nothing(f"no finished run has a result of '{name}'")
    is_log = any(_is_log(scales[unit], unit) for *_, scales in rows for unit in scales)
    figure, axes = lay_out(panels, columns=_COLUMNS, left=_LEFT, gap=_GAP, note=_NOTE + _LOG_NOTE * is_log)
    styles = looks(plan)
    for places, (drawings, names, scales) in zip(axes, rows, strict=True):
        for place, (axis, (heading, values)) in enumerate(zip(places, drawings, strict=False)):
            _set_rows(axis, names, labelled=place == 0)
            _set_scale(axis, scales[_unit(heading)], _unit(heading))
            _draw(axis, heading, values, list(names), styles)
        for axis in places[len(drawings) :]:
            axis.remove()
    return figure


def _values(name: str, key: str, experiment: str, plan: Plan, measures: Measures) -> Values:
    """Return one number of a protocol by variant; variants without it are not there."""
    found: dict[str, list[float]] = {}
    for run in plan.runs:
        value = measures.get(run.key, {}).get(name, {}).get(key)
        if run.experiment == experiment and isinstance(value, int | float) and math.isfinite(value):
            found.setdefault(run.variant, []).append(float(value))
    return found


def _unit(heading: str) -> str:
    """Return what panels of one scale have in common: "(ms)", or without a unit the first word, as in "R2 of scale"."""
    return "(" + heading.rpartition("(")[2] if heading.endswith(")") else heading.split()[0]


def _set_rows(axis: Any, names: Mapping[str, str], labelled: bool) -> None:
    places, top = [], 0.0
    for text in names.values():
        places.append(top + _height(text) / 2)
        top += _height(text)
    axis.set_ylim(top, 0)
    axis.set_yticks(places, list(names.values()) if labelled else [""] * len(places))
    axis.tick_params(axis="y", length=0)


def _is_log(values: Sequence[float], unit: str) -> bool:
    """Tell whether a scale is logarithmic: that of a unit, but not of shares, of which ratios say little."""
    return unit.startswith("(") and unit != "(%)" and spans_much(values)


def _set_scale(axis: Any, values: Sequence[float], unit: str) -> None:
    low, high = min(values), max(values)
    if _is_log(values, unit):
        axis.set_xlim(0.8 * low, 1.25 * high)
        make_log(axis, "x")
    else:
        edge = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
        axis.set_xlim(low - edge, high + edge)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=3))


def _draw(axis: Any, heading: str, values: Values, variants: Sequence[str], styles: Mapping[str, Look]) -> None:
    for place, variant in zip(axis.get_yticks(), variants, strict=True):
        seeds = values.get(variant, ())
        axis.plot(seeds, [place] * len(seeds), linestyle="", zorder=4, label=variant, **styles[variant].points())
        if len(seeds) > 1:
            axis.plot([sum(seeds) / len(seeds)], [place], "|", color=INK, markersize=9, markeredgewidth=1.1, zorder=5)
    axis.set_title("\n".join(wrapped(heading, _TITLE_LETTERS)), fontsize=SMALL, loc="left", pad=3)


def _height(text: str) -> float:
    """Return the inches of a row with this label."""
    return LINE * (text.count("\n") + 1) + 0.07
