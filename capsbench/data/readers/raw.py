"""What every reader gives: the arrays of one split as they are in the files, before a task is made of them.

All readers have one signature: `read(folder, split, allow_unofficial=False, options=None) -> Raw`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
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
        files: sha256, or "md5 ..." of the largest ones, of each raw file by name; for NAME.gz that of the uncompressed
            bytes, under NAME.
    """

    images: np.ndarray
    labels: np.ndarray
    factors: dict[str, np.ndarray] = field(default_factory=dict)
    unofficial: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)

    def take(self, kept: np.ndarray) -> "Raw":
        """Keep the items that indices or a mask name, in their order."""
        factors = {name: values[kept] for name, values in self.factors.items()}
        return Raw(self.images[kept], self.labels[kept], factors, self.unofficial, self.files)


def check_regular(path: Path) -> None:
    """Refuse a folder, and what nobody may ever write to or what never ends, such as a FIFO or a device.

    Raises:
        InputError: the path is there and is no regular file.
    """
    if path.is_dir():
        raise InputError(f"{path}: cannot be read: Is a directory")
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: cannot be read: it is not a regular file (a FIFO, socket or device)")


def check_official(
    path: str, found: str, expected: str, allow_unofficial: bool, others: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Compare the md5 of a file with the official one.

    Args:
        path: where a person finds the file.
        found: md5 of the uncompressed bytes.
        expected: the official md5.
        allow_unofficial: accept another md5.
        others: md5 -> name of the files that belong in other places. None of them is accepted in this one, whatever is
            allowed: a training file in the place of the test would pass for it.

    Returns:
        Nothing for an official file, else the one line that names it and its md5.

    Raises:
        InputError: the md5 is another one, and that is not allowed, or it is that of one of the others.
    """
    if found == expected:
        return ()
    if found in (others or {}):
        raise InputError(
            f"{path}: this is {(others or {})[found]}, which belongs in another place; give each file its own name, or "
            "delete it and fetch it again"
        )
    if allow_unofficial:
        return (f"{path.rsplit('/', 1)[-1]}: md5 {found}, the official file has {expected}",)
    raise InputError(
        f"{path}: md5 of the uncompressed bytes is {found}, expected {expected}: not the official file; delete it and "
        "fetch it again, or write 'allow_unofficial: true' in the study to use it anyway, marked in every table"
    )
