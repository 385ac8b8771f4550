"""Which classes are taken for which: a matrix per variant, summed over the seeds."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from capsbench.analysis.measures import Measures
from capsbench.analysis.plots.panels import LINE, Panel, lay_out, nothing, title_of, wrapped
from capsbench.analysis.plots.style import FONT, INK, QUIET, WIDTH, styled
from capsbench.study import Plan

_LEFT, _GAP, _RIGHT = 0.5, 0.5, 0.17
_SIDE = (WIDTH - _LEFT - _GAP - _RIGHT) / 2  # inches of a matrix
_SHADES = LinearSegmentedColormap.from_list("errors", ["white", "#D55E00", "#3B1500"])
_TOP = 0.4  # of the images of a class; more is as dark
_LEAST = 0.5  # % of the images of a class that a number is written for
_LETTERS = 28
_NAMED = 6  # classes whose names have room beside a matrix


@styled
def plot_confusion(plan: Plan, results: Path | None, runs: pd.DataFrame, measures: Measures) -> Figure:
    """Draw, for each variant, which share of a true class (row) was taken for another one (column), over all seeds."""
    found = []
    for row in runs.drop_duplicates(["experiment", "variant"]).to_dict("records"):
        keys = runs.loc[(runs["experiment"] == row["experiment"]) & (runs["variant"] == row["variant"]), "key"]
        results_of = [measures.get(key, {}).get("confusion", {}) for key in keys]
        ended = [result for result in results_of if result.get("status") == "ok"]
        if ended:
            matrix = np.sum([np.asarray(result["matrix"], dtype=float) for result in ended], axis=0)
            found.append((row["experiment"], row["label"], ended[0]["classes"], matrix))
    if not found:
        return nothing("no finished run has a result of 'confusion'")
    panels, rows = [], []
    for experiment in dict.fromkeys(each[0] for each in found):
        own = [each for each in found if each[0] == experiment]
        for start in range(0, len(own), 2):
            pair = own[start : start + 2]
            below = 0.3 + LINE * max(len(wrapped(label, _LETTERS)) for _, label, _, _ in pair)
            panels.append(Panel("" if start else title_of(plan, experiment, runs), _SIDE, below=below))
            rows.append(pair)
    note = (
        "Rows: true class; columns: predicted class. Share of the images of the true class in %, over all seeds; what "
        "is right is left out, and shares below 0.5 % have no number."
    )
    figure, axes = lay_out(panels, columns=2, left=_LEFT, gap=_GAP, note=note)
    for places, own in zip(axes, rows, strict=True):
        for axis, (_, label, classes, matrix) in zip(places, own, strict=False):
            _draw(axis, label, classes, matrix)
        for unused in places[len(own) :]:
            unused.remove()
    return figure


def _draw(axis: Any, label: str, classes: list[str], matrix: np.ndarray) -> None:
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    wrong = np.where(np.eye(len(shares), dtype=bool), 0.0, shares)
    axis.imshow(np.sqrt(np.minimum(wrong, _TOP) / _TOP), cmap=_SHADES, vmin=0, vmax=1, interpolation="nearest")
    for row, column in np.argwhere(100 * wrong >= _LEAST):
        share = 100 * wrong[row, column]
        color = "white" if wrong[row, column] > 0.5 * _TOP else INK
        text = f"{share:.0f}" if share >= 9.5 else f"{share:.1f}"
        size = FONT - (1.0 if len(shares) <= _NAMED else 2.8)
        axis.text(column, row, text, ha="center", va="center", fontsize=size, color=color)
    for place in range(len(shares)):
        axis.plot(place, place, marker="s", markersize=1.6, color=QUIET, linestyle="", label="right")
    names = [name[:9] for name in classes] if len(classes) <= _NAMED else [str(place) for place in range(len(classes))]
    axis.set_xticks(range(len(names)), [name[:3] for name in names])
    axis.set_yticks(range(len(names)), names if max(map(len, names)) <= 7 else [name[:7] for name in names])
    axis.tick_params(length=0)
    axis.grid(visible=False)
    axis.set_xlabel("\n".join(wrapped(label, _LETTERS)))
