"""Learning curves of all variants, a panel per experiment."""

from pathlib import Path

import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from capsbench.analysis.collect import learning_curves
from capsbench.analysis.plots.panels import legend_beside, nothing, number_of_variants, panels, plain_numbers, title_of
from capsbench.study import Plan


def plot_learning_curves(plan: Plan, results: Path, runs: pd.DataFrame) -> Figure:
    """Validation (else training) error by epoch: mean over the seeds, band from the lowest to the highest."""
    curves = learning_curves(plan, results)
    if curves.empty:
        return nothing("no finished run")
    validated = curves["validation_accuracy"].notna().all()
    column = "validation_accuracy" if validated else "train_accuracy"
    curves["error"] = 100 * (1 - curves[column])  # for pairs of digits: pair-exact
    experiments = list(dict.fromkeys(curves["experiment"]))
    figure, axes = panels([4 + 0.15 * max(0, n - 12) for n in number_of_variants(curves, experiments)])
    for axis, experiment in zip(axes, experiments, strict=True):
        sns.lineplot(
            curves[curves["experiment"] == experiment], x="epoch", y="error", hue="label", style="label",
            markers=True, markevery=max(1, int(curves["epoch"].max()) // 8), errorbar=("pi", 100),
            err_kws={"alpha": 0.1}, ax=axis,
        )  # fmt: skip
        axis.set(
            title=title_of(plan, experiment, runs),
            ylabel=f"{'validation' if validated else 'training'} error (%)",
            yscale="log" if (curves["error"] > 0).any() else "linear",
        )
        if axis.get_yscale() == "log":
            axis.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 4, 6)))
        plain_numbers(axis.yaxis)
        legend_beside(axis)
    return figure
