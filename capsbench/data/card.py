"""The card of a data set: where it comes from, what is in it, what it looks like."""

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from capsbench.config import Augmentation, Data
from capsbench.data import make_feed, read_raw
from capsbench.data.batches import Feed
from capsbench.data.catalogue import CATALOGUE, Role
from capsbench.data.pairs import Pairs
from capsbench.data.prepare import prepare, roles
from capsbench.data.raw import Raw

EXAMPLES = 10  # of each class
BINS = 8
ZOOM = 2


def write_card(data: Data, root: Path, folder: Path) -> list[Path]:
    """Write NAME.md and NAME.png into a folder; returns the paths. Raises InputError as `prepare` does."""
    about = prepare(data, root)
    feeds = {role: _feed(data, root, role) for role in roles(data)}
    folder.mkdir(parents=True, exist_ok=True)
    sheet, text = folder / f"{data.name}.png", folder / f"{data.name}.md"
    contact_sheet(data, feeds).save(sheet, optimize=True)
    text.write_text(card_text(data, about, feeds), encoding="utf-8")
    return [text, sheet]


def card_text(data: Data, about: dict[str, Any], feeds: dict[Role, tuple[Raw, Feed]]) -> str:
    """Return the card as Markdown."""
    facts = CATALOGUE[data.name]
    shown = ", ".join(f"{k} {v}" for k, v in about["options"].items()) or "none"
    lines = [
        f"# {data.name}: {facts.title}", "",
        f"![images of each class]({data.name}.png)", "",
        f"- source: {facts.source}", f"- licence: {facts.licence}",
        f"- a network sees: {' x '.join(map(str, facts.shape(data.options)))} (channels, height, width)",
        f"- options: {shown}",
    ]  # fmt: skip
    lines += [f"- **not the official files**: {line}" for line in about["unofficial"]]
    if isinstance(feed := feeds["test"][1], Pairs):
        lines += [f"- {line}" for line in overlap_text(feed)]
    lines += ["", "Images of each class:" if facts.objects == 1 else "Pairs in which each class is:", ""]
    lines += _table(
        ["split", "images", *facts.classes],
        [[role, about[role]["images"], *about[role]["images_by_class"]] for role in feeds],
    )
    for factor in about["train"]["factors"]:
        values = list(dict.fromkeys(v for role in feeds for v in about[role]["factors"][factor]))
        rows = [[role, *(about[role]["factors"][factor].get(v, 0) for v in values)] for role in feeds]
        lines += ["", f"Images by {factor}" + (" (-1: unknown):" if "-1" in values else ":"), ""]
        lines += _table(["split", *values], rows)
    lines += ["", "Pixel values, in % of all pixels of the first 10,000 fixed images, with their mean and std:", ""]
    edges = [f"{256 * i // BINS}-{256 * (i + 1) // BINS - 1}" for i in range(BINS)]
    lines += _table(["split", *edges, "mean", "std"], [[role, *_pixels(feed)] for role, (_, feed) in feeds.items()])
    lines += ["", "Fingerprints (sha256 of the arrays that the images are made from):", ""]
    lines += _table(["split", "made from", "sha256"], [
        [role, f"{about[role]['made_from']:,} images", f"`{about[role]['fingerprint']}`"] for role in feeds
    ])  # fmt: skip
    if facts.kind in ("pairs", "affine"):
        lines += ["", "Fingerprints of what is made of them (sha256 of the first 10,000 fixed images):", ""]
        lines += _table(["split", "sha256"], [[role, f"`{_fixed_hash(feed)}`"] for role, (_, feed) in feeds.items()])
    return "\n".join(lines) + "\n"


def overlap_text(feed: Pairs) -> list[str]:
    """Say how far the two digits of a pair lie over one another, measured on up to 10,000 test pairs."""
    chosen = torch.arange(min(10_000, len(feed.labels)))
    sources = torch.cat([feed.fixed_items(part)[1] for part in chosen.split(1000)])  # [N, 2, 1, 36, 36]
    share, union = box_overlap(sources[:, 0, 0], sources[:, 1, 0])
    return [
        f"overlap of the two digits, measured on {len(chosen):,} test pairs: {100 * feed.frame_overlap().mean():.1f} % "
        "of their 28x28 frames on average (S17 states 80 %, without saying of what)",
        f"of the boxes around their ink: {100 * share.mean():.1f} % of the smaller one on average (10th percentile "
        f"{100 * share.quantile(0.1):.0f} %), intersection over union {union.mean():.3f}",
    ]


