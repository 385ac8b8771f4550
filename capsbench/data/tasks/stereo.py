"""smallNORB's protocol (H18, sections 4 and 4.1): stereo pairs, crops, standardisation, familiar and novel views.

In training a crop is taken at random, with brightness and contrast changed; in the test it is the centre, or the 13
crops of the authors' code, whose shares are averaged. A decoder's target is the crop in [0, 1], which brightness,
contrast and standardisation leave as it is.

Mazzia 2021 (Efficient-CapsNet) sees 48x48 of 64x64: `resize: bilinear_64, crop: 48, augment: after_standardising,
standardise_by: training_set`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from pydantic import Field, ValidationInfo, field_validator
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
from capsbench.data.tasks.task import Batch, Task, to_unit_range
from capsbench.errors import InputError
from capsbench.registry import Said
from capsbench.study import Augmentation, DataOptions, Split

Resize = Literal["every_second", "mean", "bilinear_64"]
SIDES = {"every_second": 48, "mean": 48, "bilinear_64": 64}  # of 96, by `resize`
# the familiar values of a factor, as smallNORB's files have them: azimuth in tens of degrees, elevation by rank
FAMILIAR = {"azimuth": (30, 32, 34, 0, 2, 4), "elevation": (0, 1, 2)}
# Offsets from the central crop, by `crop_offsets`. The authors' code asks TF1's extract_glimpse for 1, 2 and 3 pixels
# along both diagonals. Its first version halves offsets that are counted in pixels from the centre and cuts off the
# fraction of the place, so that 1, 2, 3 become 0, 1, 1 and -1, -2, -3 become -1, -1, -2: ten different crops.
OFFSETS = {"written": {1: 1, 2: 2, 3: 3, -1: -1, -2: -2, -3: -3}, "run": {1: 0, 2: 1, 3: 1, -1: -1, -2: -1, -3: -2}}
CROPS = {
    name: [(0, 0)] + [(moved[n * y], moved[n * x]) for n in (1, 2, 3) for y in (1, -1) for x in (1, -1)]
    for name, moved in OFFSETS.items()
}


class NorbOptions(DataOptions):
    """smallNORB's protocol (H18, sections 4 and 4.1).

    camera_means and camera_stds are those of all training images of each camera, in [0, 1] at 96x96, for
    `standardise_by: training_set`: measured on the JPEG copy, whose means are within 0.0003 of those that Ribeiro
    2020's code has for the official files.
    """

    camera_means: ClassVar[tuple[float, float]] = (0.7522, 0.7572)
    camera_stds: ClassVar[tuple[float, float]] = (0.1774, 0.1736)

    view: Literal["full", "azimuth", "elevation"] = Field(
        "full", description="azimuth, elevation: trained on a third of the views, tested on the others"
    )
    resize: Annotated[
        Resize,
        Said(
            paper="H18: downsampled to 48x48; Mazzia 2021: 64x64",
            code="H18: every second pixel; Mazzia 2021: bilinear to 64x64",
            note="TF1's bilinear resize averages nothing at a factor of 2",
        ),
    ] = Field(
        "every_second",
        description="every_second: every second pixel, 48x48; mean: of blocks of 2x2, 48x48; bilinear_64: 64x64",
    )
    crop: Annotated[int, Field(ge=1, le=64), Said(paper="H18: 32; Mazzia 2021: 48 of 64", code="the same")] = Field(
        32, description="side of the part of 48x48 (64x64) that is seen"
    )
    augment: Annotated[
        Literal["before_standardising", "after_standardising"],
        Said(
            paper="H18: standardise, crop, then brightness and contrast",
            code="H18: brightness and contrast, crop, then standardise; Mazzia 2021: as H18's text",
            note="before: standardising cancels the brightness; after: it counts standard deviations",
        ),
    ] = Field(
        "before_standardising",
        description="when brightness and contrast change; after: whole images are standardised, then cropped",
    )
    standardise_by: Annotated[
        Literal["image", "training_set"],
        Said(
            paper="H18: each image, before the crop",
            code="H18: each crop; Mazzia 2021: each camera by the whole set, training and test apart",
            note="image: what the network sees, so a crop where augment is before_standardising",
        ),
    ] = Field("image", description="by the mean and std of the image itself, or of all training images of the camera")
    test_crops: Annotated[Literal[1, 13], Said(paper="H18: 1 (1.8 %), or several (1.4 %)", code="1 or 13")] = Field(
        1, description="1: the centre; 13: the shares of 13 crops averaged, as in the authors' code"
    )
    crop_offsets: Annotated[
        Literal["run", "written"],
        Said(
            paper="silent",
            code="writes 1, 2, 3 pixels; TF1's extract_glimpse halves them",
            note="run: -2 to +1 pixels, as that code acts; only with test_crops: 13",
        ),
    ] = Field(
        "run", description="places of 13 crops: as the authors' code runs (0, 1, -1, -2 pixels) or is written (1, 2, 3)"
    )
    validation_by: Annotated[
        Literal["object", "pair"],
        Said(
            paper="no validation set",
            note="pair: validation shows training objects and reads half the error of the test; Ribeiro 2020 does so",
        ),
    ] = Field("object", description="object: validation shows objects that training does not; pair: it shows the same")

    @field_validator("crop")
    @classmethod
    def _fits(cls, crop: int, info: ValidationInfo) -> int:
        side = SIDES[info.data.get("resize", "bilinear_64")]
        if crop > side:
            raise ValueError(f"{crop} is more than the {side} pixels of resize {info.data['resize']}")
        return crop

    def augmentation(self, usual: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the papers' augmentation; Mazzia 2021's code adds up to 2 std, and contrast is 0.5 to 1.5."""
        as_mazzia = self.resize == "bilinear_64" and self.augment == "after_standardising"
        return {**usual, "brightness": 2.0, "contrast": 0.5} if as_mazzia else usual

    @property
    def side(self) -> int:
        """Return the side of whole images: 48 or 64."""
        return SIDES[self.resize]


