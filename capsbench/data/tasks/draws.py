"""The random numbers of training batches: a table per epoch and purpose, with a row for each image of the epoch.

What is drawn for an image depends on the seed, the epoch, the purpose and the number of the image alone: not on the
batch that it is in, and not on what else is drawn. A table is made once and copied to the device once, so that a batch
draws nothing.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsbench.streams import Purpose, indexed_draws


class EpochDraws:
    """Tables of one epoch of `images` images, on a device; each is made when its purpose is first asked for."""

    def __init__(self, seed: int, epoch: int, images: int, device: torch.device):
        self.seed, self.epoch, self.images, self.device = seed, epoch, images, device
        self._tables: dict[Purpose, Tensor] = {}

    def table(self, purpose: Purpose, columns: int) -> Float[Tensor, "images columns"]:
        """Return the draws of all images, uniform in [0, 1), float64 [images, columns]; a purpose has one width."""
        if purpose not in self._tables:
            drawn = indexed_draws(self.seed, purpose, self.images, columns, self.epoch)
            if self.device.type == "cuda":
                drawn = drawn.pin_memory()  # without which a copy that does not block does
            self._tables[purpose] = drawn.to(self.device, non_blocking=True)
        table = self._tables[purpose]
        if table.shape[1] != columns:
            raise ValueError(
                f"{purpose}: {columns} draws per image, and {table.shape[1]} before; a purpose has one width"
            )
        return table

    def of(self, images: Int[Tensor, " batch"]) -> "Draws":
        """Return the draws of some of the images, int64 [B]."""
        return Draws(self, images)


class Draws:
    """Draws of a batch: draws("shift", 2) is float64 [B, 2], uniform in [0, 1), the same at every call."""

    def __init__(self, epoch: EpochDraws, images: Int[Tensor, " batch"], objects: int = 1):
        self._epoch, self._images, self._objects = epoch, images, objects

    def __call__(self, purpose: Purpose, columns: int) -> Float[Tensor, "rows columns"]:
        """Return `columns` draws for each image of the batch, or for each of its objects."""
        rows = self._epoch.table(purpose, columns * self._objects)[self._images]
        return rows.view(-1, columns)

    def for_each(self, objects: int) -> "Draws":
        """Return draws with `objects` rows for each image, one after another: [B * objects, columns]."""
        return Draws(self._epoch, self._images, objects)
