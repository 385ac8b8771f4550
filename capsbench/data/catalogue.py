"""What there is to know of each data set before it is loaded; imports no torch, so that a dry run starts fast."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Role = Literal["train", "validation", "familiar", "test"]
Table = Literal["sabour-table1", "affnist", "hinton-table1", "hinton-table2"]
DIGITS = tuple("0123456789")
TOYS = ("animal", "human", "airplane", "truck", "car")


class Options(BaseModel):
    """What a study may set of a data set: none, unless a kind below says so."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PairOptions(Options):
    """Two overlaid digits (S17, section 6)."""

    shift: Annotated[int, Field(ge=0, le=4)] = Field(4, description="pixels, each digit, each axis, in 36x36")
    combine: Literal["sum", "maximum"] = Field("sum", description="of pixels; a sum is clipped at 255")
    train_pairs: Count = Field(60_000, description="pairs an epoch, drawn anew in each (S17: 60M in all)")
    test_pairs: Count = Field(10_000, description="fixed by pair_seed and index (S17: 10M)")
    pair_seed: Annotated[int, Field(ge=0)] = Field(0, description="draws the test pairs")


class AffineOptions(Options):
    """Digits in 40x40: trained on translated ones, tested on affine ones (S17, section 5.2; affNIST)."""

    train: Literal["translated", "affine"] = Field(
        "translated", description="affine: the papers' control, trained on what the test shows"
    )
    transforms_per_image: Count = Field(32, description="generated test images for each digit (affNIST: 32)")
    transform_seed: Annotated[int, Field(ge=0)] = Field(0, description="draws the generated test images")


class OfficialAffineOptions(Options):
    """The official affNIST: only the training set is a choice."""

    train: Literal["translated", "affine"] = "translated"
    transform_seed: Annotated[int, Field(ge=0)] = Field(0, description="draws the familiar (translated) test")


class TranslatedOptions(Options):
    """Digits placed at random in 40x40, in training and test."""

    transform_seed: Annotated[int, Field(ge=0)] = Field(0, description="draws the test placements")


class NorbOptions(Options):
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

    lightings: Annotated[int, Field(ge=1, le=6)] = Field(6, description="the first so many of six are rendered")


@dataclass(frozen=True)
class DataSet:
    """Facts of one data set.

    image_shape: (C, H, W) of what a network sees, with the default options. train_items, test_items: of the arrays
    that it is made from (digits, for pairs of digits). kind: how items become batches, see data.feeds. base: the
    module that reads them, from ROOT/BASE. augmentation: what the papers do to training images, the default of
    `training.augmentation`. paper: the data set of the papers that this is, or stands in for.
    """

    name: str
    title: str
    kind: Literal["plain", "pairs", "affine", "norb"]
    base: str
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    train_items: int
    test_items: int
    paper: str
    source: str
    licence: str
    needs_files: bool = True
    options: type[Options] = Options
    augmentation: dict[str, Any] = field(default_factory=dict)
    objects: int = 1  # in an image

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.classes)

    @property
    def folders(self) -> tuple[str, ...]:
        """Return the folders of its raw files below ROOT."""
        return (self.base, "affnist") if self.name == "affnist" else (self.base,)

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the modules that its batches rest on."""
        return (*(f"capsbench.data.{folder}" for folder in self.folders), f"capsbench.data.{self.kind}")

    def shape(self, options: Options) -> tuple[int, int, int]:
        """Return (C, H, W) of what a network sees under options."""
        side = getattr(options, "crop", None)
        return (self.image_shape[0], side, side) if side else self.image_shape

    def training_items(self, options: Options) -> int:
        """Return the number of items to train on under options."""
        items = self.train_items * getattr(options, "lightings", 6) // 6
        return items if getattr(options, "view", "full") == "full" else items // 3

    def table(self, options: Options) -> Table:
        """Return the papers' table that its results stand in."""
        if self.paper == "smallnorb":
            return "hinton-table1" if getattr(options, "view", "full") == "full" else "hinton-table2"
        return "affnist" if self.kind == "affine" else "sabour-table1"

    def has_familiar_test(self, options: Options) -> bool:
        """Tell whether the test differs from training by design, so that a familiar test stands beside it."""
        if self.kind == "affine":
            return self.paper == "affnist" and getattr(options, "train", None) == "translated"
        return getattr(options, "view", "full") != "full"


