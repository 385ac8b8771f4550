"""What a study has to know of a data set before anything is loaded. The data sets are listed in capsbench.data."""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

NORB_OBJECTS = 25  # five of each class in either split

Split = Literal["train", "validation", "familiar", "test"]
# what several test images show, so that they are right or wrong together; None: each image stands for itself
Clusters = Literal["object", "digit"]
Table = Literal["sabour-table1", "affnist", "hinton-table1", "hinton-table2", "natural-images"]


class DataOptions(BaseModel):
    """What a study may set of a data set: nothing, unless a data set has options of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def augmentation(self, usual: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the papers do to training images under these options; `usual` is the data set's."""
        return usual


@dataclass(frozen=True)
class DataSet:
    """Facts of one data set.

    read: (folder, "train" or "test", allow_unofficial, options) -> arrays, see capsbench.data.readers; read_test: where
    the test images come from another source. download: fetches raw files into a folder; None: it needs none;
    download_test likewise. select: (arrays, split, options) -> the arrays that a split shows; None: all of them.
    task: (arrays, split, options, device) -> what makes batches of them, see capsbench.data.tasks.
    image_shape: (C, H, W) of what a network sees, with the default options. train_items, test_items: of the arrays
    that it is made from (digits, for pairs of digits). folder: of its raw files, below ROOT; test_folder likewise.
    augmentation: what the papers do to training images, the default of `training.augmentation`. training: defaults of
    other keys of `training`, where the papers train it by another protocol. paper: the data set of the papers that
    this is, or stands in for. objects: in an image. clusters: what several test images share, the unit that intervals
    over its images resample: the object of smallNORB's views, the digit of transformed copies and of pairs.
    """

    name: str
    title: str
    read: Callable[..., Any]
    task: Callable[..., Any]
    folder: str
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    train_items: int
    test_items: int
    paper: str
    source: str
    licence: str
    download: Callable[[Path], None] | None = None
    select: Callable[..., Any] | None = None
    options: type[DataOptions] = DataOptions
    augmentation: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    objects: int = 1
    clusters: Clusters | None = None
    read_test: Callable[..., Any] | None = None
    download_test: Callable[[Path], None] | None = None
    test_folder: str | None = None

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """Return the functions that turn its raw files into batches."""
        return tuple(part for part in (self.read, self.read_test, self.select, self.task) if part is not None)

    @property
    def needs_files(self) -> bool:
        """Tell whether it has raw files, rather than coming with the package."""
        return self.download is not None

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.classes)

    @property
    def chance_error(self) -> float:
        """Return the error of guessing, in %: of one class, or of a set of different classes."""
        return 100 * (1 - 1 / math.comb(self.num_classes, self.objects))

    @property
    def in_stereo(self) -> bool:
        """Tell whether items are stereo pairs under smallNORB's protocol."""
        return self.paper == "smallnorb"

    def shape(self, options: DataOptions) -> tuple[int, int, int]:
        """Return (C, H, W) of what a network sees under options."""
        side = getattr(options, "crop", None)
        return (self.image_shape[0], side, side) if side else self.image_shape

    def training_items(self, options: DataOptions) -> int:
        """Return the number of items to train on under options."""
        items = self.train_items * getattr(options, "lightings", 6) // 6
        return items if getattr(options, "view", "full") == "full" else items // 3

    def held_out(self, options: DataOptions, validation_images: int) -> int:
        """Return how many items leave training for a validation set: whole objects, where it is drawn by object."""
        if getattr(options, "validation_by", "pair") != "object":
            return validation_images
        per_object = self.training_items(options) // NORB_OBJECTS
        per_class = -(-validation_images // self.num_classes)
        return -(-per_class // per_object) * per_object * self.num_classes

    def table(self, options: DataOptions) -> Table:
        """Return the papers' table that its results stand in."""
        if self.in_stereo:
            return "hinton-table1" if getattr(options, "view", "full") == "full" else "hinton-table2"
        if self.paper in ("cifar10", "svhn", "fashion-mnist"):
            return "natural-images"
        return "affnist" if self.image_shape[1:] == (40, 40) else "sabour-table1"

    def default_augmentation(self, options: DataOptions) -> Mapping[str, Any]:
        """Return what the papers do to training images under options."""
        return options.augmentation(self.augmentation)

    def takes_brightness(self, options: DataOptions) -> bool:
        """Tell whether brightness and contrast of training images may be changed: where images are standardised."""
        return self.in_stereo or bool(getattr(options, "standardise", False))

    def has_familiar_test(self, options: DataOptions) -> bool:
        """Tell whether the test differs from training by design, so that there is a familiar test beside it."""
        if self.paper == "affnist":
            return getattr(options, "train", None) == "translated"
        return getattr(options, "view", "full") != "full"


def catalogue() -> Mapping[str, DataSet]:
    """Return all data sets by name."""
    found: Mapping[str, DataSet] = importlib.import_module("capsbench.data.catalogue").CATALOGUE
    return found
