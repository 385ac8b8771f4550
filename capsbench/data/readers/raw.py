"""What every reader gives: the arrays of one split as they are in the files, before a task is made of them.

All readers have one signature: `read(folder, split, allow_unofficial=False, options=None) -> Raw`.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from capsbench.errors import InputError

SourceSplit = Literal["train", "test"]  # the two parts that every source has


@dataclass(frozen=True)
class Raw:
    """The arrays of one split.

    Attributes:
        images: uint8 [N, C, H, W].
        labels: int64 [N].
        factors: arrays [N] by name, such as the azimuth.
        unofficial: one line for each file that was used although its checksum is not the official one.
    """

    images: np.ndarray
    labels: np.ndarray
    factors: dict[str, np.ndarray] = field(default_factory=dict)
    unofficial: tuple[str, ...] = ()

    def take(self, kept: np.ndarray) -> "Raw":
        """Keep the items that indices or a mask name, in their order."""
        factors = {name: values[kept] for name, values in self.factors.items()}
        return Raw(self.images[kept], self.labels[kept], factors, self.unofficial)


def check_official(path: str, found: str, expected: str, allow_unofficial: bool) -> tuple[str, ...]:
    """Compare the md5 of a file with the official one.

    Args:
        path: where a person finds the file.
        found: md5 of the uncompressed bytes.
        expected: the official md5.
        allow_unofficial: accept another md5.

    Returns:
        Nothing for an official file, else the one line that names it and its md5.

    Raises:
        InputError: the md5 is another one, and that is not allowed.
    """
    if found == expected:
        return ()
    if allow_unofficial:
        return (f"{path.rsplit('/', 1)[-1]}: md5 {found}, the official file has {expected}",)
    raise InputError(
        f"{path}: md5 of the uncompressed bytes is {found}, expected {expected}: not the official file; delete it and "
        "fetch it again, or write 'allow_unofficial: true' in the study to use it anyway, marked in every table"
    )
