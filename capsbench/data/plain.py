"""Images as they are: digits, MNIST, CIFAR-10."""

import torch
from torch import Tensor

from capsbench.config import Augmentation
from capsbench.data.batches import Batch, Feed, to_unit_range
from capsbench.data.catalogue import DataSet, Options, Role
from capsbench.data.raw import Raw
from capsbench.data.transforms import augment


def make_feed(facts: DataSet, raw: Raw, role: Role, options: Options, device: torch.device) -> Feed:
    """Show images alike in every role."""
    return Plain(raw, device)


class Plain(Feed):
    """Images and labels, one for one."""

    def __init__(self, raw: Raw, device: torch.device):
        self.images = torch.from_numpy(raw.images).to(device)
        self.labels = torch.from_numpy(raw.labels).to(device)
        self.items = len(self.labels)

    def training_batch(self, chosen: Tensor, augmentation: Augmentation, generator: torch.Generator) -> Batch:
        """Make augmented images, which are their own targets."""
        images = augment(to_unit_range(self.images[chosen]), augmentation, generator)
        return Batch(images, self.labels[chosen], images)

    def fixed_items(self, chosen: Tensor) -> tuple[Tensor, None]:
        """Return images uint8."""
        return self.images[chosen], None
