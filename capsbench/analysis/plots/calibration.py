"""Reliability diagrams: how often a network is right where it is so sure, over all seeds together."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from capsbench.analysis.measures import Measures
from capsbench.analysis.plots.measured import plot_measured
from capsbench.evaluation.result import curve
from capsbench.study import Plan

_LEAST = 200  # a bin with less than one of so many predictions is not drawn: its accuracy is that of a few images
_NOTE = (
    "All seeds together, in bins of confidence; bins with less than 0.5 % of the predictions are left out. Above the "
    "diagonal a network is right more often than it is sure, below it less often."
)


def plot_calibration(plan: Plan, results: Path | None, runs: pd.DataFrame, measures: Measures) -> Figure:
    """Draw accuracy against confidence, axes for each way to read scores, a line per variant.

    Args:
        plan: the study.
        results: not used: all is in `measures`.
        runs: from `collect` or `read_runs`.
        measures: from `read_measures` or `load_measures`.
    """
    return plot_measured("calibration", plan, runs, dict(_pooled(plan, measures)), note=_NOTE)


def _pooled(plan: Plan, measures: Measures) -> Iterator[tuple[str, Mapping[str, Mapping[str, Any]]]]:
    """Yield for each variant of each experiment the key of its first run and the curves of all its seeds together."""
    found: dict[tuple[str, str], list[tuple[str, Mapping[str, Any]]]] = defaultdict(list)
    for run in plan.runs:
        result = measures.get(run.key, {}).get("calibration", {})
        if result.get("readings"):
            found[run.experiment, run.variant].append((run.key, result))
    for seeds in found.values():
        results = [result for _, result in seeds]
        curves = []
        for name in results[0]["readings"]:
            bins = [each for result in results for each in result["readings"][name]["bins"]]
            x, y = _together(bins, results[0]["options"]["bins"])
            curves.append(curve(name, x, y, x_label=f"confidence, {name} (%)", y_label="accuracy (%)"))
        yield seeds[0][0], {"calibration": {"curves": curves}}


def _together(rows: Sequence[Mapping[str, float]], bins: int) -> tuple[list[float], list[float]]:
    """Return mean confidence and accuracy in % of the bins of several runs, from what each run has of them."""
    sums = np.zeros((bins, 3))  # predictions, and what their confidence and accuracy add up to
    for row in rows:
        place = min(max(math.ceil(row["confidence"] * bins / 100 - 1e-9) - 1, 0), bins - 1)
        sums[place] += row["predictions"] * np.array([1.0, row["confidence"], row["accuracy"]])
    kept = sums[_LEAST * sums[:, 0] >= sums[:, 0].sum()]
    return list(kept[:, 1] / kept[:, 0]), list(kept[:, 2] / kept[:, 0])
