"""Digits in 40x40: placed at random (training, the familiar test) or affinely transformed (affNIST's kind).

The ranges are affNIST's: rotation within 20 degrees, shear within 0.2, horizontal and vertical scale each 0.8 to 1.2,
then a translation to wherever the digit still fits. Bilinear; test images are fixed by seed and index.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from capsbench.config import Augmentation
from capsbench.data.batches import Batch, Feed, to_unit_range
from capsbench.data.catalogue import DataSet, Role
from capsbench.data.plain import Plain
from capsbench.data.raw import Raw
from capsbench.data.transforms import augment, windows
from capsbench.randomness import indexed_draws

SIDE = 40
DEGREES, SHEAR, SCALE = 20.0, 0.2, 0.2
DRAWS = 6  # angle, shear, two scales, two translations
INK = 20  # of 255: fainter pixels may leave the image


def make_feed(facts: DataSet, raw: Raw, role: Role, options: Any, device: torch.device) -> Feed:
    """Show digits as the options say in training, translated in the familiar test, affine in the test.

    The official affNIST brings its own test images; of MNIST placed at random the test is translated too.
    """
    seed = options.transform_seed
    if role in ("train", "validation"):
        return Placed(raw, getattr(options, "train", "translated"), 1, seed, device)
    if role == "test" and facts.name == "affnist":
        return Plain(raw, device)
    if role == "test" and facts.paper == "affnist":
        return Placed(raw, "affine", options.transforms_per_image, seed, device)
    return Placed(raw, "translated", 1, seed, device)


class Placed(Feed):
    """Digits `translated` by whole pixels, all 28x28 inside, or under a whole `affine` map; anew in each epoch."""

    def __init__(
        self,
        raw: Raw,
        mode: Literal["translated", "affine"],
        transforms_per_image: int,
        seed: int,
        device: torch.device,
    ):
        self.mode = mode
        self.digits = torch.from_numpy(raw.images).to(device)  # [N, 1, 28, 28]
        room = SIDE - self.digits.shape[-1]
        self.places = windows(self.digits, room, SIDE, SIDE)  # [N, 1, 13, 13, 40, 40], a view
        self.items = len(self.digits)
        self.digit_labels = torch.from_numpy(raw.labels).to(device)
        self.labels = self.digit_labels.repeat(transforms_per_image)  # fixed item i shows digit i modulo N
        self.draws = indexed_draws(seed, "placement", len(self.labels), DRAWS)

    def training_batch(self, chosen: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Batch:
        """Draw the places or maps anew; augmentation acts on what they give."""
        draws = torch.rand(len(chosen), DRAWS, dtype=torch.float64, generator=generator)
        images = augment(self._show(chosen, draws), augmentation, generator)
        return Batch(images, self.digit_labels[chosen], images)

    def fixed_items(self, chosen: Tensor) -> tuple[Tensor, None]:
        """Return images uint8 [B, 1, 40, 40]."""
        images = self._show(chosen % len(self.digits), self.draws[chosen.cpu()])
        return (images * 255).round().to(torch.uint8), None

    def _show(self, chosen: Tensor, draws: Tensor) -> Tensor:
        """Digits [B] under draws [B, 6] -> float [B, 1, 40, 40]."""
        draws = draws.to(chosen.device)
        if self.mode == "affine":
            return affine_images(to_unit_range(self.digits[chosen]), draws.float())
        rows, columns = (draws[:, 4:] * self.places.shape[2]).long().unbind(1)
        return to_unit_range(self.places[chosen, :, rows, columns])


def affine_images(digits: Tensor, draws: Tensor) -> Tensor:
    """Digits float [B, 1, h, w] under draws float [B, 6] in [0, 1) -> images float [B, 1, 40, 40].

    Rotation, then shear along x, then scale, about the digit's centre, then translation.
    """
    matrix = affine_matrices(draws)  # [B, 2, 2], of (x, y)
    low, high = _reach(digits, matrix)  # [B, 2] each, from the digit's centre
    edge = SIDE / 2 - 1  # half a pixel of ink's own breadth stays inside too
    least, most = -edge - low, edge - high
    translation = torch.where(least <= most, least + draws[:, 4:] * (most - least), (least + most) / 2)

    places = _centred(SIDE, digits)  # [40]
    y, x = torch.meshgrid(places, places, indexing="ij")
    wanted = torch.stack([x, y], -1).flatten(0, 1) - translation[:, None]  # [B, 1600, 2]
    found = wanted @ torch.linalg.inv(matrix).transpose(1, 2)  # where in the digit each pixel comes from
    height, width = digits.shape[-2:]
    grid = (found * (2 / found.new_tensor([width, height]))).unflatten(1, (SIDE, SIDE))  # [B, 40, 40, 2] in [-1, 1]
    return F.grid_sample(digits, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def affine_matrices(draws: Tensor) -> Tensor:
    """Draws [B, >= 4] in [0, 1) -> matrices [B, 2, 2] that map (x, y) of the digit to (x, y) of the image."""
    angle, shear, width, height = (2 * draws[:, :4] - 1).unbind(1)
    angle = torch.deg2rad(DEGREES * angle)
    one, zero = torch.ones_like(angle), torch.zeros_like(angle)
    rotation = _matrix(angle.cos(), -angle.sin(), angle.sin(), angle.cos())
    shearing = _matrix(one, SHEAR * shear, zero, one)
    scaling = _matrix(1 + SCALE * width, zero, zero, 1 + SCALE * height)
    return scaling @ shearing @ rotation


def _reach(digits: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """How far the ink of digits [B, 1, h, w] reaches under matrices -> lowest and highest (x, y), [B, 2] each."""
    y, x = torch.meshgrid(_centred(digits.shape[2], digits), _centred(digits.shape[3], digits), indexing="ij")
    points = torch.stack([x, y], -1).flatten(0, 1) @ matrix.transpose(1, 2)  # [B, h * w, 2]
    blank = (digits.flatten(1) < INK / 255).unsqueeze(2)
    return points.masked_fill(blank, torch.inf).amin(dim=1), points.masked_fill(blank, -torch.inf).amax(dim=1)


def _centred(side: int, like: Tensor) -> Tensor:
    """Pixel centres from the middle of a side: [side]."""
    return torch.arange(side, device=like.device, dtype=like.dtype) - (side - 1) / 2


def _matrix(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return torch.stack([torch.stack([a, b], -1), torch.stack([c, d], -1)], -2)
