"""Test images above their reconstructions, a panel per variant."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from capsbench.analysis.plots.panels import nothing, title_of
from capsbench.run.folder import RunFolder
from capsbench.study import Plan


def plot_reconstructions(plan: Plan, results: Path, runs: pd.DataFrame) -> Figure:
    """The first test image of each class above its reconstruction, from the first seed of each variant."""
    found = []
    for _, row in runs[runs["status"] == "ok"].drop_duplicates(["experiment", "variant"]).iterrows():
        folder = RunFolder.of(results, plan.study.name, row["key"])
        if not folder.predictions_path.exists():
            continue
        with np.load(folder.predictions_path) as arrays:
            if "sample_reconstructions" in arrays:
                found.append((row, _sample_strips(arrays)))
    if not found:
        return nothing("no finished run with reconstruction")
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
        title = f"{title_of(plan, row['experiment'], runs)}, {row['label']}, seed {row['seed']}"
        axis.set_title(title, fontsize="small")
    return figure


def _sample_strips(arrays: Any) -> dict[str, np.ndarray]:
    """Return strips of images by name, each above its reconstruction; for pairs the pair first, then each digit."""
    targets, found = arrays["sample_targets"], arrays["sample_reconstructions"]
    if targets.ndim == 4:
        return {"original": _strip(targets), "reconstruction": _strip(found)}
    strips = {"pair": _strip(arrays["sample_images"])}
    for place, name in enumerate(("one digit", "the other")):
        strips |= {name: _strip(targets[:, place]), f"{name}, reconstructed": _strip(found[:, place])}
    return strips


def _strip(images: np.ndarray) -> np.ndarray:
    """Put images uint8 [S, C, H, W] side by side: their first channel, a grey line between them."""
    framed = np.pad(images[:, 0], ((0, 0), (0, 1), (0, 1)), constant_values=128)
    return np.hstack(list(framed))
