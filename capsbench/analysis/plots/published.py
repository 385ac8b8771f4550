"""Our errors minus the published ones, a row per cell that has a published value, a panel per experiment."""

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.plots.forest import Row, draw_forest, forest_height
from capsbench.analysis.plots.panels import Panel, lay_out, nothing, title_of
from capsbench.analysis.plots.style import INK, QUIET, looks, styled
from capsbench.analysis.tables.text import error_text
from capsbench.analysis.verdicts import DECIDED
from capsbench.study import Plan


@styled
def plot_published(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """Forest plot: test error minus the published one with its 95 % interval.

    What cannot be compared is grey and hollow, and has no band: no margin was written down for it.
    """
    found = [cell for cell in cells(plan, runs) if cell.published is not None]
    if not found:
        return nothing("no variant of the study has a published value")
    shown = [cell for cell in found if not math.isnan(cell.verdict.difference)]
    if not shown:
        return nothing("no finished run on the data set of a published value")
    colors = {variant: look.color for variant, look in looks(plan).items()}
    experiments = list(dict.fromkeys(cell.experiment for cell in shown))
    layouts = [[_row(cell, colors[cell.variant]) for cell in shown if cell.experiment == e] for e in experiments]
    panels = [
        Panel(title_of(plan, experiment, runs), forest_height(rows), below=0.24)
        for experiment, rows in zip(experiments, layouts, strict=True)
    ]
    panels[-1] = Panel(panels[-1].title, panels[-1].height, below=0.46, legend=_legend([*chain(*layouts)]))
    left_out = len(found) - len(shown)
    note = "Ours: mean ± standard deviation over the seeds."
    note += f" Not shown: {left_out} more, without results on the paper's data set." if left_out else ""
    figure, axes = lay_out(panels, left=0.17, note=note)
    for (axis,), rows in zip(axes, layouts, strict=True):
        draw_forest(axis, rows)
    axes[-1][0].set_xlabel("test error minus the published error (points);\nleft of 0: ours is lower")
    return figure


def _row(cell: Cell, color: str) -> Row:
    published, verdict = cell.published, cell.verdict
    assert published is not None
    comparable = verdict.word != "not comparable"
    ended = "" if len(cell.errors) == cell.planned else f"\n{len(cell.errors)} of {cell.planned} runs"
    ended += f"\nat chance in {cell.stuck} of {cell.planned}" if cell.stuck else ""
    return Row(
        f"{cell.label}, against {published} ({published.paper} {published.table})",
        f"ours {error_text(cell)} %\n{verdict}{ended}",
        verdict.difference, verdict.low, verdict.high,
        points=[error - published.error for error in cell.errors.values()],
        margin=published.margin + published.rounding if comparable else 0.0,
        filled=verdict.word in DECIDED, color=color, quiet=not comparable,
    )  # fmt: skip


def _legend(rows: Sequence[Row]) -> list[Any]:
    """Explain what the rows have, and nothing else."""
    mark: dict[str, Any] = {"marker": "D", "markersize": 4.2}
    shown = {
        Line2D([], [], color=INK, linewidth=1.0, **mark, label="mean and 95 % interval"):
            any(row.filled for row in rows),
        Line2D([], [], color=INK, linewidth=1.0, **mark, markerfacecolor="white", label="undecided"):
            any(not row.filled and not row.quiet for row in rows),
        Line2D([], [], color=QUIET, linestyle="", **mark, markerfacecolor="white",
               label="grey and hollow: not comparable"): any(row.quiet for row in rows),
        Line2D([], [], color=QUIET, linestyle="", marker="o", markersize=3.2, alpha=0.6, label="a seed"): True,
        Patch(color="0.87", linewidth=0, label="counts as the same"): any(row.margin for row in rows),
    }  # fmt: skip
    return [handle for handle, there in shown.items() if there]
