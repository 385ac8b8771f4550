"""smallNORB's protocol (H18, sections 4 and 4.1): stereo pairs, crops, standardisation, familiar and novel views.

In training a crop is taken at random after brightness and contrast; in the test it is the centre, or the 13 crops of
the authors' code, whose scores are averaged. Each image is standardised. A decoder's target is the unchanged crop.
"""

from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Int, UInt8
from pydantic import Field
from torch import Tensor

from capsbench.data.readers.raw import Raw
from capsbench.data.tasks.augmentation import augment, brightness_and_contrast, standardise, windows
from capsbench.data.tasks.task import Batch, Task, to_unit_range
from capsbench.errors import InputError
from capsbench.study import Augmentation, DataOptions, Split

# the familiar values of a factor, as smallNORB's files have them: azimuth in tens of degrees, elevation by rank
FAMILIAR = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}
# offsets from the central crop: the authors' code goes 1, 2 and 3 pixels along both diagonals
CROPS = [(0, 0)] + [(n * y, n * x) for n in (1, 2, 3) for y in (1, -1) for x in (1, -1)]


class NorbOptions(DataOptions):
    """smallNORB's protocol (H18, sections 4 and 4.1)."""

    view: Literal["full", "azimuth", "elevation"] = Field(
        "full", description="azimuth, elevation: trained on a third of the views, tested on the others"
    )
    crop: Annotated[int, Field(ge=1, le=48)] = Field(32, description="side of the part of 48x48 that is seen")
    test_crops: Literal[1, 13] = Field(
        1, description="1: the centre; 13: the scores of 13 crops averaged, as in the authors' code"
    )


class ToyNorbOptions(NorbOptions):
    """The same protocol on rendered solids."""

    lightings: Annotated[int, Field(ge=1, le=6)] = Field(6, description="how many of the six lightings are rendered")


def make_task(raw: Raw, split: Split, options: NorbOptions, device: torch.device) -> Task:
    """Return the crops of a split; the options set how many crops of each image the tests show."""
    return Crops(raw, options, device, views=options.test_crops if split in ("familiar", "test") else 1)


def select_views(raw: Raw, split: Split, options: NorbOptions) -> Raw:
    """Keep the pairs that a split shows: novel views in the test, familiar ones in all other splits.

    Raises:
        InputError: the pose labels that this needs are unknown (-1) in this copy.
    """
    if options.view == "full":
        return raw
    values = raw.factors[options.view]
    if (values < 0).any():
        raise InputError(
            f"a study of novel {options.view}s needs pose labels, which are unknown (-1) in this copy of smallNORB "
            f"for {int((values < 0).sum()):,} of {len(values):,} pairs: use the official files, the view 'full' or "
            "toynorb"
        )
    kept = np.isin(values, FAMILIAR[options.view])
    return raw.take(~kept if split == "test" else kept)


class Crops(Task):
    """Standardised crops [B, 2, crop, crop] of stereo pairs uint8 [N, 2, 48, 48]."""

    def __init__(self, raw: Raw, options: NorbOptions, device: torch.device, views: int = 1):
        self.images = torch.from_numpy(raw.images).to(device)
        self.labels = torch.from_numpy(raw.labels).to(device)
        self.epoch_images = len(self.labels)
        self.crop, self.views = options.crop, views

    def train_batch(self, indices: Int[Tensor, " batch"], augmentation: Augmentation, rng: torch.Generator) -> Batch:
        """Change brightness and contrast of the whole images, then crop at random."""
        images = augment(to_unit_range(self.images[indices]), augmentation, rng)
        seen = brightness_and_contrast(images, augmentation.brightness, augmentation.contrast, rng)
        places = windows(torch.cat([images, seen], dim=1), 0, self.crop, self.crop)  # [B, 4, places, places, ...]
        rows, columns = torch.randint(places.shape[2], (2, len(indices)), generator=rng).to(indices.device)
        targets, crops = places[torch.arange(len(indices), device=indices.device), :, rows, columns].chunk(2, dim=1)
        return Batch(standardise(crops), self.labels[indices], targets.contiguous())

    def eval_images(self, indices: Int[Tensor, " batch"]) -> tuple[UInt8[Tensor, "batch 2 48 48"], None]:
        """Return whole images uint8 [B, 2, 48, 48]."""
        return self.images[indices], None

    def eval_batch(self, indices: Int[Tensor, " batch"], view: int) -> Batch:
        """Take the central crop (view 0), or one beside it."""
        room = self.images.shape[2] - self.crop
        top, left = (min(max(room // 2 + offset, 0), room) for offset in CROPS[view])
        crops = to_unit_range(self.images[indices, :, top : top + self.crop, left : left + self.crop])
        return Batch(standardise(crops), self.labels[indices], crops)
