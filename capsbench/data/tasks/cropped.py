"""Photographs whole or in part: a random part of each training image, the middle of each test image (S17, section 7).

The order is that of S17's authors' code: crop, then what `training.augmentation` names, brightness and contrast last,
then standardisation. A decoder's target is the crop in [0, 1], before brightness, contrast and standardisation, since
decoders end in a sigmoid; in the authors' code it is the standardised image.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from capsbench.data.readers.raw import Raw
from capsbench.data.tasks.augmentation import (
    Images,
    augment,
    brightness_and_contrast,
    drawn_places,
    standardise,
    windows,
)
from capsbench.data.tasks.draws import Draws
from capsbench.data.tasks.task import Batch, Plain, Task, to_unit_range
from capsbench.registry import Said
from capsbench.study import Augmentation, DataOptions, Split

SIDE = 32  # pixels of a whole image


class CroppedOptions(DataOptions):
    """CIFAR-10 as He et al. 2016 show it (the default), or as S17 does: {crop: 24, standardise: true}."""

    crop: Annotated[
        int,
        Field(ge=24, le=SIDE),
        Said(paper="24x24 patches (S17, section 7)", code="24", note="He et al. 2016, DeepCaps: the whole image"),
    ] = Field(SIDE, description="side of the part that is seen: anywhere in training, the middle in the test")
    standardise: Annotated[
        bool,
        Said(paper="silent", code="true", note="S17; its code also draws brightness 63/255 and contrast 0.8"),
    ] = Field(False, description="bring each image, all channels together, to mean 0 and std 1")

    def augmentation(self, usual: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the papers' augmentation: a crop takes the place of the shift; S17's code adds two changes."""
        found = {key: value for key, value in usual.items() if key != "shift" or self.crop == SIDE}
        return found | {"brightness": 63 / 255, "contrast": 0.8} if self.standardise else found


class Cropped(Plain):
    """Crops [B, C, crop, crop] of images uint8 [N, C, 32, 32]."""

    def __init__(self, raw: Raw, options: CroppedOptions, device: torch.device):
        super().__init__(raw, device)
        self.crop, self.standardise = options.crop, options.standardise

    def train_batch(self, indices: Int[Tensor, " batch"], augmentation: Augmentation, draws: Draws) -> Batch:
        """Crop at random, augment, and standardise where the options say so."""
        targets = augment(to_unit_range(self._random_crops(indices, draws)), augmentation, draws)
        seen = targets
        if augmentation.brightness or augmentation.contrast:
            seen = brightness_and_contrast(
                targets, augmentation.brightness, augmentation.contrast, draws("brightness_and_contrast", 2)
            )
        return Batch(self._as_seen(seen), self.labels[indices], targets)

    def eval_batch(self, indices: Int[Tensor, " batch"], view: int) -> Batch:
        """Take the middle of each image."""
        crops = central_crops(to_unit_range(self.images[indices]), self.crop)
        return Batch(self._as_seen(crops), self.labels[indices], crops)

    def _random_crops(self, indices: Tensor, draws: Draws) -> Tensor:
        """Take a part uint8 [B, C, crop, crop] out of each image; nothing is drawn for whole images."""
        if self.crop == SIDE:
            return self.images[indices]
        rows, columns = drawn_places(draws("crop", 2), SIDE - self.crop)
        return windows(self.images, 0, self.crop, self.crop)[indices, :, rows, columns]

    def _as_seen(self, images: Images) -> Images:
        return standardise(images) if self.standardise else images


def make_task(raw: Raw, split: Split, options: CroppedOptions, device: torch.device) -> Task:
    """Return the crops of a split."""
    return Cropped(raw, options, device)


def central_crops(
    images: Float[Tensor, "batch channels height width"], side: int
) -> Float[Tensor, "batch channels side side"]:
    """Take the middle side x side of each image; half a pixel that is left over is on the lower right."""
    top, left = ((images.shape[axis] - side) // 2 for axis in (2, 3))
    return images[:, :, top : top + side, left : left + side]
