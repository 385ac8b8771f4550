"""Digits in 40x40: placed at random (training, the familiar test) or affinely transformed (affNIST's kind).

The ranges are affNIST's: rotation within 20 degrees, shear within 0.2, horizontal and vertical scale each 0.8 to 1.2,
then a translation, to any place where the digit still fits or as far as training moves its digits. Bilinear; test
images are fixed by seed and index.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from pydantic import Field
from torch import Tensor

from capsbench.data.readers.raw import Raw
from capsbench.data.tasks.augmentation import augment, windows
from capsbench.data.tasks.draws import Draws
from capsbench.data.tasks.task import Batch, Plain, Task, to_unit_range
from capsbench.registry import Count, Said
from capsbench.streams import indexed_draws
from capsbench.study import Augmentation, DataOptions, Split

SIDE = 40
DEGREES, SHEAR, SCALE = 20.0, 0.2, 0.2
DRAWS = 6  # angle, shear, two scales, two translations
INK = 20  # of 255: fainter pixels may leave the image

Mode = Literal["translated", "affine"]
Placement = Literal["anywhere", "training"]


class AffineOptions(DataOptions):
    """Digits in 40x40: trained on translated ones, tested on affine ones (S17, section 5.2; affNIST)."""

    train: Mode = Field("translated", description="affine: the papers' control, trained on what the test shows")
    placement: Annotated[
        Placement,
        Said(
            paper="wherever the digit fits, from memory",
            note="affNIST; training: as far as training's digits, a 28x28 frame by up to 6 pixels",
        ),
    ] = Field(
        "anywhere",
        description="of affine digits: wherever the ink fits, further out than training's digits, so that the test is "
        "one of translation too; training: moved as far as training's digits",
    )
    transforms_per_image: Count = Field(32, description="generated test images for each digit (affNIST: 32)")
    transform_seed: Annotated[int, Field(ge=0)] = Field(0, description="draws the generated test images")


class OfficialAffineOptions(DataOptions):
    """The official affNIST, whose test images are given."""

    train: Mode = Field("translated", description="affine: the papers' control, trained on what the test shows")
    transform_seed: Annotated[int, Field(ge=0)] = Field(0, description="draws the familiar (translated) test")


class TranslatedOptions(DataOptions):
    """Digits placed at random in 40x40, in training and test."""

    transform_seed: Annotated[int, Field(ge=0)] = Field(0, description="draws the test placements")


def make_affine_task(raw: Raw, split: Split, options: AffineOptions, device: torch.device) -> Task:
    """Return affine digits for the test, translated ones for the familiar test, for training what the options set."""
    if split == "test":
        return Placed(raw, "affine", options.transforms_per_image, options.transform_seed, device, options.placement)
    return Placed(raw, _mode(split, options.train), 1, options.transform_seed, device, options.placement)


def make_official_task(raw: Raw, split: Split, options: OfficialAffineOptions, device: torch.device) -> Task:
    """Return affNIST's own images for the test, and for the other splits what `make_affine_task` gives."""
    if split == "test":
        return Plain(raw, device)
    return Placed(raw, _mode(split, options.train), 1, options.transform_seed, device)


def make_translated_task(raw: Raw, split: Split, options: TranslatedOptions, device: torch.device) -> Task:
    """Return translated digits for every split."""
    return Placed(raw, "translated", 1, options.transform_seed, device)


def _mode(split: Split, train: Mode) -> Mode:
    return train if split in ("train", "validation") else "translated"


def digits_of_placed(task: "Placed") -> Int[Tensor, " images"]:
    """Return which digit of the split each evaluation image shows, int64 [N]."""
    return torch.arange(len(task.labels)) % len(task.digits)


class Placed(Task):
    """Digits `translated` by whole pixels, all 28x28 inside, or under a full `affine` map; drawn anew in each epoch.

    placement: where affine digits go. anywhere: wherever the ink fits; training: as far as translated digits.
    """

    def __init__(
        self,
        raw: Raw,
        mode: Mode,
        transforms_per_image: int,
        seed: int,
        device: torch.device,
        placement: Placement = "anywhere",
    ):
        self.mode, self.placement = mode, placement
        self.digits = torch.from_numpy(raw.images).to(device)  # [N, 1, 28, 28]
        room = SIDE - self.digits.shape[-1]
        self.places = windows(self.digits, room, SIDE, SIDE)  # [N, 1, 13, 13, 40, 40], a view
        self.epoch_images = len(self.digits)
        self.digit_labels = torch.from_numpy(raw.labels).to(device)
        self.labels = self.digit_labels.repeat(transforms_per_image)  # evaluation image i shows digit i modulo N
        self.draws = indexed_draws(seed, "placement", len(self.labels), DRAWS).to(device)

    def train_batch(self, indices: Int[Tensor, " batch"], augmentation: Augmentation, draws: Draws) -> Batch:
        """Draw places or maps anew; augmentation acts on the images in 40x40."""
        images = augment(self._show(indices, draws("placement", DRAWS)), augmentation, draws)
        return Batch(images, self.digit_labels[indices], images)

    def eval_images(self, indices: Int[Tensor, " batch"]) -> tuple[UInt8[Tensor, "batch 1 40 40"], None]:
        """Return images uint8 [B, 1, 40, 40]."""
        images = self._show(indices % len(self.digits), self.draws[indices])
        return (images * 255).round().to(torch.uint8), None

    def _show(self, indices: Tensor, draws: Tensor) -> Tensor:
        """Digits [B] under draws [B, 6] -> float [B, 1, 40, 40]."""
        if self.mode == "affine":
            return affine_images(to_unit_range(self.digits[indices]), draws.float(), self.placement)
        rows, columns = (draws[:, 4:] * self.places.shape[2]).long().unbind(1)
        return to_unit_range(self.places[indices, :, rows, columns])


