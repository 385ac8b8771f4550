"""The templates of a stacked capsule autoencoder's parts, as in the first figures of its paper."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from capsbench.analysis.plots.panels import Panel, first_seeds, lay_out, nothing, title_of
from capsbench.analysis.plots.style import SMALL, WIDTH, styled
from capsbench.run.folder import RunFolder, whole
from capsbench.study import Plan

MODEL = "scae"
_COLUMNS = 8
_LEFT, _RIGHT = 0.1, 0.17  # inches beside the images


@styled
def plot_templates(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """Draw for the first seed of each variant what its parts draw: templates under their masks, eight in a row."""
    if results is None:
        return nothing("templates stand in the weights of run folders")
    models = {run.key: run for run in plan.runs if run.model == MODEL}
    own = runs[runs["key"].isin(models)]
    found = []
    for row, path in first_seeds(own, lambda key: RunFolder.of(results, plan.study.name, key).model_path):
        folder = RunFolder(path.parent)
        folder.check(path, folder.read_record() or {})
        title = f"{title_of(plan, row['experiment'], runs)}: {row['label']}, seed {row['seed']}"
        with whole(path):
            found.append((title, read_templates(path, float(models[row["key"]].options["template_gain"]))))
    if not found:
        return nothing(f"no finished run of {MODEL}")
    note = "Each square: the template of a part times its mask, each through the logistic function."
    panels = [Panel(title, (WIDTH - _LEFT - _RIGHT) * len(rows) / rows.shape[1], below=0.04) for title, rows in found]
    figure, axes = lay_out(panels, left=_LEFT, note=note)
    for (axis,), (_, picture) in zip(axes, found, strict=True):
        axis.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
        axis.set(xticks=[], yticks=[])
        axis.tick_params(length=0, labelsize=SMALL)
        axis.grid(visible=False)
        for spine in axis.spines.values():
            spine.set_visible(False)
    return figure


def read_templates(path: Path, gain: float) -> np.ndarray:
    """Return the templates in the weights of a run as one picture [H, W] in [0, 1], eight in a row.

    A template is the logistic function of its weights, times that of its mask's, both times `gain`.
    """
    from capsbench.run.checkpoint import load_tensors  # torch, slow to import

    weights = load_tensors(path)
    templates, masks = weights["part_decoder.templates"], weights["part_decoder.masks"]  # [M, C, s, s], [M, 1, s, s]
    drawn = ((gain * templates).sigmoid().mean(dim=1) * (gain * masks).sigmoid()[:, 0]).numpy()  # [M, s, s]
    missing = -len(drawn) % _COLUMNS
    padded = np.pad(drawn, ((0, missing), (1, 0), (1, 0)), constant_values=0.5)
    rows = [np.hstack(list(padded[first : first + _COLUMNS])) for first in range(0, len(padded), _COLUMNS)]
    return np.vstack(rows)
