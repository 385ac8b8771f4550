"""Batches made on the device from arrays that live there: no worker processes, no per-image Python."""

from collections.abc import Iterator

import torch
from torch import Tensor

from capsbench.config import Augmentation
from capsbench.data import transforms
from capsbench.randomness import stream


def training_batches(
    images: Tensor, labels: Tensor, batch_size: int, augmentation: Augmentation, seed: int, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield one epoch of (images float [B, C, H, W] in [0, 1], labels [B]), shuffled and augmented.

    images uint8 [N, C, H, W] and labels stay on their device. The order and the augmentation depend on
    (seed, epoch) alone. The last batch may be short.
    """
    order = torch.randperm(len(images), generator=stream(seed, "order", epoch)).to(images.device)
    generator = stream(seed, "augmentation", epoch)
    for chosen in order.split(batch_size):
        batch = to_unit_range(images[chosen])
        if augmentation.rotation or augmentation.scale:
            batch = transforms.rotate_and_scale(batch, augmentation.rotation, augmentation.scale, generator)
        if augmentation.shift:
            batch = transforms.shift(batch, augmentation.shift, generator)
        if augmentation.cutout:
            batch = transforms.cutout(batch, augmentation.cutout, generator)
        yield batch, labels[chosen]


def ordered_batches(images: Tensor, labels: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images float [B, C, H, W] in [0, 1], labels [B]) in order, never augmented."""
    for start in range(0, len(images), batch_size):
        yield to_unit_range(images[start : start + batch_size]), labels[start : start + batch_size]


def to_unit_range(images: Tensor) -> Tensor:
    """Convert uint8 0..255 to float 0..1: a decoder that ends in a sigmoid needs targets in that range."""
    return images.to(torch.float32) / 255
