"""Errors on generated affine MNIST by how far a digit lies from the middle. Used by docs/generate.py.

    python docs/places.py FOLDER      computes docs/places.npz from MNIST, in FOLDER/mnist

From the right/wrong bits of a reference and the places of its test digits. These depend on the ink of each digit, so
they are kept beside this file, in tenths of a pixel, with the fingerprint of the test items that they are of.
"""

import functools
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from findings import read_runs, table
from fitted import difference_text
from matplotlib.figure import Figure
from picture import draw_anew
from summaries import MAIN

import capsbench
from capsbench.analysis.correct_bits import NAME, Correct, read_correct
from capsbench.analysis.plots.style import FONT, QUIET, SMALL, styled
from capsbench.analysis.statistics import summarise_pairs

STUDY, EXPERIMENT = "cpu", "affnist-generated"
FILE = Path(__file__).with_name("places.npz")
TRAINED = 6  # pixels: as far as training moves a digit
PARTS = ((0, 6), (6, 8), (8, 10), (10, 20))  # from the first to below the second
STEP, END = 2, 14  # of the picture, in pixels; 1 % of the digits lie farther out
LINES = {  # of the picture
    "CapsNet, equal couplings": ("#000000", "o", (0, (1, 1.2))),
    "CapsNet, dynamic routing, 3 iterations": ("#0072B2", "s", "-"),
    "CapsNet, EM routing, 3 iterations": ("#D55E00", "^", "-"),
    "matrix capsules, EM routing, 2 iterations": ("#E69F00", "v", (0, (4, 1.5))),
    "CNN of CapsNet's size": ("#009E73", "D", "-"),
    "Efficient-CapsNet": ("#CC79A7", "P", (0, (4, 1.5))),
    "ResNet-20": ("#882255", "X", "-"),
}


def places(reference: Path, study: str, experiment: str, *variants: str) -> str:
    """Return the error of each network by parts of the test digits, from the middle outwards: mean and range of seeds.

    variants: the networks, by default those of the study's summary.

    Raises:
        ValueError: the places that are kept are of other test items, or a variant has no run.
    """
    distance, found = _read(reference, study, experiment, *variants)
    shares = [100 * _within(distance, part).mean() for part in PARTS]
    heads = [f"{_named(part)} ({share:.0f} % of the digits)" for part, share in zip(PARTS, shares, strict=True)]
    rows = [["test error %", *heads, "all", "farthest minus nearest"]]
    for label, wrong in found.items():
        errors = [100 * wrong[:, _within(distance, part)].mean(axis=1) for part in PARTS]
        rise = difference_text(summarise_pairs(list(errors[-1]), list(errors[0])))
        rows.append([label, *map(_cell, errors), _cell(100 * wrong.mean(axis=1)), rise])
    return table(rows)


def draw_places(reference: Path, picture: Path, check: bool) -> bool:
    """Draw the error against the distance, if the picture shows something else; returns whether it does.

    check: only look.
    """
    distance, found = _read(reference, STUDY, EXPERIMENT)
    edges = [(low, low + STEP) for low in range(0, END, STEP)]
    lines = {
        label: np.round([100 * found[label][:, _within(distance, part)].mean(axis=1) for part in edges], 3).tolist()
        for label in LINES
    }  # [parts, seeds]
    return draw_anew(picture, (lines, LINES, TRAINED, STEP, END), lambda: _draw(lines), check)


