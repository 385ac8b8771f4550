"""Batches made on the device from arrays that live there: no worker processes, no per-image Python."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from capsbench.config import Augmentation
from capsbench.randomness import stream


class Batch(NamedTuple):
    """What a network sees, the truth, and what a decoder should give back.

    images float [B, C, H, W]; labels int64 [B], or [B, S] for S objects in an image, ascending; targets in [0, 1]:
    [B, C, H, W], or [B, S, C, H, W], the S sources in the order of their labels.
    """

    images: Tensor
    labels: Tensor
    targets: Tensor


class Feed(ABC):
    """One split of a data set on a device: an endless supply of training batches and a fixed list of test items.

    items: in a training epoch. labels: of the fixed items, int64 [N] or [N, S]. views: how many ways the fixed items
    are shown, whose scores are averaged.
    """

    items: int
    labels: Tensor
    views = 1

    @abstractmethod
    def training_batch(self, chosen: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Batch:
        """Make a training batch of the items `chosen` [B]; what is random comes from the generator."""

    @abstractmethod
    def fixed_items(self, chosen: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the fixed items `chosen` [B] -> images uint8 [B, C, H, W], sources uint8 [B, S, C, H, W] if any."""

    def fixed_batch(self, chosen: Tensor, view: int) -> Batch:
        """Make a batch of the fixed items `chosen` [B], never augmented."""
        images, sources = self.fixed_items(chosen)
        unit = to_unit_range(images)
        return Batch(unit, self.labels[chosen], unit if sources is None else to_unit_range(sources))

    def epoch(self, batch_size: int, augmentation: Augmentation, seed: int, epoch: int) -> Iterator[Batch]:
        """Yield one epoch, shuffled and augmented, as (seed, epoch) say; the last batch may be short."""
        order = torch.randperm(self.items, generator=stream(seed, "order", epoch)).to(self.labels.device)
        generator = stream(seed, "augmentation", epoch)
        for chosen in order.split(batch_size):
            yield self.training_batch(chosen, augmentation, generator)

    def in_order(self, batch_size: int, view: int = 0) -> Iterator[Batch]:
        """Yield the fixed items in order."""
        for chosen in torch.arange(len(self.labels), device=self.labels.device).split(batch_size):
            yield self.fixed_batch(chosen, view)


def to_unit_range(images: Tensor) -> Tensor:
    """Convert uint8 0..255 to float 0..1: a decoder that ends in a sigmoid needs targets in that range."""
    return images.to(torch.float32) / 255