def affine_images(
    digits: Float[Tensor, "batch 1 height width"], draws: Float[Tensor, "batch 6"], placement: Placement = "anywhere"
) -> Float[Tensor, "batch 1 40 40"]:
    """Transform each digit: rotation, then shear along x, then scale, about its centre, then translation.

    Args:
        digits: float [B, 1, h, w].
        draws: in [0, 1), [B, 6]: angle, shear, scale of x and y, translation of x and y, each over its whole range.
        placement: the range of the translation. anywhere: all places where the ink is inside; training: those of the
            digit's frame inside the image, as far as the ink is inside there.

    Returns:
        Images float [B, 1, 40, 40].
    """
    matrix = affine_matrices(draws)  # [B, 2, 2], of (x, y)
    low, high = _reach(digits, matrix)  # [B, 2] each, from the digit's centre
    edge = SIDE / 2 - 1  # the outermost ink is half a pixel wide to its outside; that stays in the image too
    least, most = -edge - low, edge - high
    if placement == "anywhere":
        translation = least + draws[:, 4:] * (most - least)
    else:
        room = SIDE - digits.shape[-1], SIDE - digits.shape[-2]  # (x, y)
        translation = _per_axis(draws[:, 4:] - 0.5, *room).clamp(least, most)
    translation = torch.where(least <= most, translation, (least + most) / 2)

    places = _centred(SIDE, digits)  # [40]
    y, x = torch.meshgrid(places, places, indexing="ij")
    wanted = torch.stack([x, y], -1).flatten(0, 1) - translation[:, None]  # [B, 1600, 2]
    found = wanted @ torch.linalg.inv_ex(matrix).inverse.transpose(1, 2)  # where in the digit each pixel comes from
    height, width = digits.shape[-2:]
    grid = _per_axis(found, 2 / width, 2 / height).unflatten(1, (SIDE, SIDE))  # [B, 40, 40, 2] in [-1, 1]
    return F.grid_sample(digits, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _per_axis(places: Tensor, x: float, y: float) -> Tensor:
    """Multiply (x, y) along the last axis by a number each; a tensor of them would have a GPU waited for."""
    return torch.stack([places[..., 0] * x, places[..., 1] * y], dim=-1)


def affine_matrices(draws: Float[Tensor, "batch draws"]) -> Float[Tensor, "batch 2 2"]:
    """Turn draws in [0, 1), at least 4 columns, into matrices that map (x, y) of the digit to (x, y) of the image."""
    angle, shear, width, height = (2 * draws[:, :4] - 1).unbind(1)
    angle = torch.deg2rad(DEGREES * angle)
    one, zero = torch.ones_like(angle), torch.zeros_like(angle)
    rotation = _matrix(angle.cos(), -angle.sin(), angle.sin(), angle.cos())
    shearing = _matrix(one, SHEAR * shear, zero, one)
    scaling = _matrix(1 + SCALE * width, zero, zero, 1 + SCALE * height)
    return scaling @ shearing @ rotation


def _reach(digits: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest (x, y), [B, 2] each, that the ink of digits [B, 1, h, w] has under matrices."""
    y, x = torch.meshgrid(_centred(digits.shape[2], digits), _centred(digits.shape[3], digits), indexing="ij")
    points = torch.stack([x, y], -1).flatten(0, 1) @ matrix.transpose(1, 2)  # [B, h * w, 2]
    blank = (digits.flatten(1) < INK / 255).unsqueeze(2)
    return points.masked_fill(blank, torch.inf).amin(dim=1), points.masked_fill(blank, -torch.inf).amax(dim=1)


def _centred(side: int, like: Tensor) -> Tensor:
    """Return the distances of pixel centres from the middle of a side: [side]."""
    return torch.arange(side, device=like.device, dtype=like.dtype) - (side - 1) / 2


def _matrix(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return torch.stack([torch.stack([a, b], -1), torch.stack([c, d], -1)], -2)
