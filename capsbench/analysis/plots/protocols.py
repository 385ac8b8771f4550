"""Plots of protocols: curves or values where a protocol gives them, else a figure of its own."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from capsbench.analysis.measures import Measures
from capsbench.analysis.plots.calibration import plot_calibration
from capsbench.analysis.plots.confusion import plot_confusion
from capsbench.analysis.plots.measured import plot_measured
from capsbench.analysis.plots.perturbation import plot_perturbation
from capsbench.analysis.plots.segmentation import plot_segmentation
from capsbench.analysis.plots.values import plot_values
from capsbench.registry import PROTOCOLS
from capsbench.study import Plan

OWN: dict[str, Callable[[Plan, Path | None, pd.DataFrame, Measures], Figure]] = {
    "calibration": plot_calibration,
    "confusion": plot_confusion,
    "perturbation": plot_perturbation,
    "segmentation": plot_segmentation,
}


def plot_protocol(name: str, plan: Plan, results: Path | None, runs: pd.DataFrame, measures: Measures) -> Figure:
    """Draw the plot of a protocol that is registered with `draws`."""
    if name in OWN:
        return OWN[name](plan, results, runs, measures)
    if PROTOCOLS[name].facts["draws"] == "values":
        return plot_values(name, plan, runs, measures)
    return plot_measured(name, plan, runs, measures)
