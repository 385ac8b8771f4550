"""What the plots share: panels, one below the other, their titles and legends, the plot without data."""

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from capsbench.study import Plan


def panels(heights: list[float]) -> tuple[Figure, list[Any]]:
    """Make axes, one below the other, of these heights in inches."""
    figure, grid = plt.subplots(
        len(heights), 1, figsize=(10, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    return figure, list(grid.flat)


def number_of_variants(cells: pd.DataFrame, experiments: list[str]) -> list[int]:
    """Return how many variants each experiment has."""
    return [cells.loc[cells["experiment"] == experiment, "variant"].nunique() for experiment in experiments]


def legend_beside(axis: Any) -> None:
    """Put the legend to the right of an axis, where it covers nothing."""
    axis.legend(title=None, fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))


def plain_numbers(axis: Any) -> None:
    """Write the ticks of an x or y axis as 0.5 or 20, on a logarithmic axis too."""
    axis.set_major_formatter(FormatStrFormatter("%g"))
    axis.set_minor_formatter(FormatStrFormatter("%g"))


def title_of(plan: Plan, experiment: str, runs: pd.DataFrame) -> str:
    """Name an experiment by its data set; mention files that are not the official ones."""
    data = plan.data[experiment]
    title = data.facts.title
    lines = runs.loc[runs["experiment"] == experiment, "unofficial"] if "unofficial" in runs else []
    if any(isinstance(line, str) and line for line in lines):
        title += ", not the official files"
    return title if experiment == data.name else f"{experiment} ({title})"


def nothing(reason: str) -> Figure:
    """Make a figure that says why there is nothing to show."""
    figure, axis = plt.subplots(figsize=(5, 1.5))
    axis.text(0.5, 0.5, f"nothing to show: {reason}", ha="center", va="center")
    axis.axis("off")
    return figure
