"""What run folders hold of each epoch, and how curves over epochs are drawn: at most eight lines in a panel."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from capsbench.analysis.plots.panels import balanced, cut_at
from capsbench.analysis.plots.style import INK, Look
from capsbench.run.finished import FINISHED
from capsbench.run.folder import RunFolder, whole
from capsbench.study import Plan

MOST_LINES = 8
GOES_ON = " Where one seed trained longer than another, the rest of its curve is thin too."
STUCK, DIVERGED = "stuck", "diverged"


def read_curves(plan: Plan, results: Path | None, runs: pd.DataFrame) -> pd.DataFrame:
    """Return metrics.csv of all runs that ended or diverged, with experiment, variant, label, seed and end.

    end: empty for a run like others; else "stuck" (it never left chance) or "diverged". Empty without run folders.
    """
    frames = []
    for row in runs[runs["status"].isin(FINISHED)].to_dict("records"):
        folder = None if results is None else RunFolder.of(results, plan.study.name, row["key"])
        if folder is None or not folder.metrics_path.exists():
            continue
        folder.check(folder.metrics_path, folder.read_record() or {})
        with whole(folder.metrics_path):
            frame = pd.read_csv(folder.metrics_path)
        end = DIVERGED if row["status"] == "diverged" else STUCK if row.get("stuck_at_chance") is True else ""
        same = {name: row[name] for name in ("experiment", "variant", "label", "seed")}
        if len(frame):
            frames.append(frame.assign(**same, end=end))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def in_parts(variants: Sequence[str], styles: Mapping[str, Look]) -> list[tuple[list[str], str]]:
    """Share variants out over panels of at most eight, as evenly as it goes, and say which panel of how many it is.

    Neighbours of one method, which differ in the number of iterations, stay together if they are eight at most.
    """
    methods = (list(own) for _, own in itertools.groupby(variants, lambda name: styles[name].method))
    groups = [own[n : n + MOST_LINES] for own in methods for n in range(0, len(own), MOST_LINES)]
    sizes = [float(len(group)) for group in groups]
    places, _ = balanced(sizes, cut_at(sizes, MOST_LINES)[-1] + 1)
    parts: dict[int, list[str]] = {}
    for place, group in zip(places, groups, strict=True):
        parts.setdefault(place, []).extend(group)
    return [(part, f", {n} of {len(parts)}" if len(parts) > 1 else "") for n, part in enumerate(parts.values(), 1)]


def goes_on(curves: pd.DataFrame) -> bool:
    """Tell whether seeds of a variant that ended like others have trained for different numbers of epochs."""
    usual = curves[curves["end"] == ""]
    lengths = usual.groupby(["experiment", "variant", "seed"])["epoch"].max()
    return bool((lengths.groupby(["experiment", "variant"]).nunique() > 1).any())


def draw_curves(axis: Any, curves: pd.DataFrame, column: str, styles: dict[str, Look], bottom: float = 0.0) -> None:
    """Draw the mean over the seeds of each variant, with a band from the lowest to the highest.

    Runs that never left chance or diverged are lines of their own, with what became of them at their end: a mean over
    them and others would be the curve of no run. What a run has beyond the last epoch that all seeds reached is also
    a line of its own.

    Args:
        axis: of a panel.
        curves: from `read_curves`, of at most eight variants.
        column: what to draw.
        styles: of all variants.
        bottom: lower values are drawn here: 0 on a logarithmic axis.
    """
    variants = list(dict.fromkeys(curves["variant"]))
    epochs = int(curves["epoch"].max())
    step = max(1, epochs // 6)
    for place, variant in enumerate(variants):
        own, look = curves[curves["variant"] == variant], styles[variant]
        usual = own[own["end"] == ""]
        if len(usual):
            last = usual.groupby("seed")["epoch"].max().min()
            for _, run in usual[usual["epoch"] >= last].groupby("seed"):
                if len(run) > 1:
                    values = run[column].clip(lower=bottom)
                    axis.plot(run["epoch"], values, color=look.color, linestyle=look.dash, lw=0.5, label="goes on")
            shared = usual[usual["epoch"] <= last]
            by_epoch = shared.groupby("epoch")[column].agg(["mean", "min", "max"]).clip(lower=bottom)
            marked = min(place % step, len(by_epoch) - 1), step
            axis.plot(
                by_epoch.index, by_epoch["mean"], markevery=marked, markersize=3.4, label=variant,
                **look.line(),
            )  # fmt: skip
            axis.fill_between(by_epoch.index, by_epoch["min"], by_epoch["max"], color=look.color, alpha=0.12, lw=0)
        for (seed, end), run in own[own["end"] != ""].groupby(["seed", "end"]):
            values = run[column].clip(lower=bottom)
            axis.plot(
                run["epoch"], values, color=look.color, linestyle=look.dash, linewidth=0.7,
                label=f"{variant}, seed {seed}: {end}",
            )  # fmt: skip
            mark = "x" if end == DIVERGED else "_"
            axis.plot(
                [run["epoch"].iloc[-1]], [values.iloc[-1]], color=INK, marker=mark, markersize=5, linestyle="",
                markeredgewidth=1.2, zorder=6, label=end,
            )  # fmt: skip
    axis.set_xlim(1 - 0.04 * epochs, epochs + 0.04 * epochs)
    axis.xaxis.get_major_locator().set_params(integer=True)


def ends_of(curves: pd.DataFrame) -> dict[str, str]:
    """Return for each variant what must be said of it in a legend: "2 stuck", or nothing."""
    found = {}
    for variant, own in curves.groupby("variant"):
        counts = own[own["end"] != ""].groupby("end")["seed"].nunique()
        found[str(variant)] = ", ".join(f"{count} {end}" for end, count in counts.items())
    return found
