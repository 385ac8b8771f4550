"""Test images above their reconstructions, with label and prediction, as in S17's figures 3 and 5."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from capsbench.analysis.plots.panels import Panel, first_seeds, lay_out, nothing, title_of
from capsbench.analysis.plots.style import INK, SMALL, WIDTH, styled
from capsbench.run.folder import RunFolder, whole
from capsbench.study import Plan

_LEFT, _RIGHT = 0.78, 0.17  # inches beside the images
_TEXT = 0.125  # inches: a row of labels or predictions
_WRONG = "#D55E00"
# of the two digits of a pair: overlaid they give white, apart they differ in brightness too, for readers of grey prints
_FIRST, _SECOND = np.array([0.97, 0.60, 0.0]), np.array([0.03, 0.40, 1.0])
_GREY = 128


@dataclass(frozen=True)
class _Samples:
    """What a run shows. rows: strips of images [H, W, 3] by name. labels, predicted: classes [P, S] of its images."""

    title: str
    rows: dict[str, np.ndarray]
    labels: np.ndarray
    predicted: np.ndarray

    @property
    def wrong(self) -> np.ndarray:
        """Tell for each image whether it is classified wrongly: bool [P]."""
        found: np.ndarray = (np.sort(self.labels, axis=1) != np.sort(self.predicted, axis=1)).any(axis=1)
        return found


@styled
def plot_reconstructions(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """The first test image of each class above its reconstruction, from the first seed of each variant.

    Above them stand the label and what the network says, which is also the class that the decoder is given. Wrong ones
    are framed and marked. Of pairs of digits, the two are shown in two colours, as they should be and as reconstructed.
    """
    if results is None:
        return nothing("reconstructions stand in run folders")
    found = []
    for row, path in first_seeds(runs, lambda key: RunFolder.of(results, plan.study.name, key).predictions_path):
        folder = RunFolder(path.parent)
        folder.check(path, folder.read_record() or {})
        with whole(path, "evaluate"), np.load(path) as arrays:
            if "sample_reconstructions" in arrays:
                title = f"{title_of(plan, row['experiment'], runs)}: {row['label']}, seed {row['seed']}"
                found.append(_read(title, arrays))
    if not found:
        return nothing("no finished run with reconstruction")
    note = "Framed and marked *: wrong."
    if any(samples.labels.shape[1] == 2 for samples in found):
        note += " Pairs: one digit orange, the other blue, white where both are; the reconstruction of each alike."
    figure, axes = lay_out([Panel(s.title, _height(s), below=0.04) for s in found], left=_LEFT, note=note)
    for (axis,), samples in zip(axes, found, strict=True):
        _draw(axis, samples)
    return figure


def _read(title: str, arrays: Any) -> _Samples:
    targets, found = arrays["sample_targets"], arrays["sample_reconstructions"]
    labels, scores = arrays["labels"], arrays["scores"]
    labels = labels.reshape(len(labels), -1)  # [N, S]
    chosen = [int(np.flatnonzero(labels[:, 0] == value)[0]) for value in np.unique(labels[:, 0])]
    shown, said = labels[chosen], np.sort(np.argsort(-scores[chosen], axis=1, kind="stable")[:, : labels.shape[1]])
    if targets.ndim == 4:
        rows = {"input": strip(_grey(targets)), "reconstruction": strip(_grey(found))}
    else:
        rows = {
            "input": strip(_grey(arrays["sample_images"])),
            "its two digits": strip(overlaid(targets)),
            "reconstructions": strip(overlaid(in_order_of(shown, said, found))),
        }
    return _Samples(title, rows, shown, said)


def in_order_of(labels: np.ndarray, predicted: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Put reconstructions [P, 2, ...], which follow the predicted classes, beside the labels: one digit, one colour."""
    crossed = (predicted[:, 0] == labels[:, 1]) | (predicted[:, 1] == labels[:, 0])
    return np.where(crossed.reshape(-1, *[1] * (found.ndim - 1)), found[:, ::-1], found)


def _draw(axis: Any, samples: _Samples) -> None:
    picture = np.vstack(list(samples.rows.values()))
    height, width = picture.shape[:2]
    side, count = height // len(samples.rows), len(samples.labels)
    axis.imshow(picture, interpolation="nearest", aspect="auto", extent=(0, width, height, 0))
    text = height * _TEXT / _images_height(samples)  # in pixels
    axis.set(xlim=(0, width), ylim=(height, -2 * text))
    axis.set_yticks(
        [-1.5 * text, -0.5 * text, *(side * (n + 0.5) for n in range(len(samples.rows)))],
        ["label", "prediction", *samples.rows],
    )
    axis.set_xticks([])
    axis.tick_params(length=0)
    axis.grid(visible=False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    for place in range(count):
        middle, wrong = (place + 0.5) * width / count, bool(samples.wrong[place])
        style = {"ha": "center", "va": "center", "fontsize": SMALL}
        axis.text(middle, -1.5 * text, _said(samples.labels[place]), color=INK, **style)
        said = _said(samples.predicted[place]) + ("*" if wrong else "")
        color, weight = (_WRONG, "bold") if wrong else (INK, "normal")
        axis.text(middle, -0.5 * text, said, color=color, fontweight=weight, **style)
        if wrong:
            left, right = place * width / count + 0.5, (place + 1) * width / count - 0.5
            axis.plot(
                [left, right, right, left, left], [0.5, 0.5, height - 0.5, height - 0.5, 0.5], color=_WRONG,
                linewidth=1.1, label="wrong",
            )  # fmt: skip


def _height(samples: _Samples) -> float:
    return _images_height(samples) + 2 * _TEXT


def _images_height(samples: _Samples) -> float:
    """Return the inches that the images need to be square."""
    strip = next(iter(samples.rows.values()))
    height, width = strip.shape[:2]
    return (WIDTH - _LEFT - _RIGHT) * int(height) / int(width) * len(samples.rows)


def _said(classes: np.ndarray) -> str:
    return " ".join(str(int(value)) for value in sorted(classes))


def _grey(images: np.ndarray) -> np.ndarray:
    """Show the first channel of images uint8 [P, C, H, W] as colours [P, H, W, 3]."""
    return np.repeat(images[:, 0, :, :, None], 3, axis=3)


def overlaid(pairs: np.ndarray) -> np.ndarray:
    """Show two images uint8 [P, 2, C, H, W] in one, each in its colour: [P, H, W, 3]."""
    first, second = (pairs[:, place, 0, :, :, None] / 255 for place in (0, 1))
    mixed: np.ndarray = np.round(255 * np.clip(first * _FIRST + second * _SECOND, 0, 1))
    return mixed.astype(np.uint8)


def strip(images: np.ndarray) -> np.ndarray:
    """Put images [P, H, W, 3] side by side, a grey line after and below each."""
    framed = np.pad(images, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=_GREY)
    return np.hstack(list(framed))
