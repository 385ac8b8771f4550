"""Learning curves of all variants, a panel per experiment, or several with at most eight lines each."""

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from capsbench.analysis.plots.curves import GOES_ON, draw_curves, ends_of, goes_on, in_parts, read_curves
from capsbench.analysis.plots.panels import Panel, lay_out, make_log, nothing, spans_much, title_of
from capsbench.analysis.plots.style import Look, handle, looks, styled
from capsbench.study import Data, Plan

_HEIGHT = 1.55
_VALIDATED = {
    "object": "validation images show objects that training does not",
    "pair": "validation images show objects of the training",
}


@styled
def plot_learning_curves(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """Validation error by epoch, or training error where an experiment holds nothing out."""
    curves = read_curves(plan, results, runs)
    if curves.empty:
        return nothing("no finished run" if results is not None else "learning curves stand in run folders")
    styles, shown = looks(plan), []
    for experiment in dict.fromkeys(curves["experiment"]):
        own = curves[curves["experiment"] == experiment].copy()
        is_validated = own["validation_accuracy"].notna().all()
        own["error"] = 100 * (1 - own["validation_accuracy" if is_validated else "train_accuracy"])  # of a pair: both
        parts = in_parts(list(dict.fromkeys(own["variant"])), styles)
        title = title_of(plan, experiment, runs)
        basis = _basis(plan.data[experiment], is_validated)
        shown += [(f"{title}{which}\n{basis}", own, part, is_validated) for part, which in parts]
    panels = [Panel(title, _HEIGHT, legend=legend_of(own, part, styles)) for title, own, part, _ in shown]
    note = (
        "Mean over the seeds; band from the lowest to the highest. Runs that stayed at chance (-) or diverged (x) are "
    )
    figure, axes = lay_out(panels, note=f"{note}thin lines of their own.{GOES_ON * goes_on(curves)}")
    for (axis,), (_, own, part, is_validated) in zip(axes, shown, strict=True):
        _draw(axis, own, part, "validation" if is_validated else "training", styles)
    return figure


def legend_of(curves: pd.DataFrame, variants: list[str], styles: dict[str, Look]) -> list[Line2D]:
    """Return the legend of a panel of curves: labels, and which runs have lines of their own."""
    labels = dict(zip(curves["variant"], curves["label"], strict=True))
    ends = ends_of(curves)
    return [
        handle(styles[variant], labels[variant] + (f" ({ends[variant]})" if ends[variant] else ""))
        for variant in variants
    ]


def _draw(axis: Any, own: pd.DataFrame, variants: list[str], what: str, styles: dict[str, Look]) -> None:
    values = own["error"]  # of all variants: the panels of an experiment have one scale
    positive = values[values > 0]
    is_log = spans_much(positive)
    low, high = (0.85 * positive.min(), 1.15 * positive.max()) if is_log else (0.0, max(1.05 * values.max(), 1.0))
    axis.set_ylim(low, min(high, 104))
    if is_log:
        make_log(axis, "y")
    scale = ", log scale" if is_log else ""
    if is_log and (values <= 0).any():
        scale = ", log; lowest 0"  # more words are longer than the axis
    draw_curves(axis, own[own["variant"].isin(variants)], "error", styles, bottom=low if is_log else 0.0)
    axis.set(xlabel="epoch", ylabel=f"{what} error (%{scale})")


def _basis(data: Data, is_validated: bool) -> str:
    if not is_validated:
        return "training error: nothing is held out"
    return _VALIDATED.get(getattr(data.options, "validation_by", ""), f"{data.validation_images:,} images held out")
