"""Accuracy and training time by routing iterations, a row of two panels per experiment."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.figure import Figure

from capsbench.analysis.plots.panels import legend_beside, nothing, title_of
from capsbench.registry import LOSSES, MODELS, ROUTINGS, TRANSFORMS
from capsbench.study import Plan

_MARKERS = ["o", "X", "s", "P", "D", "^", "v", "*"]
_LINES = ["-", "--", ":", "-.", "-", "--", ":", "-."]
_GROUPS = [("routing", ROUTINGS, "{}"), ("loss", LOSSES, "{} loss"), ("transform", TRANSFORMS, "{} transform")]
_ACCURACY, _SECONDS = "test accuracy (%)", "training time per epoch (s)"


def plot_routing_iterations(plan: Plan, results: Path, runs: pd.DataFrame) -> Figure:
    """Test accuracy and training time by routing iterations, a line per network, with or without reconstruction."""
    done = runs[runs["status"] == "ok"].copy()
    options = {key: plan.run(key).options for key in done["key"]}
    done["iterations"] = [_iterations(options[key]) for key in done["key"]]
    done = done[done["iterations"].notna()]
    if done.empty:
        return nothing("no finished run with routing")
    done["iterations"] = done["iterations"].astype(int)
    done[_ACCURACY] = 100 - done["test_error"]
    done[_SECONDS] = done["seconds"] / done["epochs"]
    done["network"] = _networks(
        [_parts(model, options[key]) for model, key in zip(done["model"], done["key"], strict=True)]
    )
    experiments = list(dict.fromkeys(done["experiment"]))
    figure, grid = plt.subplots(
        len(experiments), 2, figsize=(12, 3.3 * len(experiments)), squeeze=False, layout="constrained"
    )
    for row, experiment in zip(grid, experiments, strict=True):
        cells = done[done["experiment"] == experiment]
        networks = cells["network"].nunique()
        for axis, quantity in zip(row, (_ACCURACY, _SECONDS), strict=True):
            sns.pointplot(
                cells, x="iterations", y=quantity, hue="network", errorbar=("pi", 100), capsize=0.06,
                dodge=0.15 if networks > 1 else False,
                markers=[_MARKERS[n % len(_MARKERS)] for n in range(networks)],
                linestyles=[_LINES[n % len(_LINES)] for n in range(networks)], linewidth=1.6, ax=axis,
            )  # fmt: skip
            axis.set(xlabel="routing iterations", title=title_of(plan, experiment, runs))
            axis.get_legend().remove()
        legend_beside(row[1])
        row[1].set_ylim(bottom=0)
    figure.suptitle("mean over the seeds, bars from the lowest to the highest", fontsize="medium")
    return figure


def _iterations(options: dict[str, Any]) -> int | None:
    """Return the iterations of a network's routing; some networks have one of their own, which is no group."""
    found: int | None = (options.get("routing") or options).get("iterations")
    return found


def _parts(model: str, options: dict[str, Any]) -> list[str]:
    """Return what may tell one line from another: network, routing, loss, transform, and the decoder last."""
    parts = [
        form.format(registry[options[group]["name"]].title) if options.get(group) else ""
        for group, registry, form in _GROUPS
    ]
    decoder = ""
    if "decoder" in options:
        decoder = "with reconstruction" if options["decoder"] else "without reconstruction"
    return [MODELS[model].title, *parts, decoder]


def _networks(parts: list[list[str]]) -> list[str]:
    """Name the line of each run by the parts in which runs differ, and by its decoder in any case."""
    differs = [len(set(column) - {""}) > 1 for column in zip(*parts, strict=True)]
    differs[-1] = True
    names = [", ".join(p for p, d in zip(row, differs, strict=True) if d and p) for row in parts]
    return [name or row[0] for name, row in zip(names, parts, strict=True)]