def box_overlap(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Bounding boxes of the ink of images uint8 [N, H, W] -> intersection over the smaller box, and over the union."""
    tops, bottoms = zip(*(_extent((image > 0).any(dim=2)) for image in (first, second)), strict=True)
    lefts, rights = zip(*(_extent((image > 0).any(dim=1)) for image in (first, second)), strict=True)
    height = (torch.minimum(*bottoms) - torch.maximum(*tops)).clamp_min(0)
    width = (torch.minimum(*rights) - torch.maximum(*lefts)).clamp_min(0)
    areas = [(bottoms[i] - tops[i]) * (rights[i] - lefts[i]) for i in range(2)]
    both = (height * width).double()
    return both / torch.minimum(*areas), both / (areas[0] + areas[1] - both)


def contact_sheet(data: Data, feeds: dict[Role, tuple[Raw, Feed]]) -> Image.Image:
    """Draw the first images of each class: fixed ones of every split, and training images as a network sees them."""
    blocks = [(f"{data.name}, {role}", _examples(feed, data)) for role, (_, feed) in feeds.items()]
    seen = _training_examples(data, feeds["train"][1])
    blocks.insert(0, (f"{data.name}, a training batch as the network sees it", seen))
    strips = [_block(title, images) for title, images in blocks]
    width = max(strip.width for strip in strips)
    sheet = Image.new("RGB", (width, sum(strip.height for strip in strips)), "white")
    top = 0
    for strip in strips:
        sheet.paste(strip, (0, top))
        top += strip.height
    return sheet


def _feed(data: Data, root: Path, role: Role) -> tuple[Raw, Feed]:
    raw = read_raw(data.name, root, role, data.allow_unofficial, data.options)
    return raw, make_feed(data.name, raw, role, data.options, torch.device("cpu"))


def _examples(feed: Feed, data: Data) -> np.ndarray:
    """Rows of classes, spread evenly through each class -> uint8 [rows, columns, H, W(, 3)]."""
    rows = []
    main = feed.labels if feed.labels.ndim == 1 else feed.labels[:, 0]
    for value in main.unique():
        members = (main == value).nonzero().flatten()
        chosen = members[torch.linspace(0, len(members) - 1, EXAMPLES).long()]
        images, sources = feed.fixed_items(chosen)
        if sources is not None:
            images = torch.cat([images, sources[:, 0], sources[:, 1]], dim=3)
        rows.append(_side_by_side(images))
    return np.stack(rows)


def _training_examples(data: Data, feed: Feed) -> np.ndarray:
    augmentation = Augmentation(**CATALOGUE[data.name].augmentation)
    batch = next(feed.epoch(3 * EXAMPLES, augmentation, seed=0, epoch=1))
    images = batch.images.reshape(3, -1, *batch.images.shape[1:])
    low, high = images.amin(dim=(2, 3, 4), keepdim=True), images.amax(dim=(2, 3, 4), keepdim=True)
    if float(low.min()) >= 0:  # not standardised: as it is
        low, high = torch.zeros_like(low), torch.ones_like(high)
    shown = ((images - low) / (high - low).clamp_min(1e-6) * 255).round().to(torch.uint8)
    return np.stack([_side_by_side(row) for row in shown])


def _side_by_side(images: Tensor) -> np.ndarray:
    """Images uint8 [N, C, H, W] -> [N, H, W, 3]: colours as they are, two cameras beside one another."""
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
    """First occupied place and the one after the last: bool [N, L] -> two int64 [N]."""
    length = occupied.shape[1]
    return occupied.int().argmax(dim=1), length - occupied.flip(1).int().argmax(dim=1)


def _fixed_hash(feed: Feed) -> str:
    digest = hashlib.sha256()
    for chosen in torch.arange(min(10_000, len(feed.labels))).split(1000):
        digest.update(feed.fixed_items(chosen)[0].numpy().tobytes())
    return digest.hexdigest()


def _pixels(feed: Feed) -> list[str]:
    """Share of pixels in each bin in %, mean and std."""
    counts = torch.zeros(256, dtype=torch.float64)
    for chosen in torch.arange(min(10_000, len(feed.labels))).split(1000):
        counts += torch.bincount(feed.fixed_items(chosen)[0].flatten().long(), minlength=256)
    shares = counts / counts.sum()
    values = torch.arange(256, dtype=torch.float64)
    mean = float((shares * values).sum())
    std = math.sqrt(float((shares * (values - mean) ** 2).sum()))
    return [*(f"{100 * float(part.sum()):.1f}" for part in shares.chunk(BINS)), f"{mean:.2f}", f"{std:.2f}"]


def _table(header: list[Any], rows: list[list[Any]]) -> list[str]:
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in ([*map(str, header)], *rows)]
    return [lines[0], "|---" * len(header) + "|", *lines[1:]]
