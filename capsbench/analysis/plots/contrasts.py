"""Differences between variants at equal seeds, a row per contrast, grouped by family, a panel per experiment.

Many contrasts fill a page, with the names on the left of the panels, which stand side by side if they are few.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from capsbench.analysis.contrasts import (
    MARK_POST_HOC,
    POST_HOC,
    compare,
    contrasts_of_begun,
    digits_for,
    family_title,
    interval_of_difference,
    is_same,
    is_shown,
    number,
)
from capsbench.analysis.plots.forest import (
    NAMES_BESIDE,
    NUMBERS_BESIDE,
    SAME,
    Row,
    beside_height,
    draw_beside,
    draw_forest,
    forest_height,
    order_of,
)
from capsbench.analysis.plots.panels import LINE, Panel, lay_out, nothing, title_of, wrapped
from capsbench.analysis.plots.style import INK, PAGE, QUIET, styled
from capsbench.study import Plan

MANY = 25  # contrasts, which below one another would be a strip longer than a page
_SCALE = " Scales are linear as far as the median band goes, and logarithmic beyond."
_MOST_BESIDE = 4  # panels
_TITLE = 15.0  # letters in an inch


@styled
def plot_contrasts(plan: Plan, results: Path | None, runs: pd.DataFrame, experiment: str | None = None) -> Figure:
    """Forest plot: the mean difference of each contrast with its 95 % t interval, and the difference at each seed.

    Args:
        plan: the study.
        results: not needed.
        runs: from `collect` or `read_runs`, all of them, since what is shown rests on whole families.
        experiment: the one to draw; None for all.
    """
    if not plan.contrasts:
        return nothing("the study has no contrasts")
    table = compare(contrasts_of_begun(plan, runs), runs)
    table = table if experiment is None else table[table["experiment"] == experiment]
    if table.empty:
        return nothing("the experiment has no contrasts")
    if not table["n"].any():
        return nothing("no seed with results of both variants of a contrast")
    experiments = order_of(table, "experiment")
    many = len(table.drop_duplicates(["family", "contrast"])) >= MANY
    if many and 1 < len(experiments) <= _MOST_BESIDE:
        return _beside(plan, table, experiments, runs)
    panels, layouts = [], []
    for name in experiments:
        layouts.append(_rows(plan, table[table["experiment"] == name]))
        height = (beside_height if many else forest_height)(layouts[-1])
        panels.append(Panel(title_of(plan, name, runs), height, below=0.24))
    legend = _legend(list(chain(*layouts)))
    panels[-1] = Panel(panels[-1].title, panels[-1].height, below=0.46, legend=legend)
    note = f"On the right: mean difference [95 % interval] in points.{_on_scale(many, list(chain(*layouts)))}"
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


def _beside(plan: Plan, table: pd.DataFrame, experiments: Sequence[str], runs: pd.DataFrame) -> Figure:
    """Draw the panels side by side; an experiment without a contrast has an empty row there."""
    layouts = []
    for experiment in experiments:
        own = table[table["experiment"] == experiment].set_index(["family", "contrast"], drop=False)
        rows = []
        for family in order_of(table, "family"):
            rows.append(Row(family_title(plan, family), heading=True))
            for name in order_of(table[table["family"] == family], "contrast"):
                found = own.loc[[(family, name)]].itertuples() if (family, name) in own.index else []
                drawn = [replace(_row(contrast), numbers="") for contrast in found]
                rows += drawn or [Row(name, quiet=True)]
        layouts.append(rows)
    return side_by_side([title_of(plan, name, runs) for name in experiments], layouts)


def side_by_side(titles: Sequence[str], layouts: Sequence[Sequence[Row]], remark: str = "") -> Figure:
    """Draw panels side by side on a page, with the names of their rows once on the left.

    Args:
        titles: of the panels.
        layouts: the rows of each panel, equal but for their differences.
        remark: ends the note below the panels.
    """
    letters = round(_TITLE * (PAGE - NAMES_BESIDE) / len(layouts))
    heads = [wrapped(title, letters) for title in titles]
    legend = _legend(list(chain(*layouts)))
    above = LINE * max(map(len, heads)) + 0.07
    panel = Panel("", beside_height(layouts[0]), below=0.34, legend=legend, above=above)
    note = "Difference in test error at equal seeds, the first minus the second: left of 0 the first is better."
    note += f"{_on_scale(True, list(chain(*layouts)))} {remark}".rstrip()
    figure, (axes,) = lay_out([panel], len(layouts), left=NAMES_BESIDE, gap=0.12, note=note, width=PAGE)
    draw_beside(axes, layouts)
    for axis, head in zip(axes, heads, strict=True):
        axis.annotate(
            "\n".join(head), (0, 1), (0, 3), xycoords="axes fraction", textcoords="offset points", fontweight="bold",
            linespacing=1.15,
        )  # fmt: skip
        axis.set_xlabel("points")
    return figure


def _rows(plan: Plan, table: pd.DataFrame) -> list[Row]:
    rows = []
    for family in order_of(table, "family"):
        rows.append(Row(family_title(plan, family), heading=True))
        rows += [_row(found) for found in table[table["family"] == family].itertuples()]
    return rows


def _row(found: Any) -> Row:
    quiet = found.n == 0 or bool(found.at_chance)
    return Row(
        found.contrast, _in_numbers(found), found.mean, found.low, found.high,
        points=list(found.differences.values()), margin=0.0 if quiet else found.margin,
        filled=is_shown(found), same=is_same(found), quiet=quiet, mark=MARK_POST_HOC if found.post_hoc else "",
    )  # fmt: skip


def _in_numbers(row: Any) -> str:
    seeds = "" if row.n in (0, row.planned) else f"\n{row.n} of {row.planned} seeds"
    seeds += f"\nat chance in {row.at_chance} of {row.planned}" if row.at_chance else ""
    if math.isnan(row.low):
        return str(row.shows).split(" (")[0].split(":")[0].split(";")[0] + seeds
    mean = number(row.mean, digits_for(row.low, row.high))
    return f"{mean} {interval_of_difference(row.low, row.high)}".replace(" ", "\u00a0") + seeds


def _on_scale(many: bool, rows: Sequence[Row]) -> str:
    """Explain the scales of panels, arrows and marks, with a space before it."""
    note = _SCALE * many
    if not many or any(row.quiet and row.extent for row in rows):  # of many, those at chance alone are cut
        note += " An arrow: goes on beyond the panel."
    if any(MARK_POST_HOC in row.mark for row in rows):
        note += f" {MARK_POST_HOC}: {POST_HOC}, declared when both errors were known."
    return note


def _legend(rows: Sequence[Row]) -> list[Any]:
    """Explain what the rows have."""
    form: dict[str, Any] = {"color": INK, "linewidth": 1.0, "marker": "D", "markersize": 4.2}
    shown: list[Any] = [
        Line2D([], [], **form, label="mean, 95 % interval: shown, Holm p < 0.05"),
        Line2D([], [], **form, markerfacecolor="white", label="undecided"),
        Line2D([], [], color=QUIET, linestyle="", marker="o", markersize=3.2, alpha=0.6, label="a seed"),
    ]
    if any(row.quiet and row.extent for row in rows):
        quiet = {**form, "color": QUIET, "markerfacecolor": "white"}
        shown.append(Line2D([], [], **quiet, label="a network stayed at chance"))
    if any(row.same for row in rows):
        square = {**form, "marker": SAME, "markerfacecolor": "white"}
        shown.append(Line2D([], [], **square, label="the same within the band"))
    if any(row.margin for row in rows):
        shown.append(Patch(color="0.87", linewidth=0, label="band: ± a tenth of the second's error"))
    return shown
