"""Images as they are: digits, MNIST, CIFAR-10, the official test of affNIST."""

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from capsbench.data.readers.raw import Raw
from capsbench.data.tasks.augmentation import augment
from capsbench.data.tasks.task import Batch, Task, to_unit_range
from capsbench.study import Augmentation, DataOptions, Split


def make_task(raw: Raw, split: Split, options: DataOptions, device: torch.device) -> Task:
    """Return the task that shows the images of any split as they are."""
    return Plain(raw, device)


class Plain(Task):
    """Each image with its label."""

    def __init__(self, raw: Raw, device: torch.device):
        self.images = torch.from_numpy(raw.images).to(device)
        self.labels = torch.from_numpy(raw.labels).to(device)
        self.epoch_images = len(self.labels)

    def train_batch(self, indices: Int[Tensor, " batch"], augmentation: Augmentation, rng: torch.Generator) -> Batch:
        """Make augmented images, which are their own targets."""
        images = augment(to_unit_range(self.images[indices]), augmentation, rng)
        return Batch(images, self.labels[indices], images)

    def eval_images(self, indices: Int[Tensor, " batch"]) -> tuple[UInt8[Tensor, "batch channels height width"], None]:
        """Return images uint8 [B, C, H, W]."""
        return self.images[indices], None