class ToyNorbOptions(NorbOptions):
    """The same protocol on rendered solids, whose images are smoother by default than smallNORB's."""

    camera_means: ClassVar[tuple[float, float]] = (0.5967, 0.5966)
    camera_stds: ClassVar[tuple[float, float]] = (0.0601, 0.0602)

    resize: Resize = Field(
        "mean",
        description="from the 96x96 rays of a rendering: mean of 2x2, every second one, or bilinear to 64x64",
    )
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
            f"for {int((values < 0).sum()):,} of {len(values):,} pairs: use the official files, the authors' "
            "TFRecords, the view 'full' or toynorb"
        )
    kept = np.isin(values, FAMILIAR[options.view])
    return raw.take(~kept if split == "test" else kept)


def resized(images: Float[Tensor, "*items 96 96"], resize: Resize) -> Float[Tensor, "*items side side"]:
    """Bring images from 96x96 to 48x48 or 64x64.

    every_second is TF1's bilinear resize to 48 (H18's authors' code); bilinear_64 is TF2's to 64 (Mazzia 2021), which
    joins pixels 3/4 to 1/4 and skips none; at 48 TF2's would be `mean`.
    """
    if resize == "every_second":
        return images[..., ::2, ::2]
    if resize == "mean":
        return F.avg_pool2d(images, 2)
    flat = images.reshape(-1, 1, *images.shape[-2:])
    small = F.interpolate(flat, SIDES[resize], mode="bilinear", align_corners=False, antialias=False)
    return small.reshape(*images.shape[:-2], *small.shape[-2:])


def view_of_test(images: Images, options: NorbOptions, view: int) -> tuple[Images, Images]:
    """Take the central crop (view 0), or one beside it, as the test does.

    Args:
        images: whole images in [0, 1], [B, 2, side, side].
        options: of the data set.
        view: number of the crop, below `options.test_crops`.

    Returns:
        What a network sees, and the crop as it is, [B, 2, crop, crop] each.
    """
    room = images.shape[-1] - options.crop
    top, left = (min(max(room // 2 + offset, 0), room) for offset in CROPS[options.crop_offsets][view])

    def crop(whole: Tensor) -> Tensor:
        return whole[:, :, top : top + options.crop, left : left + options.crop]

    if options.augment == "after_standardising":
        return crop(_standardised(images, options)), crop(images)
    return _standardised(crop(images), options), crop(images)


def class_shares(
    scores: Float[Tensor, "batch classes"], activations: Float[Tensor, "batch classes"] | None
) -> Float[Tensor, "batch classes"]:
    """Return what one of several crops counts: its activations divided by their sum, as in H18's authors' code.

    Where a network has no activations, as CNNs, the scores are logits, and their softmax is taken.
    """
    if activations is None:
        return scores.softmax(dim=1)
    return activations / activations.sum(dim=1, keepdim=True).clamp_min(torch.finfo(activations.dtype).tiny)


class Crops(Task):
    """Standardised crops [B, 2, crop, crop] of stereo pairs uint8 [N, 2, side, side]."""

    def __init__(self, raw: Raw, options: NorbOptions, device: torch.device, views: int = 1):
        self.images = torch.from_numpy(raw.images).to(device)
        self.labels = torch.from_numpy(raw.labels).to(device)
        self.epoch_images = len(self.labels)
        self.options, self.views = options, views

    def train_batch(self, indices: Int[Tensor, " batch"], augmentation: Augmentation, draws: Draws) -> Batch:
        """Crop at random; then brightness and contrast change, before standardisation or after it.

        What the papers do to whole images before the crop is done to the crop, by the statistics of the whole image:
        equal up to rounding.
        """
        whole = augment(to_unit_range(self.images[indices]), augmentation, draws)  # [B, 2, side, side]
        crops = self._random_crops(whole, draws)
        changes = (augmentation.brightness, augmentation.contrast, draws("brightness_and_contrast", 2))
        if self.options.augment == "after_standardising":
            seen = brightness_and_contrast(_standardised(crops, self.options, whole), *changes)
        else:
            changed = brightness_and_contrast(crops, *changes, means=whole.mean(dim=(2, 3), keepdim=True))
            seen = _standardised(changed, self.options)
        return Batch(seen, self.labels[indices], crops)

    def eval_images(self, indices: Int[Tensor, " batch"]) -> tuple[UInt8[Tensor, "batch 2 side side"], None]:
        """Return whole images uint8 [B, 2, side, side]."""
        return self.images[indices], None

    def eval_batch(self, indices: Int[Tensor, " batch"], view: int) -> Batch:
        """Take the central crop (view 0), or one beside it."""
        seen, target = view_of_test(to_unit_range(self.images[indices]), self.options, view)
        return Batch(seen, self.labels[indices], target)

    def _random_crops(self, whole: Images, draws: Draws) -> Images:
        """Cut one place, drawn for each image, out of images [B, 2, side, side]."""
        side, batch = self.options.crop, len(whole)
        places = windows(whole, 0, side, side)  # [B, 2, places, places, crop, crop]
        rows, columns = drawn_places(draws("crop", 2), places.shape[2] - 1)
        return places[torch.arange(batch, device=whole.device), :, rows, columns]


def _standardised(images: Images, options: NorbOptions, whole: Images | None = None) -> Images:
    if options.standardise_by == "image":
        return standardise(images, whole)
    values = zip(options.camera_means, options.camera_stds, strict=True)
    return torch.stack([(images[:, camera] - mean) / std for camera, (mean, std) in enumerate(values)], dim=1)