@styled
def _draw(lines: dict[str, list[list[float]]]) -> Figure:
    figure, axis = plt.subplots(figsize=(6.9, 3.0), layout="constrained")
    axis.axvspan(0, TRAINED, color="0.93", zorder=0)
    axis.text(0.15, 0.97, "as far as in training", transform=axis.get_xaxis_transform(), va="top", fontsize=SMALL)
    middles = np.arange(0, END, STEP) + STEP / 2
    for label, errors in lines.items():
        color, marker, dash = LINES[label]
        seeds = np.array(errors)  # [parts, seeds]
        axis.fill_between(middles, seeds.min(axis=1), seeds.max(axis=1), color=color, alpha=0.15, linewidth=0)
        axis.plot(middles, seeds.mean(axis=1), color=color, marker=marker, linestyle=dash, label=label)
    axis.set(xlim=(0, END), ylim=(0, None), xticks=range(0, END + 1, STEP), ylabel="test error (%)")
    axis.set_xlabel("distance of the digit's centre of mass from the middle, the larger of x and y (pixels)")
    axis.legend(fontsize=FONT, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    for side in ("top", "right"):
        axis.spines[side].set_color(QUIET)
        axis.spines[side].set_visible(False)
    return figure


def _read(reference: Path, study: str, experiment: str, *variants: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the distance of each test digit in pixels, [N], and by network which were wrong, bool [seeds, N]."""
    files = (reference / study / NAME, reference / study / "runs.csv", FILE)
    return _known(reference, study, experiment, variants, tuple(file.stat().st_mtime_ns for file in files))


@functools.lru_cache(maxsize=4)
def _known(
    reference: Path, study: str, experiment: str, variants: tuple[str, ...], _written: tuple[int, ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    correct, runs = read_correct(reference / study / NAME), read_runs(reference, study)
    distance = kept_places(correct, experiment)
    runs = runs[(runs["experiment"] == experiment) & (runs["status"] == "ok")].sort_values("seed", kind="stable")
    labels = dict(zip(runs["variant"], runs["label"], strict=True))
    if variants:
        named = {str(labels.get(variant, variant)): variant for variant in variants}
    else:
        named = {label: own[experiment] for label, own in MAIN[study].items() if experiment in own}
    return distance, {label: _wrong(correct, runs, variant) for label, variant in named.items()}


def kept_places(correct: Correct, experiment: str) -> np.ndarray:
    """Return the distances that are kept, in pixels, [N].

    Raises:
        ValueError: they are of other test items than the runs of the experiment.
    """
    with np.load(FILE, allow_pickle=False) as kept:
        if str(kept["fingerprint"]) != correct.fingerprints.get(experiment):
            raise ValueError(f"{FILE.name} is of other test items; run python docs/places.py")
        return kept["tenths"] / 10


def _wrong(correct: Correct, runs: pd.DataFrame, variant: str) -> np.ndarray:
    own = runs[runs["variant"] == variant]
    if own.empty:
        raise ValueError(f"no run of {variant}")
    return ~np.stack([correct.right[key] for key in own["key"]])


def _within(distance: np.ndarray, part: tuple[int, int]) -> np.ndarray:
    low, high = part
    return (distance >= low) & (distance < high)


def _named(part: tuple[int, int]) -> str:
    low, high = part
    if low == 0:
        return "as far as in training"
    return f"{low} to {high} pixels" if high < PARTS[-1][1] else f"{low} pixels and more"


def _cell(errors: np.ndarray) -> str:
    errors = errors.round(6)  # 17.35 is a little less in floating point
    return f"{errors.mean():.1f} ({errors.min():.1f} to {errors.max():.1f})"


def compute(reference: Path, root: Path) -> tuple[np.ndarray, str]:
    """Return the distances in tenths of a pixel, uint8 [N], and the fingerprint of the test items; reads MNIST."""
    import torch

    from capsbench.data import make_task, read_split
    from capsbench.evaluation.items import shown_items
    from capsbench.evaluation.viewpoint import displacements

    plan = capsbench.load_study(reference / STUDY / "study.yaml")
    data = plan.data[EXPERIMENT]
    raw = read_split(data, root, "test")
    task = make_task(data, raw, "test", torch.device("cpu"))
    found = [displacements(task.eval_images(part)[0]) for part in torch.arange(len(task.labels)).split(1000)]
    return (10 * torch.cat(found)).round().byte().numpy(), shown_items(data, raw, task, root).fingerprint


if __name__ == "__main__":
    tenths, fingerprint = compute(FILE.parent.parent / "results/reference", Path(sys.argv[1]))
    np.savez_compressed(FILE, tenths=tenths, fingerprint=np.array(fingerprint))
