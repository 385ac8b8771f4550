"""smallNORB's protocol (H18, sections 4 and 4.1): stereo pairs, crops, standardisation, familiar and novel views.

In training a crop is taken at random after brightness and contrast; in the test it is the centre, or the 13 crops of
the authors' code, whose scores are averaged. Each image is standardised. A decoder's target is the crop as it is.
"""

import numpy as np
import torch
from torch import Tensor

from capsbench.config import Augmentation
from capsbench.data.batches import Batch, Feed, to_unit_range
from capsbench.data.catalogue import DataSet, NorbOptions, Role
from capsbench.data.raw import Raw
from capsbench.data.transforms import augment, brightness_and_contrast, standardise, windows
from capsbench.errors import InputError

# the familiar values of a factor, as smallNORB's files have them: azimuth in tens of degrees, elevation by rank
FAMILIAR = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}
# offsets from the central crop: the authors' code goes 1, 2 and 3 pixels along both diagonals
CROPS = [(0, 0)] + [(n * y, n * x) for n in (1, 2, 3) for y in (1, -1) for x in (1, -1)]


def make_feed(facts: DataSet, raw: Raw, role: Role, options: NorbOptions, device: torch.device) -> Feed:
    """Show crops: in the tests as many of an image as the options say."""
    return Crops(raw, options, device, views=options.test_crops if role in ("familiar", "test") else 1)


def select_views(raw: Raw, options: NorbOptions, role: Role) -> Raw:
    """Keep the pairs that a role sees: familiar views in training and in the familiar test, novel ones in the test.

    Raises InputError where the pose labels that this needs are unknown (-1) in this copy.
    """
    if options.view == "full":
        return raw
    values = raw.factors[options.view]
    if (values < 0).any():
        raise InputError(
            f"a study of novel {options.view}s needs pose labels, and this copy of smallNORB has none "
            f"(-1, unknown) for {int((values < 0).sum()):,} of {len(values):,} pairs: use the official files, "
            "or the view 'full', or toynorb"
        )
    kept = np.isin(values, FAMILIAR[options.view])
    return raw.take(~kept if role == "test" else kept)


class Crops(Feed):
    """Standardised crops [B, 2, crop, crop] of stereo pairs uint8 [N, 2, 48, 48]."""

    def __init__(self, raw: Raw, options: NorbOptions, device: torch.device, views: int = 1):
        self.images = torch.from_numpy(raw.images).to(device)
        self.labels = torch.from_numpy(raw.labels).to(device)
        self.items = len(self.labels)
        self.crop, self.views = options.crop, views

    def training_batch(self, chosen: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Batch:
        """Change brightness and contrast of the whole images, then crop at random."""
        images = augment(to_unit_range(self.images[chosen]), augmentation, generator)
        seen = brightness_and_contrast(images, augmentation.brightness, augmentation.contrast, generator)
        places = windows(torch.cat([images, seen], dim=1), 0, self.crop, self.crop)  # [B, 4, places, places, ...]
        rows, columns = torch.randint(places.shape[2], (2, len(chosen)), generator=generator).to(chosen.device)
        targets, crops = places[torch.arange(len(chosen), device=chosen.device), :, rows, columns].chunk(2, dim=1)
        return Batch(standardise(crops), self.labels[chosen], targets.contiguous())

    def fixed_items(self, chosen: Tensor) -> tuple[Tensor, None]:
        """Return whole images uint8 [B, 2, 48, 48]."""
        return self.images[chosen], None

    def fixed_batch(self, chosen: Tensor, view: int) -> Batch:
        """Take the central crop (view 0), or one beside it."""
        room = self.images.shape[2] - self.crop
        top, left = (min(max(room // 2 + offset, 0), room) for offset in CROPS[view])
        crops = to_unit_range(self.images[chosen, :, top : top + self.crop, left : left + self.crop])
        return Batch(standardise(crops), self.labels[chosen], crops)
