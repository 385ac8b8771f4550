"""Which classes are taken for which: for each data set a row per variant and a column per confusion."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from capsbench.analysis.measures import Measures
from capsbench.analysis.plots.panels import LINE, Panel, lay_out, nothing, title_of, wrapped
from capsbench.analysis.plots.style import INK, SMALL, WIDTH, styled
from capsbench.study import Plan

_LETTER, _CELL = 0.058, 0.33  # inches: the width of a letter in the names of variants, and of a cell
_MARGIN = 0.15  # inches
_SHADES = LinearSegmentedColormap.from_list("errors", ["white", "#F6B98C", "#D55E00", "#6B2C00"])
_DARK = 0.6  # of the scale: numbers are white from here on
_COLUMNS = 12  # confusions that are shown
_SHORT = 3  # letters of two names and an arrow that stand upright without touching the next
_LETTERS = 46
_NOTE = (
    "Columns: true class → predicted class, those that are most frequent in the mean over the rows. Numbers: share of "
    "the images of the true class in %, over all seeds; shades are relative to the largest of a data set."
)


@styled
def plot_confusion(plan: Plan, results: Path | None, runs: pd.DataFrame, measures: Measures) -> Figure:
    """Draw, for each variant, the share of a class that was taken for another one, over all seeds."""
    panels, drawings = [], []
    for experiment in dict.fromkeys(runs["experiment"]):
        own = runs[runs["experiment"] == experiment]
        found, counts, classes = _counts(own, measures)
        if not counts:
            continue
        shares = np.stack([_shares(matrix) for matrix in counts])  # [variants, true, predicted]
        pairs = _most_frequent(shares.mean(axis=0))
        names = [f"{classes[true]}→{classes[predicted]}" for true, predicted in pairs]
        labels = ["\n".join(wrapped(label, _LETTERS)) for label in found]
        lines = sum(label.count("\n") + 1 for label in labels)
        title = f"{title_of(plan, experiment, runs)}{_part_of(counts, pairs)}"
        below = 0.22 if _are_short(names) else 0.12 + 0.06 * max(map(len, names))
        panels.append(Panel(title, LINE * lines + 0.06 * len(labels), below=below))
        drawings.append((labels, names, 100 * np.stack([shares[:, *pair] for pair in pairs], axis=1)))
    if not panels:
        return nothing("no finished run has a result of 'confusion'")
    left = _MARGIN + _LETTER * max(len(line) for labels, *_ in drawings for line in "\n".join(labels).split("\n"))
    width = max(WIDTH, left + _CELL * max(len(names) for _, names, _ in drawings) + _MARGIN)
    figure, axes = lay_out(panels, left=left, note=_NOTE, width=width, right=_MARGIN)
    for (axis,), drawing in zip(axes, drawings, strict=True):
        _draw(axis, *drawing)
    return figure


def _counts(runs: pd.DataFrame, measures: Measures) -> tuple[list[str], list[NDArray[Any]], list[str]]:
    """Return labels of variants, their images by true and predicted class, [K, K], over all seeds; names of classes."""
    labels: list[str] = []
    counts: list[NDArray[Any]] = []
    classes: list[str] = []
    for _, own in runs.groupby("variant", sort=False):
        results = [measures.get(key, {}).get("confusion", {}) for key in own["key"]]
        ended = [result for result in results if result.get("status") == "ok"]
        if ended:
            labels.append(own["label"].iloc[0])
            counts.append(np.sum([np.asarray(each["matrix"], dtype=float) for each in ended], axis=0))
            classes = list(ended[0]["classes"])
    return labels, counts, classes


def _shares(matrix: NDArray[Any]) -> NDArray[Any]:
    """Counts [K, K] -> shares of the true class, those on the diagonal 0."""
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    return np.where(np.eye(len(shares), dtype=bool), 0.0, shares)


def _most_frequent(shares: NDArray[Any]) -> list[tuple[int, int]]:
    """Return true and predicted class of the largest shares, largest first; at least one pair."""
    order = np.argsort(-shares, axis=None, kind="stable")
    pairs = [divmod(int(place), len(shares)) for place in order[:_COLUMNS]]
    return [pair for pair in pairs if shares[pair] > 0] or pairs[:1]


def _part_of(counts: list[NDArray[Any]], pairs: list[tuple[int, int]]) -> str:
    """Say how many of all confusions, and of the errors, the pairs are."""
    total = np.sum(counts, axis=0)
    wrong = total.sum() - np.trace(total)
    if not wrong:
        return ": no error"
    shown = sum(total[pair] for pair in pairs)
    return f": {len(pairs)} of {total.size - len(total)} confusions, {100 * shown / wrong:.0f} % of the errors"


def _are_short(names: list[str]) -> bool:
    return max(map(len, names)) <= _SHORT


def _draw(axis: Any, labels: list[str], names: list[str], shares: NDArray[Any]) -> None:
    shades = np.sqrt(shares / max(shares.max(), 1e-9))
    axis.imshow(shades, cmap=_SHADES, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        color = "white" if shades[row, column] > _DARK else INK
        axis.text(
            column, row, f"{share:.0f}" if share >= 9.95 else f"{share:.1f}", ha="center", va="center_baseline",
            fontsize=SMALL - 0.5, color=color,
        )  # fmt: skip
    turned = {} if _are_short(names) else {"rotation": 90}
    axis.set_xticks(range(len(names)), names, **turned)
    axis.set_yticks(range(len(labels)), labels)
    axis.tick_params(length=0)
    axis.grid(visible=False)
