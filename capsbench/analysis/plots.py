"""The figures of a study, each as png and svg: readable in print and by colour-blind people.

Colour never stands alone: lines differ in dashes and markers too. A plot with nothing to show says so.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from capsbench.analysis.collect import collect, learning_curves
from capsbench.config import Plan
from capsbench.data.catalogue import CATALOGUE
from capsbench.run_folder import RunFolder, write_whole

_SVG_SALT = "capsbench"  # the same study gives the same svg bytes
_MARKERS = ["o", "X", "s", "P", "D", "^", "v", "*"]
_LINES = ["-", "--", ":", "-.", "-", "--", ":", "-."]


def write_plots(plan: Plan, results: Path, folder: Path) -> list[Path]:
    """Draw the plots of a study into a folder; returns the paths."""
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


def plot_learning_curves(plan: Plan, results: Path, runs: pd.DataFrame) -> Figure:
    """Validation (else training) error by epoch: mean over the seeds, band from the lowest to the highest."""
    curves = learning_curves(plan, results)
    if curves.empty:
        return _nothing("no finished run")
    validated = curves["validation_accuracy"].notna().all()
    column = "validation_accuracy" if validated else "train_accuracy"
    curves["error"] = 100 * (1 - curves[column])  # of pairs: pair-exact
    experiments = list(dict.fromkeys(curves["experiment"]))
    figure, axes = _panels([4 + 0.15 * max(0, n - 12) for n in _variants(curves, experiments)])
    for axis, experiment in zip(axes, experiments, strict=True):
        sns.lineplot(
            curves[curves["experiment"] == experiment], x="epoch", y="error", hue="variant", style="variant",
            markers=True, markevery=max(1, int(curves["epoch"].max()) // 8), errorbar=("pi", 100),
            err_kws={"alpha": 0.1}, ax=axis,
        )  # fmt: skip
        axis.set(
            title=_title(plan, experiment, runs),
            ylabel=f"{'validation' if validated else 'training'} error (%)",
            yscale="log" if (curves["error"] > 0).any() else "linear",
        )
        if axis.get_yscale() == "log":
            axis.yaxis.set_minor_locator(matplotlib.ticker.LogLocator(subs=(2, 3, 4, 6)))
        for formatted in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            formatted(matplotlib.ticker.FormatStrFormatter("%g"))
        _legend_beside(axis)
    return figure


def plot_error_by_variant(plan: Plan, results: Path, runs: pd.DataFrame) -> Figure:
    """Test error of every seed as a point, the mean of a variant as a bar across with its 95 % t interval."""
    from capsbench.analysis.statistics import summarise

    done = runs[runs["status"] == "ok"]
    if done.empty:
        return _nothing("no finished run")
    experiments = list(dict.fromkeys(done["experiment"]))
    figure, axes = _panels([1.2 + 0.42 * n for n in _variants(done, experiments)])
    for axis, experiment in zip(axes, experiments, strict=True):
        cells = done[done["experiment"] == experiment]
        variants = list(dict.fromkeys(cells["variant"]))
        sns.swarmplot(cells, x="test_error", y="variant", order=variants, size=6, alpha=0.7, ax=axis)
        for place, variant in enumerate(variants):
            found = summarise(list(cells.loc[cells["variant"] == variant, "test_error"]))
            axis.errorbar(
                found.mean, place + 0.32, xerr=None if np.isnan(found.half_width) else found.half_width,
                fmt="D", color="black", markersize=4, capsize=3, linewidth=1,
            )  # fmt: skip
        means = cells.groupby("variant")["test_error"].mean()
        if means.min() > 0 and means.max() > 4 * means.min():  # else the best could not be told apart
            axis.set_xscale("log")
            axis.set_xlim(0.8 * cells["test_error"].min(), 1.25 * cells["test_error"].max())
            for formatted in (axis.xaxis.set_major_formatter, axis.xaxis.set_minor_formatter):
                formatted(matplotlib.ticker.FormatStrFormatter("%g"))
            axis.xaxis.set_minor_locator(matplotlib.ticker.LogLocator(subs=(2, 3, 5)))
        axis.set(
            title=f"{_title(plan, experiment, runs)}\neach seed; below, the mean and its 95 % interval",
            ylabel="", xlabel="test error (%)",
        )  # fmt: skip
    return figure


def plot_routing_iterations(plan: Plan, results: Path, runs: pd.DataFrame) -> Figure:
    """Test accuracy and training time against routing iterations, by reconstruction; a row for each experiment."""
    if "option.iterations" not in runs or runs.loc[runs["status"] == "ok", "option.iterations"].isna().all():
        return _nothing("no finished run with routing")
    done = runs[(runs["status"] == "ok") & runs["option.iterations"].notna()].copy()
    done["test accuracy (%)"] = 100 - done["test_error"]
    done["iterations"] = done["option.iterations"].astype(int)
    done["training time an epoch (s)"] = done["seconds"] / done["epochs"]
    done["network"] = [_network(row, done) for _, row in done.iterrows()]
    experiments = list(dict.fromkeys(done["experiment"]))
    figure, grid = plt.subplots(
        len(experiments), 2, figsize=(12, 3.3 * len(experiments)), squeeze=False, layout="constrained"
    )
    for row, experiment in zip(grid, experiments, strict=True):
        cells = done[done["experiment"] == experiment]
        networks = cells["network"].nunique()
        for axis, quantity in zip(row, ("test accuracy (%)", "training time an epoch (s)"), strict=True):
            sns.pointplot(
                cells, x="iterations", y=quantity, hue="network", errorbar=("pi", 100), capsize=0.06,
                dodge=0.15 if networks > 1 else False,
                markers=[_MARKERS[n % len(_MARKERS)] for n in range(networks)],
                linestyles=[_LINES[n % len(_LINES)] for n in range(networks)], linewidth=1.6, ax=axis,
            )  # fmt: skip
            axis.set(xlabel="routing iterations", title=_title(plan, experiment, runs))
            axis.get_legend().remove()
        _legend_beside(row[1])
        row[1].set_ylim(bottom=0)
    figure.suptitle("mean over the seeds, bars from the lowest to the highest", fontsize="medium")
    return figure


def _network(row: pd.Series, beside: pd.DataFrame) -> str:
    """Name what a line of the plot stands for: model and routing where they differ, and the decoder."""
    decoder = {True: "with reconstruction", False: "without reconstruction"}.get(row.get("option.reconstruction"), "")
    differing = [
        name
        for name in ("model", "option.routing", "option.loss", "option.transform")
        if name in beside and beside[name].nunique() > 1
    ]
    told = [str(row[name]) for name in differing if pd.notna(row[name])]
    return ", ".join([*told, *([decoder] if decoder else [])]) or str(row["model"])


def plot_reconstructions(plan: Plan, results: Path, runs: pd.DataFrame) -> Figure:
    """The first test image of each class above its reconstruction, one run (the first seed) for each variant."""
    found = []
    for _, row in runs[runs["status"] == "ok"].drop_duplicates(["experiment", "variant"]).iterrows():
        folder = RunFolder.of(results, plan.study.name, row["key"])
        if not folder.predictions_path.exists():
            continue
        with np.load(folder.predictions_path) as arrays:
            if "sample_reconstructions" in arrays:
                found.append((row, _sample_strips(arrays)))
    if not found:
        return _nothing("no finished run with reconstruction")
    heights = [0.35 + 0.75 * len(strips) for _, strips in found]
    figure, axes = plt.subplots(
        len(found), 1, figsize=(8, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axis, (row, strips) in zip(axes[:, 0], found, strict=True):
        axis.imshow(np.vstack(list(strips.values())), cmap="gray", vmin=0, vmax=255)
        side = next(iter(strips.values())).shape[0]
        axis.set_yticks([side * (n + 0.5) for n in range(len(strips))], list(strips))
        axis.set_xticks([])
        axis.grid(False)
        axis.set_title(
            f"{_title(plan, row['experiment'], runs)}, {row['variant']}, seed {row['seed']}", fontsize="small"
        )
    return figure


PLOTS: dict[str, Callable[[Plan, Path, pd.DataFrame], Figure]] = {
    "learning_curves": plot_learning_curves,
    "error_by_variant": plot_error_by_variant,
    "routing_iterations": plot_routing_iterations,
    "reconstructions": plot_reconstructions,
}


def _panels(heights: list[float]) -> tuple[Figure, list[Any]]:
    """Make an axis above the other, of these heights in inches."""
    figure, grid = plt.subplots(
        len(heights), 1, figsize=(10, sum(heights)), height_ratios=heights, squeeze=False, layout="constrained"
    )
    return figure, list(grid.flat)


def _variants(cells: pd.DataFrame, experiments: list[str]) -> list[int]:
    """Return how many variants each experiment has."""
    return [cells.loc[cells["experiment"] == experiment, "variant"].nunique() for experiment in experiments]


def _legend_beside(axis: Any) -> None:
    """Put the legend to the right of an axis, where it covers nothing."""
    axis.legend(title=None, fontsize="small", loc="center left", bbox_to_anchor=(1.01, 0.5))


def _sample_strips(arrays: Any) -> dict[str, np.ndarray]:
    """Name -> strip of images, each above its reconstruction; of pairs the pair first, then each digit alone."""
    targets, found = arrays["sample_targets"], arrays["sample_reconstructions"]
    if targets.ndim == 4:
        return {"original": _strip(targets), "reconstruction": _strip(found)}
    strips = {"pair": _strip(arrays["sample_images"])}
    for place, name in enumerate(("one digit", "the other")):
        strips |= {name: _strip(targets[:, place]), f"{name}, reconstructed": _strip(found[:, place])}
    return strips


def _strip(images: np.ndarray) -> np.ndarray:
    """Images uint8 [S, C, H, W] side by side, first channel, a grey line between them."""
    framed = np.pad(images[:, 0], ((0, 0), (0, 1), (0, 1)), constant_values=128)
    return np.hstack(list(framed))


def _title(plan: Plan, experiment: str, runs: pd.DataFrame) -> str:
    """Name an experiment by its data set, and say where that was not the official one."""
    data_set = plan.study.experiments[experiment].data.name
    title = CATALOGUE[data_set].title
    there = runs.loc[runs["experiment"] == experiment, "unofficial"] if "unofficial" in runs else []
    if any(isinstance(lines, str) and lines for lines in there):
        title += ", not the official files"
    return title if experiment == data_set else f"{experiment} ({title})"


def _nothing(reason: str) -> Figure:
    figure, axis = plt.subplots(figsize=(5, 1.5))
    axis.text(0.5, 0.5, f"nothing to show: {reason}", ha="center", va="center")
    axis.axis("off")
    return figure
