"""Stereo pairs in which the place of a crop can be found, and what a task makes of them."""

import numpy as np
import torch
from small_data import CPU, draws_of

from capsbench.data import Raw
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.tasks.stereo import (
    Crops,
    NorbOptions,
)
from capsbench.study import Augmentation

NONE = Augmentation()
PAPER = Augmentation(**CATALOGUE["smallnorb"].augmentation)
SPLITS = ("train", "familiar", "test")


def raw_of(count=40, side=48) -> Raw:
    """Stereo pairs in which every 4x4 part is found at one place only."""
    images = np.random.default_rng(0).integers(0, 256, (count, 2, side, side), dtype=np.uint8)
    return Raw(images, np.arange(count) % 5)


def task_of(raw=None, views=1, **options) -> Crops:
    return Crops(raw or raw_of(), NorbOptions(**options), CPU, views)


def drawn(task, augmentation=NONE, seed=0):
    """One training batch of all items, in order."""
    images = torch.arange(task.epoch_images)
    return task.train_batch(images, augmentation, draws_of(images, seed))


def offsets(raw, targets):
    """Where each target was cut out of its image: row and column, found by its upper left 4x4."""
    whole = torch.from_numpy(raw.images)
    found = []
    for image, target in zip(whole, (targets * 255).round().to(torch.uint8), strict=True):
        parts = image[0].unfold(0, 4, 1).unfold(1, 4, 1)
        ((row, column),) = (parts == target[0, :4, :4]).all(dim=(2, 3)).nonzero().tolist()
        side = target.shape[-1]
        assert torch.equal(image[:, row : row + side, column : column + side], target)
        found.append((row, column))
    return torch.tensor(found)
