"""Differences between variants at equal seeds, a row per contrast, grouped by family, a panel per experiment."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from capsbench.analysis.contrasts import SIGNIFICANT, compare, digits_for, number
from capsbench.analysis.plots.forest import Row, draw_forest, forest_height, order_of
from capsbench.analysis.plots.panels import Panel, lay_out, nothing, title_of
from capsbench.analysis.plots.style import INK, QUIET, styled
from capsbench.analysis.published_values import read_published
from capsbench.study import Data, Plan

DEFAULT_MARGIN = 0.1  # points, where no paper has a value


@styled
def plot_contrasts(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """Forest plot: the mean difference of each contrast with its 95 % t interval, and the difference at each seed."""
    if not plan.contrasts:
        return nothing("the study has no contrasts")
    table = compare(plan.contrasts, runs)
    if not table["n"].any():
        return nothing("no seed with results of both variants of a contrast")
    panels, layouts = [], []
    for experiment in order_of(table, "experiment"):
        margin, source = margin_of(plan.data[experiment])
        layouts.append(_rows(plan, table[table["experiment"] == experiment], margin))
        title = f"{title_of(plan, experiment, runs)}\nband: ±{margin:g} points, {source}"
        panels.append(Panel(title, forest_height(layouts[-1]), below=0.24))
    panels[-1] = Panel(panels[-1].title, panels[-1].height, below=0.46, legend=_legend())
    note = "On the right: mean difference [95 % interval] in points. An arrow: goes on beyond the panel."
    figure, axes = lay_out(panels, left=0.17, note=note)
    for (axis,), layout in zip(axes, layouts, strict=True):
        draw_forest(axis, layout)
    axes[-1][0].set_xlabel("difference in test error (points), first minus second;\nleft of 0: the first is better")
    return figure


def margin_of(data: Data) -> tuple[float, str]:
    """Return the margin in points within which two errors on a data set count as the same, and what it rests on.

    It is the smallest margin of the values that papers have for this task, else one that this project chose.
    """
    options = data.options.model_dump()
    values = [
        value
        for value in read_published()
        if value.data_set == data.name
        and value.attack is None
        and all(options.get(name) == wanted for name, wanted in value.requirements.get("task", {}).items())
    ]
    if not values:
        return DEFAULT_MARGIN, "chosen, as no paper has a value here"
    least = min(values, key=lambda value: value.margin)
    return round(least.margin, 4), f"the margin of {least.paper}'s {least.error:g} %"


def _rows(plan: Plan, table: pd.DataFrame, margin: float) -> list[Row]:
    rows = []
    for family in order_of(table, "family"):
        rows.append(Row(_family(plan, family), heading=True))
        rows += [_row(found, margin) for found in table[table["family"] == family].itertuples()]
    return rows


def _row(found: Any, margin: float) -> Row:
    return Row(
        found.contrast, _in_numbers(found), found.mean, found.low, found.high,
        points=list(found.differences.values()), margin=margin, filled=bool(found.p_holm < SIGNIFICANT),
        quiet=found.n == 0,
    )  # fmt: skip


def _family(plan: Plan, family: str) -> str:
    """Return the heading of a family; one that stands for an axis of a grid has the label of its variant."""
    base, _, axis = family.partition(": ")
    variant = plan.study.variants.get(base)
    if not axis or variant is None:
        return family.replace("_", " ")
    return f"{variant.label or base}: {axis.replace('.', ' ').replace('_', ' ')}"


def _in_numbers(row: Any) -> str:
    seeds = "" if row.n in (0, row.planned) else f"\n{row.n} of {row.planned} seeds"
    if math.isnan(row.low):
        text = str(row.shows).split(" (")[0].split(":")[0].split(";")[0]
        return text.replace("-", "−") + seeds
    digits = digits_for(row.low, row.high)
    mean, low, high = (number(value, digits) for value in (row.mean, row.low, row.high))
    return f"{mean}\u00a0[{low},\u00a0{high}]".replace("-", "−") + seeds


def _legend() -> list[Any]:
    form: dict[str, Any] = {"color": INK, "linewidth": 1.0, "marker": "D", "markersize": 4.2}
    return [
        Line2D([], [], **form, label="mean, 95 % interval, Holm p < 0.05"),
        Line2D([], [], **form, markerfacecolor="white", label="p not below that, or none"),
        Line2D([], [], color=QUIET, linestyle="", marker="o", markersize=3.2, alpha=0.6, label="a seed"),
        Patch(color="0.87", linewidth=0, label="counts as no difference"),
    ]