_MNIST: dict[str, Any] = {"base": "mnist", "classes": DIGITS, "train_items": 60_000, "test_items": 10_000}
_MNIST_SOURCE: dict[str, Any] = {"source": "yann.lecun.com/exdb/mnist", "licence": "CC BY-SA 3.0"}
_DIGITS: dict[str, Any] = {
    "base": "digits",
    "classes": DIGITS,
    "train_items": 1258,
    "test_items": 539,
    "needs_files": False,
}
_DIGITS_SOURCE: dict[str, Any] = {
    "source": "scikit-learn, load_digits (UCI, optical recognition, test part)",
    "licence": "CC BY 4.0",
}
_NORB_AUGMENTATION = {"brightness": 63 / 255, "contrast": 0.8}

CATALOGUE = {
    d.name: d
    for d in (
        DataSet(
            "digits", "handwritten digits of scikit-learn", "plain", image_shape=(1, 28, 28),
            paper="mnist", augmentation={"shift": 2}, **_DIGITS, **_DIGITS_SOURCE,
        ),
        DataSet(
            "mnist", "MNIST", "plain", image_shape=(1, 28, 28),
            paper="mnist", augmentation={"shift": 2}, **_MNIST, **_MNIST_SOURCE,
        ),
        DataSet(
            "multidigits", "overlaid pairs of scikit-learn's digits", "pairs", image_shape=(1, 36, 36),
            paper="multimnist", options=PairOptions, objects=2, **_DIGITS, **_DIGITS_SOURCE,
        ),
        DataSet(
            "multimnist", "MultiMNIST", "pairs", image_shape=(1, 36, 36),
            paper="multimnist", options=PairOptions, objects=2, **_MNIST, **_MNIST_SOURCE,
        ),
        DataSet(
            "affdigits", "affine images of scikit-learn's digits", "affine", image_shape=(1, 40, 40),
            paper="affnist", options=AffineOptions, **_DIGITS, **_DIGITS_SOURCE,
        ),
        DataSet(
            "mnist-translated", "MNIST placed at random in 40x40", "affine", image_shape=(1, 40, 40),
            paper="mnist-translated", options=TranslatedOptions, **_MNIST, **_MNIST_SOURCE,
        ),
        DataSet(
            "affnist-generated", "affine images generated from MNIST", "affine", image_shape=(1, 40, 40),
            paper="affnist", options=AffineOptions, **_MNIST, **_MNIST_SOURCE,
        ),
        DataSet(
            "affnist", "affNIST", "affine", image_shape=(1, 40, 40),
            paper="affnist", options=OfficialAffineOptions, base="mnist", classes=DIGITS, train_items=60_000,
            test_items=320_000, source="cs.toronto.edu/~tijmen/affNIST", licence="CC BY-SA 3.0 (of MNIST)",
        ),
        DataSet(
            "toynorb", "rendered solids in smallNORB's structure", "norb", base="toynorb", image_shape=(2, 32, 32),
            classes=TOYS, train_items=24_300, test_items=24_300, paper="smallnorb", needs_files=False,
            options=ToyNorbOptions, augmentation=_NORB_AUGMENTATION, source="capsbench/data/toynorb.py", licence="MIT",
        ),
        DataSet(
            "smallnorb", "smallNORB", "norb", base="smallnorb", image_shape=(2, 32, 32),
            classes=TOYS, train_items=24_300, test_items=24_300, paper="smallnorb",
            options=NorbOptions, augmentation=_NORB_AUGMENTATION,
            source="LeCun, Huang, Bottou, CVPR 2004", licence="for research; cannot be sold",
        ),
        DataSet(
            "cifar10", "CIFAR-10", "plain", base="cifar10", image_shape=(3, 32, 32),
            classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
            train_items=50_000, test_items=10_000, paper="cifar10", augmentation={"shift": 4, "flip": True},
            source="Krizhevsky 2009, through torchvision", licence="none stated",
        ),
    )
}  # fmt: skip
