"""Random streams by purpose: two variants at one seed see the same batches, and a resume replays nothing."""

import hashlib
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Purpose = Literal[
    "initialisation", "order", "dropout", "evaluation",
    "pairs", "placement", "crop", "flip", "rotation_and_scale", "shift", "cutout", "brightness_and_contrast",
]  # fmt: skip


def stream_seed(seed: int, purpose: Purpose, epoch: int = 0) -> int:
    """Return the seed of one stream, 63 bits: a hash, so that neighbouring seeds share nothing."""
    digest = hashlib.sha256(f"{seed}/{purpose}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def stream(seed: int, purpose: Purpose, epoch: int = 0) -> torch.Generator:
    """Return a CPU generator of its own for (seed, purpose, epoch): the same draws on every device."""
    return torch.Generator().manual_seed(stream_seed(seed, purpose, epoch))


def indexed_draws(seed: int, purpose: Purpose, count: int, columns: int, epoch: int = 0) -> Tensor:
    """Draw uniformly from [0, 1) -> float64 [count, columns]; row i depends on (seed, purpose, epoch, i), not on count.

    Philox is a counter-based generator, whose stream numpy keeps the same from version to version.
    """
    bits = np.random.Philox(key=stream_seed(seed, purpose, epoch))
    return torch.from_numpy(np.random.Generator(bits).random((count, columns)))
