"""The card of a data set: where it comes from, what is in it, what it looks like."""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from capsbench.data import make_task, read_split
from capsbench.data.prepare import prepare, splits_of
from capsbench.data.tasks.affine import Placed
from capsbench.data.tasks.pairs import FRAME, Pairs
from capsbench.data.tasks.task import Task
from capsbench.study import Data, Split, default_training

EXAMPLES = 10  # of each class
FIRST = 10_000  # images whose pixels are counted
BINS = 8
INK_BOX = 20  # side of the box that MNIST's ink was fitted to
COMPARED_SHIFTS = (4, 6)  # S17's text, the command of its authors' generator
ZOOM = 2

Tasks = dict[Split, Task]


def write_card(data: Data, root: Path, folder: Path) -> list[Path]:
    """Write NAME.md and NAME.png into a folder and return their paths.

    Raises:
        InputError: as `prepare` does.
    """
    manifest = prepare(data, root)
    tasks = {split: _task(data, root, split) for split in splits_of(data)}
    folder.mkdir(parents=True, exist_ok=True)
    sheet, text = folder / f"{data.name}.png", folder / f"{data.name}.md"
    contact_sheet(data, tasks).save(sheet, optimize=True)
    text.write_text(card_text(data, manifest, tasks), encoding="utf-8")
    return [text, sheet]


def card_text(data: Data, manifest: dict[str, Any], tasks: Tasks) -> str:
    """Return the card as Markdown."""
    facts = data.facts
    lines = _head(data, manifest, tasks["test"])
    lines += ["", "Images of each class:" if facts.objects == 1 else "Pairs in which each class is:", ""]
    lines += _table(
        ["split", "images", *facts.classes],
        [[split, manifest[split]["images"], *manifest[split]["images_by_class"]] for split in tasks],
    )
    for factor in manifest["train"]["factors"]:
        counts = {split: manifest[split]["factors"][factor] for split in tasks}
        values = list(dict.fromkeys(value for by_value in counts.values() for value in by_value))
        lines += ["", f"Images by {factor}" + (" (-1: unknown):" if "-1" in values else ":"), ""]
        lines += _table(["split", *values], [[s, *(counts[s].get(v, 0) for v in values)] for s in tasks])
    lines += ["", f"Pixel values of the first {FIRST:,} images, in % of all pixels, with mean and std:", ""]
    edges = [f"{256 * i // BINS}-{256 * (i + 1) // BINS - 1}" for i in range(BINS)]
    lines += _table(["split", *edges, "mean", "std"], [[split, *_pixels(task)] for split, task in tasks.items()])
    lines += ["", "Fingerprints (sha256 of the arrays that the images are made from):", ""]
    lines += _table(["split", "made from", "sha256"], [
        [s, f"{manifest[s]['made_from']:,} images", f"`{manifest[s]['fingerprint']}`"] for s in tasks
    ])  # fmt: skip
    files = {name: value for split in tasks for name, value in manifest[split]["files"].items()}
    if files:
        lines += ["", "Raw files (sha256 where no other hash is named; of the uncompressed bytes of a .gz):", ""]
        lines += _table(["file", "hash"], [[name, f"`{value}`"] for name, value in files.items()])
    if any(isinstance(task, Pairs | Placed) for task in tasks.values()):
        lines += ["", f"Fingerprints of the first {FIRST:,} images that are made of them (sha256):", ""]
        lines += _table(["split", "sha256"], [[split, f"`{_images_hash(task)}`"] for split, task in tasks.items()])
    return "\n".join(lines) + "\n"


def _head(data: Data, manifest: dict[str, Any], test: Task) -> list[str]:
    """Return the title, the picture and the facts of the whole data set."""
    facts = data.facts
    shown = ", ".join(f"{k} {v}" for k, v in manifest["options"].items()) or "none"
    return [
        f"# {data.name}: {facts.title}", "",
        f"![images of each class]({data.name}.png)", "",
        f"- source: {facts.source}", f"- licence: {facts.licence}",
        f"- a network sees: {' x '.join(map(str, data.image_shape))} (channels, height, width)",
        f"- options: {shown}",
        *(f"- **not the official files**: {line}" for line in manifest["unofficial"]),
        *(f"- {line}" for line in (overlap_text(test) if isinstance(test, Pairs) else [])),
    ]  # fmt: skip


def overlap_text(task: Pairs) -> list[str]:
    """Describe the overlap of the two digits of a pair, measured on up to 10,000 test pairs.

    By three measures, since we know of which boxes S17 states 80 % from a quotation alone; by two of them also for the
    shifts that the paper and the authors' generator have.
    """
    indices = torch.arange(min(FIRST, len(task.labels)))
    sources = torch.cat([task.eval_images(part)[1] for part in indices.split(1000)])  # [N, 2, 1, 36, 36]
    share, union = box_overlap(sources[:, 0, 0], sources[:, 1, 0])

    def squares(shift: int) -> str:
        frames, boxes = (100 * task.frame_overlap(side, shift)[: len(indices)].mean() for side in (FRAME, INK_BOX))
        return (
            f"{frames:.1f} % of their {FRAME}x{FRAME} frames, {boxes:.1f} % of the {INK_BOX}x{INK_BOX} boxes in the "
            "middle of these"
        )

    own = task.options.shift
    return [
        f"overlap of the two digits on average, measured on {len(indices):,} test pairs: {squares(own)} (S17 states "
        "80 %, as quoted to us of the boxes)",
        *(f"the same pairs with shift {shift}: {squares(shift)}" for shift in COMPARED_SHIFTS if shift != own),
        f"overlap of the boxes around their ink: {100 * share.mean():.1f} % of the smaller one on average (10th "
        f"percentile {100 * share.quantile(0.1):.0f} %), intersection over union {union.mean():.3f}",
    ]


