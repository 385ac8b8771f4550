"""What every reader of a data set gives: the arrays of one split as they are, before any task is made of them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from capsbench.errors import InputError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Raw:
    """images uint8 [N, C, H, W]; labels int64 [N]; factors: arrays [N] by name, such as the azimuth.

    unofficial: one line for each file that was used although its checksum is not the official one.
    """

    images: "np.ndarray"
    labels: "np.ndarray"
    factors: dict[str, "np.ndarray"] = field(default_factory=dict)
    unofficial: tuple[str, ...] = ()

    def take(self, kept: "np.ndarray") -> "Raw":
        """Keep the items of some indices (or of a mask), in order."""
        factors = {name: values[kept] for name, values in self.factors.items()}
        return Raw(self.images[kept], self.labels[kept], factors, self.unofficial)


def check_official(path: str, found: str, expected: str, allow_unofficial: bool) -> tuple[str, ...]:
    """Compare md5 sums -> () or, where it is allowed, the line that says what is not official.

    Raises InputError for another sum where it is not allowed. path: how a person finds the file.
    """
    if found == expected:
        return ()
    if allow_unofficial:
        return (f"{path.rsplit('/', 1)[-1]}: md5 {found}, the official file's is {expected}",)
    raise InputError(
        f"{path}: md5 of the uncompressed bytes is {found}, expected {expected}: not the official file; delete it and "
        "fetch it again, or let the study say 'allow_unofficial: true' to use it all the same, marked in every table"
    )
