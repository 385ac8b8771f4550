"""What there is to know of each data set before it is loaded; imports no torch, so that a dry run starts fast."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataSet:
    """Facts of one data set: image_shape is (C, H, W); the counts are of images."""

    name: str
    title: str
    image_shape: tuple[int, int, int]
    num_classes: int
    train_images: int
    test_images: int
    needs_files: bool


CATALOGUE = {
    d.name: d
    for d in (
        DataSet("digits", "handwritten digits of scikit-learn", (1, 28, 28), 10, 1258, 539, False),
        DataSet("mnist", "MNIST", (1, 28, 28), 10, 60_000, 10_000, True),
    )
}
