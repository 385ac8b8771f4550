"""Batches made on the device from arrays that live there: no worker processes, no Python loop over images.

`Plain` shows images as they are; the other tasks are in files of their own.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from capsbench.data.readers.raw import Raw
from capsbench.data.tasks.augmentation import augment
from capsbench.data.tasks.draws import Draws, EpochDraws
from capsbench.streams import stream
from capsbench.study import Augmentation, DataOptions, Split


class Batch(NamedTuple):
    """What a network sees, the truth, and what a decoder should give back.

    Attributes:
        images: float [B, C, H, W].
        labels: int64 [B], or [B, S] for S objects in each image, ascending.
        targets: float in [0, 1], [B, C, H, W], or [B, S, C, H, W]: the S sources in the order of their labels.
    """

    images: Tensor
    labels: Tensor
    targets: Tensor


class Task(ABC):
    """One split of a data set on a device: training batches without end and a fixed list of evaluation images.

    Attributes:
        epoch_images: images per training epoch.
        labels: of the evaluation images, int64 [N] or [N, S].
        views: in how many ways each evaluation image is shown; the scores of its views are averaged.
    """

    epoch_images: int
    labels: Tensor
    views = 1

    @abstractmethod
    def train_batch(self, indices: Int[Tensor, " batch"], augmentation: Augmentation, draws: Draws) -> Batch:
        """Make a training batch of the images `indices`, each below `epoch_images`.

        Args:
            indices: int64 [B].
            augmentation: what is done to the images.
            draws: of these images; all that is random comes from them.
        """

    @abstractmethod
    def eval_images(
        self, indices: Int[Tensor, " batch"]
    ) -> tuple[UInt8[Tensor, "batch channels height width"], Tensor | None]:
        """Return evaluation images uint8 [B, C, H, W], and their sources uint8 [B, S, C, H, W] or None."""

    def eval_batch(self, indices: Int[Tensor, " batch"], view: int) -> Batch:
        """Make a batch of the evaluation images `indices` [B], never augmented."""
        images, sources = self.eval_images(indices)
        unit = to_unit_range(images)
        return Batch(unit, self.labels[indices], unit if sources is None else to_unit_range(sources))

    def train_batches(self, batch_size: int, augmentation: Augmentation, seed: int, epoch: int) -> Iterator[Batch]:
        """Yield one epoch, shuffled and augmented as (seed, epoch) decide; the last batch may be short."""
        order = torch.randperm(self.epoch_images, generator=stream(seed, "order", epoch)).to(self.labels.device)
        draws = EpochDraws(seed, epoch, self.epoch_images, self.labels.device)
        for indices in order.split(batch_size):
            yield self.train_batch(indices, augmentation, draws.of(indices))

    def eval_batches(self, batch_size: int | None = None, view: int = 0) -> Iterator[Batch]:
        """Yield all evaluation images in order, by default as many at once as `evaluation_batch` says."""
        device = self.labels.device
        for indices in torch.arange(len(self.labels), device=device).split(batch_size or evaluation_batch(device)):
            yield self.eval_batch(indices, view)


def evaluation_batch(device: torch.device) -> int:
    """Return how many images are best evaluated at once; on a CPU more of them outgrow its caches."""
    return 100 if device.type == "cpu" else 500


class Plain(Task):
    """Each image with its label."""

    def __init__(self, raw: Raw, device: torch.device):
        self.images = torch.from_numpy(raw.images).to(device)
        self.labels = torch.from_numpy(raw.labels).to(device)
        self.epoch_images = len(self.labels)

    def train_batch(self, indices: Int[Tensor, " batch"], augmentation: Augmentation, draws: Draws) -> Batch:
        """Make augmented images, which are their own targets."""
        images = augment(to_unit_range(self.images[indices]), augmentation, draws)
        return Batch(images, self.labels[indices], images)

    def eval_images(self, indices: Int[Tensor, " batch"]) -> tuple[UInt8[Tensor, "batch channels height width"], None]:
        """Return images uint8 [B, C, H, W]."""
        return self.images[indices], None


def make_plain_task(raw: Raw, split: Split, options: DataOptions, device: torch.device) -> Task:
    """Return the task that shows the images of any split as they are."""
    return Plain(raw, device)


def to_unit_range(images: UInt8[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Convert uint8 0..255 to float 0..1: a decoder that ends in a sigmoid needs targets in that range."""
    return images.to(torch.float32) / 255
