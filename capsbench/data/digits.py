"""The handwritten digits inside scikit-learn: 1,797 real scans of 8x8, brought to 28x28 as MNIST is laid out."""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from capsbench.data.raw import Raw

TEST_SHARE = 0.3


def read(folder: Path, split: str, allow_unofficial: bool = False) -> Raw:
    """Return images uint8 [N, 1, 28, 28] and labels; needs no files.

    The fixed split takes the last 30 % of each class for the test: 1,258 and 539 images. The set is ordered by
    writer, so that most test writers are not in the training set.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    chosen = _indices(labels, split)
    small = torch.from_numpy(bunch.images).float().unsqueeze(1) * (255 / 16)  # [1797, 1, 8, 8], 0..255
    box = F.interpolate(small, size=(20, 20), mode="bicubic", align_corners=False)  # MNIST's 20x20 box
    images = F.pad(box, (4, 4, 4, 4)).round().clamp(0, 255).to(torch.uint8)
    return Raw(images[chosen].numpy(), labels[chosen].numpy())


def _indices(labels: Tensor, split: str) -> Tensor:
    train, test = [], []
    for digit in range(10):
        members = (labels == digit).nonzero().flatten()
        cut = len(members) - round(TEST_SHARE * len(members))
        train.append(members[:cut])
        test.append(members[cut:])
    return torch.cat(train if split == "train" else test).sort().values
