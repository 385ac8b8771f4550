"""Differences between variants at equal seeds, a row per contrast, grouped by family, a panel per experiment.

Many contrasts fill a page, with the names on the left of the panels, which stand side by side if they are few.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.contrasts import (
    compare,
    contrasts_of_begun,
    digits_for,
    family_title,
    interval_of_difference,
    is_shown,
    number,
)
from capsbench.analysis.plots.forest import (
    NAMES_BESIDE,
    NUMBERS_BESIDE,
    Row,
    beside_height,
    draw_beside,
    draw_forest,
    forest_height,
    order_of,
)
from capsbench.analysis.plots.panels import LINE, Panel, lay_out, nothing, title_of, wrapped
from capsbench.analysis.plots.style import INK, PAGE, QUIET, styled
from capsbench.analysis.published_values import read_published
from capsbench.study import Data, Plan

DEFAULT_MARGIN = 0.1  # points, where no paper has a value
MANY = 25  # contrasts, which below one another would be a strip longer than a page
_MOST_BESIDE = 4  # panels
_TITLE = 16.0  # letters in an inch
_COMPARED = ("same", "better", "worse", "undecided")


@styled
def plot_contrasts(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """Forest plot: the mean difference of each contrast with its 95 % t interval, and the difference at each seed."""
    if not plan.contrasts:
        return nothing("the study has no contrasts")
    table = compare(contrasts_of_begun(plan, runs), runs)
    if not table["n"].any():
        return nothing("no seed with results of both variants of a contrast")
    there = cells(plan, runs)
    margins = {
        name: margin_of(plan.data[name], [cell for cell in there if cell.experiment == name])
        for name in order_of(table, "experiment")
    }
    many = len(table.drop_duplicates(["family", "contrast"])) >= MANY
    if many and len(margins) <= _MOST_BESIDE:
        return _beside(plan, table, margins, runs)
    panels, layouts = [], []
    for experiment, margin in margins.items():
        layouts.append(_rows(plan, table[table["experiment"] == experiment], margin))
        title = "\n".join([title_of(plan, experiment, runs), *_band(margin, layouts[-1])])
        panels.append(Panel(title, (beside_height if many else forest_height)(layouts[-1]), below=0.24))
    legend = _legend(list(chain(*layouts)))
    panels[-1] = Panel(panels[-1].title, panels[-1].height, below=0.46, legend=legend)
    note = "On the right: mean difference [95 % interval] in points. An arrow: goes on beyond the panel."
    if many:
        figure, axes = lay_out(panels, left=NAMES_BESIDE, right=NUMBERS_BESIDE, note=note, width=PAGE)
    else:
        figure, axes = lay_out(panels, left=0.17, note=note)
    for (axis,), layout in zip(axes, layouts, strict=True):
        if many:
            draw_beside([axis], [layout])
        else:
            draw_forest(axis, layout)
    axes[-1][0].set_xlabel("difference in test error (points), first minus second;\nleft of 0: the first is better")
    return figure


def _beside(plan: Plan, table: pd.DataFrame, margins: Mapping[str, "Margin"], runs: pd.DataFrame) -> Figure:
    """Draw the panels side by side; an experiment without a contrast has an empty row there."""
    layouts = []
    for experiment, margin in margins.items():
        own = table[table["experiment"] == experiment].set_index(["family", "contrast"], drop=False)
        rows = []
        for family in order_of(table, "family"):
            rows.append(Row(family_title(plan, family), heading=True))
            for name in order_of(table[table["family"] == family], "contrast"):
                found = own.loc[[(family, name)]].itertuples() if (family, name) in own.index else []
                drawn = [replace(_row(contrast, margin), numbers="") for contrast in found]
                rows += drawn or [Row(name, quiet=True)]
        layouts.append(rows)
    titles = [
        "\n".join([title_of(plan, name, runs), *_band(margin, rows, brief=True)])
        for (name, margin), rows in zip(margins.items(), layouts, strict=True)
    ]
    return side_by_side(titles, layouts)


def side_by_side(titles: Sequence[str], layouts: Sequence[Sequence[Row]]) -> Figure:
    """Draw panels side by side on a page, with the names of their rows once on the left.

    Args:
        titles: of the panels.
        layouts: the rows of each panel, equal but for their differences.
    """
    letters = round(_TITLE * (PAGE - NAMES_BESIDE) / len(layouts))
    heads = [wrapped(title, letters) for title in titles]
    legend = _legend(list(chain(*layouts)))
    above = LINE * max(map(len, heads)) + 0.07
    panel = Panel("", beside_height(layouts[0]), below=0.34, legend=legend, above=above)
    note = (
        "Difference in test error at equal seeds, the first minus the second: left of 0 the first is better. An arrow: "
        "goes on beyond the panel."
    )
    figure, (axes,) = lay_out([panel], len(layouts), left=NAMES_BESIDE, gap=0.12, note=note, width=PAGE)
    draw_beside(axes, layouts)
    for axis, head in zip(axes, heads, strict=True):
        axis.annotate(
            "\n".join(head), (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontweight="bold",
            linespacing=1.15,
        )  # fmt: skip
        axis.set_xlabel("points")
    return figure


def _band(margin: "Margin", rows: Sequence[Row], brief: bool = False) -> list[str]:
    """Say how wide the band is that counts as no difference, and unless `brief` what it rests on; nothing without."""
    said = f"band: ±{margin.points:g} points" + ("" if brief else f", {margin.source}")
    return [said] if any(row.margin for row in rows) else []


@dataclass(frozen=True)
class Margin:
    """Within how many points two errors count as the same, 0 where nothing says so; and what it rests on.

    variants: those that it is about; None for all.
    """

    points: float = 0.0
    source: str = ""
    variants: frozenset[str] | None = None

    def of(self, *variants: str) -> float:
        """Return the margin of a difference between variants; 0 where it is about none of them."""
        return self.points if self.variants is None or self.variants.intersection(variants) else 0.0


def margin_of(data: Data, there: Sequence[Cell]) -> Margin:
    """Return the margin of differences between variants.

    It is the smallest margin of the published values that variants can be compared with, for differences from one of
    these. A margin of 0.05 points that was written down for an error of 0.25 % says nothing of a network at 20 %: where
    papers have values for the task and nothing can be compared with them, there is none. Where papers have no value,
    this project chose one.

    Args:
        data: of the experiment.
        there: its cells.
    """
    compared = {cell.variant: cell.published for cell in there if cell.published and cell.verdict.word in _COMPARED}
    if compared:
        least = min(compared.values(), key=lambda value: value.margin)
        source = f"the margin of {least.paper}'s {least.error:g} %"
        return Margin(round(least.margin, 4), source, frozenset(compared))
    return Margin() if _has_values(data) else Margin(DEFAULT_MARGIN, "chosen, as no paper has a value here")


def _has_values(data: Data) -> bool:
    """Tell whether papers have a value for a task."""
    options = data.options.model_dump()
    return any(
        value.data_set == data.name
        and value.attack is None
        and all(options.get(name) == wanted for name, wanted in value.requirements.get("task", {}).items())
        for value in read_published()
    )


def _rows(plan: Plan, table: pd.DataFrame, margin: Margin) -> list[Row]:
    rows = []
    for family in order_of(table, "family"):
        rows.append(Row(family_title(plan, family), heading=True))
        rows += [_row(found, margin) for found in table[table["family"] == family].itertuples()]
    return rows


def _row(found: Any, margin: Margin) -> Row:
    return Row(
        found.contrast, _in_numbers(found), found.mean, found.low, found.high,
        points=list(found.differences.values()), margin=margin.of(found.a, found.b),
        filled=is_shown(found), quiet=found.n == 0 or bool(found.at_chance),
    )  # fmt: skip


def _in_numbers(row: Any) -> str:
    seeds = "" if row.n in (0, row.planned) else f"\n{row.n} of {row.planned} seeds"
    seeds += f"\nat chance in {row.at_chance} of {row.planned}" if row.at_chance else ""
    if math.isnan(row.low):
        return str(row.shows).split(" (")[0].split(":")[0].split(";")[0] + seeds
    mean = number(row.mean, digits_for(row.low, row.high))
    return f"{mean} {interval_of_difference(row.low, row.high)}".replace(" ", "\u00a0") + seeds


def _legend(rows: Sequence[Row]) -> list[Any]:
    """Explain what the rows have."""
    form: dict[str, Any] = {"color": INK, "linewidth": 1.0, "marker": "D", "markersize": 4.2}
    shown: list[Any] = [
        Line2D([], [], **form, label="mean, 95 % interval: shown, Holm p < 0.05"),
        Line2D([], [], **form, markerfacecolor="white", label="not shown"),
        Line2D([], [], color=QUIET, linestyle="", marker="o", markersize=3.2, alpha=0.6, label="a seed"),
    ]
    if any(row.quiet and row.extent for row in rows):
        form = {**form, "color": QUIET, "markerfacecolor": "white"}
        shown.append(Line2D([], [], **form, label="a network stayed at chance"))
    if any(row.margin for row in rows):
        shown.append(Patch(color="0.87", linewidth=0, label="counts as no difference"))
    return shown
