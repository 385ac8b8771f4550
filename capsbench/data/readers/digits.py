"""The handwritten digits that come with scikit-learn: 1,797 real scans of 8x8, enlarged to 28x28 and laid out as MNIST.

Source: UCI, Optical Recognition of Handwritten Digits, test part.
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from capsbench.data.readers.raw import Raw, SourceSplit
from capsbench.study import DataOptions

TEST_SHARE = 0.3


def read(folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: DataOptions | None = None) -> Raw:
    """Return images uint8 [N, 1, 28, 28] and labels int64 [N]; N is 1,258 (train) or 539 (test). Needs no files.

    The test is the last 30 % of each class. The scans are ordered by writer, so that most writers of the test are
    not in the training set.
    """
    rows = np.loadtxt(_file(), delimiter=",")  # [1797, 65], 64 pixels of 0..16 and the label
    labels = torch.from_numpy(rows[:, -1].astype(np.int64))
    indices = _indices(labels, split)
    small = torch.from_numpy(rows[:, :-1]).float().view(-1, 1, 8, 8) * (255 / 16)  # [1797, 1, 8, 8], 0..255
    box = F.interpolate(small, size=(20, 20), mode="bicubic", align_corners=False)  # MNIST's 20x20 box
    images = F.pad(box, (4, 4, 4, 4)).round().clamp(0, 255).to(torch.uint8)
    return Raw(images[indices].numpy(), labels[indices].numpy())


def _file() -> Path:
    """Return scikit-learn's file of the scans; to import the package takes ten times as long as to read them."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / "datasets/data/digits.csv.gz"


def _indices(labels: Tensor, split: SourceSplit) -> Tensor:
    train, test = [], []
    for digit in range(10):
        members = (labels == digit).nonzero().flatten()
        cut = len(members) - round(TEST_SHARE * len(members))
        train.append(members[:cut])
        test.append(members[cut:])
    return torch.cat(train if split == "train" else test).sort().values
