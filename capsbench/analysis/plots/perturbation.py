"""What single values of a class capsule's pose change in its reconstruction, as in S17's Figure 4."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from capsbench.analysis.measures import Measures
from capsbench.analysis.plots.panels import Panel, first_seeds, lay_out, nothing, title_of
from capsbench.analysis.plots.style import SMALL, WIDTH, styled
from capsbench.run.folder import RunFolder
from capsbench.study import Plan

_ROWS = 6  # values of the pose, those that change most
_LEFT, _RIGHT = 0.62, 0.17
_GREY = 128


@styled
def plot_perturbation(plan: Plan, results: Path | None, runs: pd.DataFrame, measures: Measures) -> Figure:
    """Draw for the first seed of each variant one image, with the six values of its pose that change it most."""
    if results is None:
        return nothing("perturbed reconstructions stand in run folders")
    found = []
    for row, path in first_seeds(
        runs,
        lambda key: RunFolder.of(results, plan.study.name, key).evaluation_path("perturbation").with_suffix(".npz"),
    ):
        result = measures.get(row["key"], {}).get("perturbation", {})
        if result.get("status") != "ok":
            continue
        with RunFolder(path.parents[1]).arrays("perturbation") as arrays:
            images = arrays["perturbed"]  # [P, D, 11, C, H, W]
        right = np.flatnonzero(np.equal(result["sample_labels"], result["sample_predictions"]))
        shown = int(right[0]) if len(right) else 0
        strongest = np.argsort(result["change_by_dimension"], kind="stable")[::-1][:_ROWS]
        title = f"{title_of(plan, row['experiment'], runs)}: {row['label']}, seed {row['seed']}"
        found.append((title, images[shown][strongest, :, 0], [int(place) + 1 for place in strongest], result["steps"]))
    if not found:
        return nothing("no finished run with a decoder has a result of 'perturbation'")
    panels = [Panel(title, _height(images), below=0.2) for title, images, _, _ in found]
    note = "Each row: one value of the winning capsule's pose, changed by what stands below; 0 is the reconstruction."
    figure, axes = lay_out(panels, left=_LEFT, note=note)
    for (axis,), (_, images, places, steps) in zip(axes, found, strict=True):
        _draw(axis, images, places, steps)
    return figure


def _height(images: np.ndarray) -> float:
    """Return the inches that images [D, 11, H, W] need to be square."""
    return (WIDTH - _LEFT - _RIGHT) * int(images.shape[0]) / int(images.shape[1])


def _draw(axis: Any, images: np.ndarray, places: list[int], steps: list[float]) -> None:
    framed = np.pad(images, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=_GREY)
    picture = np.vstack([np.hstack(list(row)) for row in framed])
    height, width = picture.shape
    axis.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto",
                extent=(0, width, height, 0))  # fmt: skip
    side = height / len(places)
    axis.set_yticks([side * (row + 0.5) for row in range(len(places))], [f"value {place}" for place in places])
    across = width / len(steps)
    named = [0, len(steps) // 2, len(steps) - 1]
    places_of = [across * (step + 0.5) for step in named]
    axis.set_xticks(places_of, [f"{steps[step]:+g}".replace("-", "−") if steps[step] else "0" for step in named])
    axis.tick_params(length=0, labelsize=SMALL)
    axis.grid(visible=False)
    for spine in axis.spines.values():
        spine.set_visible(False)
