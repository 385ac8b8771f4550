"""Test errors of all variants, a panel per experiment."""

from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from capsbench.analysis.plots.panels import nothing, number_of_variants, panels, plain_numbers, title_of
from capsbench.analysis.statistics import summarise
from capsbench.study import Plan


def plot_error_by_variant(plan: Plan, results: Path, runs: pd.DataFrame) -> Figure:
    """Test error of every seed as a point; below, the mean of the variant with its 95 % t interval."""
    done = runs[runs["status"] == "ok"]
    if done.empty:
        return nothing("no finished run")
    experiments = list(dict.fromkeys(done["experiment"]))
    figure, axes = panels([1.2 + 0.42 * n for n in number_of_variants(done, experiments)])
    for axis, experiment in zip(axes, experiments, strict=True):
        cells = done[done["experiment"] == experiment]
        labels = list(dict.fromkeys(cells["label"]))
        sns.swarmplot(cells, x="test_error", y="label", order=labels, size=6, alpha=0.7, ax=axis)
        for place, label in enumerate(labels):
            found = summarise(list(cells.loc[cells["label"] == label, "test_error"]))
            axis.errorbar(
                found.mean, place + 0.32, xerr=None if np.isnan(found.half_width) else found.half_width,
                fmt="D", color="black", markersize=4, capsize=3, linewidth=1,
            )  # fmt: skip
        means = cells.groupby("label")["test_error"].mean()
        if means.min() > 0 and means.max() > 4 * means.min():  # else the best could not be distinguished
            axis.set_xscale("log")
            axis.set_xlim(0.8 * cells["test_error"].min(), 1.25 * cells["test_error"].max())
            plain_numbers(axis.xaxis)
            axis.xaxis.set_minor_locator(LogLocator(subs=(2, 3, 5)))
        axis.set(
            title=f"{title_of(plan, experiment, runs)}\neach seed; below, the mean and its 95 % interval",
            ylabel="", xlabel="test error (%)",
        )  # fmt: skip
    return figure
