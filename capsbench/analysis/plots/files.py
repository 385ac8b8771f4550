"""Which plots there are, and how they become files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from capsbench.analysis.collect import collect
from capsbench.analysis.plots.contrasts import plot_contrasts
from capsbench.analysis.plots.error_by_variant import plot_error_by_variant
from capsbench.analysis.plots.learning_curves import plot_learning_curves
from capsbench.analysis.plots.reconstructions import plot_reconstructions
from capsbench.analysis.plots.routing_iterations import plot_routing_iterations
from capsbench.run.folder import write_whole
from capsbench.study import Plan

_SVG_SALT = "capsbench"  # the same study gives the same svg bytes

PLOTS: dict[str, Callable[[Plan, Path, pd.DataFrame], Figure]] = {
    "learning_curves": plot_learning_curves,
    "error_by_variant": plot_error_by_variant,
    "contrasts": plot_contrasts,
    "routing_iterations": plot_routing_iterations,
    "reconstructions": plot_reconstructions,
}


def write_plots(plan: Plan, results: Path, folder: Path) -> list[Path]:
    """Draw the plots that a study asks for into a folder; returns the paths."""
    sns.set_theme(context="paper", style="whitegrid", palette="colorblind", font_scale=1.1)
    matplotlib.rcParams["svg.hashsalt"] = _SVG_SALT
    runs = collect(plan, results)
    paths = []
    for name in plan.study.plots:
        figure = PLOTS[name](plan, results, runs)
        for ending in ("png", "svg"):
            paths.append(folder / f"{name}.{ending}")
            options: dict[str, Any] = {"format": ending, "dpi": 150, "bbox_inches": "tight"}
            options["metadata"] = {"Date": None} if ending == "svg" else None
            write_whole(paths[-1], lambda aside, f=figure, o=options: f.savefig(aside, **o))  # type: ignore[misc]
        plt.close(figure)
    return paths