def box_overlap(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Compare the bounding boxes of the ink of two lists of images.

    Args:
        first: uint8 [N, H, W].
        second: uint8 [N, H, W].

    Returns:
        The intersection over the smaller box, and over the union, float64 [N] each.
    """
    tops, bottoms = zip(*(_extent((image > 0).any(dim=2)) for image in (first, second)), strict=True)
    lefts, rights = zip(*(_extent((image > 0).any(dim=1)) for image in (first, second)), strict=True)
    height = (torch.minimum(*bottoms) - torch.maximum(*tops)).clamp_min(0)
    width = (torch.minimum(*rights) - torch.maximum(*lefts)).clamp_min(0)
    areas = [(bottoms[i] - tops[i]) * (rights[i] - lefts[i]) for i in range(2)]
    both = (height * width).double()
    return both / torch.minimum(*areas), both / (areas[0] + areas[1] - both)


def contact_sheet(data: Data, tasks: Tasks) -> Image.Image:
    """Draw training images as a network sees them, then images of each class from the evaluation list of each split."""
    seen = _training_examples(data, tasks["train"])
    blocks = [(f"{data.name}, a training batch as the network sees it", seen)]
    blocks += [(f"{data.name}, {split}", _examples(task)) for split, task in tasks.items()]
    strips = [_block(title, images) for title, images in blocks]
    width = max(strip.width for strip in strips)
    sheet = Image.new("RGB", (width, sum(strip.height for strip in strips)), "white")
    top = 0
    for strip in strips:
        sheet.paste(strip, (0, top))
        top += strip.height
    return sheet


def _task(data: Data, root: Path, split: Split) -> Task:
    return make_task(data, read_split(data, root, split), split, torch.device("cpu"))


def _examples(task: Task) -> np.ndarray:
    """Return images of each class, spread evenly through the class: uint8 [classes, EXAMPLES, H, W, 3]."""
    rows = []
    main = task.labels if task.labels.ndim == 1 else task.labels[:, 0]
    for value in main.unique():
        members = (main == value).nonzero().flatten()
        indices = members[torch.linspace(0, len(members) - 1, EXAMPLES).long()]
        images, sources = task.eval_images(indices)
        if sources is not None:
            images = torch.cat([images, sources[:, 0], sources[:, 1]], dim=3)
        rows.append(_side_by_side(images))
    return np.stack(rows)


def _training_examples(data: Data, task: Task) -> np.ndarray:
    augmentation = default_training(data).augmentation
    batch = next(task.train_batches(3 * EXAMPLES, augmentation, seed=0, epoch=1))
    images = batch.images.reshape(3, -1, *batch.images.shape[1:])
    low, high = images.amin(dim=(2, 3, 4), keepdim=True), images.amax(dim=(2, 3, 4), keepdim=True)
    if float(low.min()) >= 0:  # not standardised: shown unchanged
        low, high = torch.zeros_like(low), torch.ones_like(high)
    shown = ((images - low) / (high - low).clamp_min(1e-6) * 255).round().to(torch.uint8)
    return np.stack([_side_by_side(row) for row in shown])


def _side_by_side(images: Tensor) -> np.ndarray:
    """Images uint8 [N, C, H, W] -> [N, H, W, 3], or [N, H, 2 W, 3] with the images of two cameras side by side."""
    if images.shape[1] == 3:
        return images.permute(0, 2, 3, 1).numpy()
    return torch.cat(list(images.unbind(1)), dim=2).unsqueeze(3).expand(-1, -1, -1, 3).numpy()


def _block(title: str, images: np.ndarray) -> Image.Image:
    """Draw uint8 [rows, columns, H, W, 3] in a grid under a title."""
    framed = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)), constant_values=255)
    grid = np.concatenate([np.concatenate(list(row), axis=1) for row in framed])
    picture = Image.fromarray(grid)
    picture = picture.resize((picture.width * ZOOM, picture.height * ZOOM), Image.Resampling.NEAREST)
    block = Image.new("RGB", (picture.width, picture.height + 22), "white")
    ImageDraw.Draw(block).text((4, 4), title, fill="black", font_size=13)
    block.paste(picture, (0, 22))
    return block


def _extent(occupied: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first occupied place and the place after the last one: bool [N, L] -> int64 [N] each."""
    length = occupied.shape[1]
    return occupied.int().argmax(dim=1), length - occupied.flip(1).int().argmax(dim=1)


def _images_hash(task: Task) -> str:
    digest = hashlib.sha256()
    for images in _first_images(task):
        digest.update(images.numpy().tobytes())
    return digest.hexdigest()


def _pixels(task: Task) -> list[str]:
    """Return the share of pixels in each bin in %, mean and std."""
    counts = torch.zeros(256, dtype=torch.float64)
    for images in _first_images(task):
        counts += torch.bincount(images.flatten().long(), minlength=256)
    shares = counts / counts.sum()
    values = torch.arange(256, dtype=torch.float64)
    mean = float((shares * values).sum())
    std = math.sqrt(float((shares * (values - mean) ** 2).sum()))
    return [*(f"{100 * float(part.sum()):.1f}" for part in shares.chunk(BINS)), f"{mean:.2f}", f"{std:.2f}"]


def _first_images(task: Task) -> Iterator[Tensor]:
    for indices in torch.arange(min(FIRST, len(task.labels))).split(1000):
        yield task.eval_images(indices)[0]


def _table(header: list[Any], rows: list[list[Any]]) -> list[str]:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in ([*map(str, header)], *rows)]
    return [lines[0], "|---" * len(header) + "|", *lines[1:]]
