"""How decided routing is: the entropy of couplings by epoch, and by routing iteration where a run was diagnosed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from capsbench.analysis.plots.curves import GOES_ON, draw_curves, goes_on, in_parts, read_curves
from capsbench.analysis.plots.learning_curves import legend_of
from capsbench.analysis.plots.panels import Panel, lay_out, nothing, title_of
from capsbench.analysis.plots.style import Look, handle, looks, styled
from capsbench.run.folder import RunFolder
from capsbench.study import Plan

_HEIGHT = 1.3
_NEAR = 0.9  # where all couplings of an experiment are nearer to uniform than this, its panels do not begin at 0
_UNIFORM = 1e-5
_NEAR_NOTE = " Axes that do not begin at 0: all couplings there are nearly uniform."
_NOTE = (
    "Entropy of a child's couplings over the logarithm of the number of parents, mean over children and images: "
    "1 is uniform, 0 is one parent. With one iteration dynamic routing is uniform by definition."
)


@styled
def plot_coupling_entropy(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """Entropy of the couplings after the last iteration by epoch; by iteration for runs whose diagnostics are kept."""
    curves = read_curves(plan, results, runs)
    if "coupling_entropy" not in curves or curves["coupling_entropy"].isna().all():
        return nothing("no finished run with couplings" if results is not None else "couplings stand in run folders")
    curves = curves[curves["coupling_entropy"].notna()]
    diagnosed = _read_diagnostics(plan, results, runs) if results is not None else pd.DataFrame()
    styles, panels = looks(plan), []
    drawings: list[tuple[pd.DataFrame, Callable[..., None]]] = []
    for experiment in dict.fromkeys(curves["experiment"]):
        own, title = curves[curves["experiment"] == experiment], title_of(plan, experiment, runs)
        for part, which in in_parts(list(dict.fromkeys(own["variant"])), styles):
            legend = legend_of(own, part, styles)
            panels.append(Panel(f"{title}{which}\nby epoch, after the last iteration", _HEIGHT, legend=legend))
            drawings.append((own[own["variant"].isin(part)], _by_epoch))
        known = diagnosed[diagnosed["experiment"] == experiment] if len(diagnosed) else diagnosed
        if len(known):
            labels = dict(zip(known["variant"], known["label"], strict=True))
            legend = [handle(styles[variant], label) for variant, label in labels.items()]
            panels.append(
                Panel(f"{title}\nby routing iteration, of runs that stayed at chance", _HEIGHT, legend=legend)
            )
            drawings.append((known, _by_iteration))
    lowest = curves.groupby("experiment")["coupling_entropy"].min().to_dict()
    if len(diagnosed):
        for experiment, low in diagnosed.groupby("experiment")["entropy"].min().items():
            lowest[experiment] = min(low, lowest.get(experiment, 1.0))
    near = any(map(_is_near, lowest.values()))
    note = _NOTE + _NEAR_NOTE * near + GOES_ON * goes_on(curves)
    figure, axes = lay_out(panels, left=0.58 if near else 0.42, note=note)
    for (axis,), (data, draw) in zip(axes, drawings, strict=True):
        draw(axis, data, styles)
        _set_scale(axis, lowest[data["experiment"].iloc[0]])
    return figure


def _is_near(low: float) -> bool:
    """Tell whether couplings are nearly uniform, but not as uniform as float32 writes it."""
    return _NEAR < low < 1 - _UNIFORM


def _set_scale(axis: Any, low: float) -> None:
    """Show 0 to 1, or, where all couplings of an experiment are nearly uniform, only the range that they take."""
    if not _is_near(low):
        axis.set(ylim=(-0.04, 1.06), ylabel="coupling entropy (0 to 1)")
        return
    axis.set(ylim=(1 - 1.08 * (1 - low), 1 + 0.08 * (1 - low)), ylabel="coupling entropy")
    axis.yaxis.set_major_locator(MaxNLocator(3))
    axis.ticklabel_format(axis="y", style="plain", useOffset=False)


def _by_epoch(axis: Any, curves: pd.DataFrame, styles: dict[str, Look]) -> None:
    draw_curves(axis, curves, "coupling_entropy", styles)
    axis.set_xlabel("epoch")


def _by_iteration(axis: Any, known: pd.DataFrame, styles: dict[str, Look]) -> None:
    for (variant, _), run in known.groupby(["variant", "seed"], sort=False):
        axis.plot(run["iteration"], run["entropy"], label=variant, **styles[str(variant)].line() | {"linewidth": 0.8})
    last = int(known["iteration"].max())
    axis.set_xlim(0.85, last + 0.15)
    axis.set_xticks(range(1, last + 1))
    axis.set_xlabel("routing iteration, of a trained network")


def _read_diagnostics(plan: Plan, results: Path, runs: pd.DataFrame) -> pd.DataFrame:
    """Return iteration and entropy of the runs that have them in run.yaml: today those that never left chance."""
    rows = []
    for row in runs[runs["status"] == "ok"].to_dict("records"):
        record = RunFolder.of(results, plan.study.name, row["key"]).read_record() or {}
        same = {name: row[name] for name in ("experiment", "variant", "label", "seed")}
        rows += [same | step for step in record.get("diagnostics") or [] if step.get("entropy") is not None]
    return pd.DataFrame(rows)
