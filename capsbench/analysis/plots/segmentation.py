"""Overlaid digits, the sources that they were made of, and the masks that a decoder draws of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from capsbench.analysis.measures import Measures
from capsbench.analysis.plots.panels import Panel, first_seeds, lay_out, nothing, title_of
from capsbench.analysis.plots.reconstructions import in_order_of, overlaid, strip
from capsbench.analysis.plots.style import SMALL, WIDTH, styled
from capsbench.run.folder import RunFolder
from capsbench.study import Plan

_LEFT, _RIGHT = 0.78, 0.17


@styled
def plot_segmentation(plan: Plan, results: Path | None, runs: pd.DataFrame, measures: Measures) -> Figure:
    """Draw for the first seed of each variant ten pairs: the overlay, its two digits, and the masks of the decoder."""
    if results is None:
        return nothing("masks stand in run folders")
    found = []
    for row, path in first_seeds(
        runs,
        lambda key: RunFolder.of(results, plan.study.name, key).evaluation_path("segmentation").with_suffix(".npz"),
    ):
        result = measures.get(row["key"], {}).get("segmentation", {})
        if result.get("status") != "ok":
            continue
        with RunFolder(path.parents[1]).arrays("segmentation") as arrays:
            rows = _rows(result, arrays)
        title = f"{title_of(plan, row['experiment'], runs)}: {row['label']}, seed {row['seed']}"
        found.append((f"{title}\nIoU over all pairs of this seed {result['iou']:.0f} %", rows))
    if not found:
        return nothing("no finished run with a decoder has a result of 'segmentation'")
    panels = [Panel(title, _height(rows), below=0.04) for title, rows in found]
    note = (
        "One digit orange, the other blue, white where both are. A mask is where a reconstruction is above threshold."
    )
    figure, axes = lay_out(panels, left=_LEFT, note=note)
    for (axis,), (_, rows) in zip(axes, found, strict=True):
        _draw(axis, rows)
    return figure


def _rows(result: Mapping[str, Any], arrays: Any) -> dict[str, np.ndarray]:
    labels, said = (np.asarray(result[name]) for name in ("example_labels", "example_predictions"))
    threshold = 255 * float(result.get("options", {}).get("threshold", 0.5))
    masks = in_order_of(labels, said, arrays["example_reconstructions"]) > threshold
    images = np.repeat(arrays["example_images"][:, 0, :, :, None], 3, axis=3)
    return {
        "input": strip(images),
        "its two digits": strip(overlaid(arrays["example_sources"])),
        "masks": strip(overlaid(255 * masks.astype(np.uint8))),
    }


def _height(rows: dict[str, np.ndarray]) -> float:
    height, width = next(iter(rows.values())).shape[:2]
    return (WIDTH - _LEFT - _RIGHT) * int(height) / int(width) * len(rows)


def _draw(axis: Any, rows: dict[str, np.ndarray]) -> None:
    picture = np.vstack(list(rows.values()))
    height, width = picture.shape[:2]
    axis.imshow(picture, interpolation="nearest", aspect="auto", extent=(0, width, height, 0))
    side = height / len(rows)
    axis.set_yticks([side * (n + 0.5) for n in range(len(rows))], list(rows))
    axis.set_xticks([])
    axis.tick_params(length=0, labelsize=SMALL)
    axis.grid(visible=False)
    for spine in axis.spines.values():
        spine.set_visible(False)
