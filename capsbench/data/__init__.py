"""Data sets: one module each, loaded by name; `catalogue` knows their facts without importing torch."""

import hashlib
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from capsbench.data.catalogue import CATALOGUE
from capsbench.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

__all__ = ["Images", "data_root", "load"]


@dataclass(frozen=True)
class Images:
    """One split of a data set.

    images uint8 [N, C, H, W]; labels int64 [N] (or multi-hot [N, K]); factors: arrays [N] by name, such as the
    azimuth; fingerprint: sha256 of what was loaded.
    """

    images: "Tensor"
    labels: "Tensor"
    factors: dict[str, "np.ndarray"]
    fingerprint: str


def data_root() -> Path:
    """Return the folder of raw data: CAPSBENCH_DATA, else data/ in the working folder."""
    return Path(os.environ.get("CAPSBENCH_DATA") or "data")


def load(
    name: str,
    root: str | os.PathLike[str],
    split: Literal["train", "test"],
    allow_unofficial: bool = False,
    **options: Any,
) -> Images:
    """Load one split of a data set from ROOT/NAME/.

    allow_unofficial: accept files whose checksum is not the official one. options: those of the data set.
    Raises InputError for an unknown name, split or option and for missing or wrong files.
    """
    if name not in CATALOGUE:
        raise InputError(f"no data set '{name}'; there are {', '.join(CATALOGUE)}")
    if split not in ("train", "test"):
        raise InputError(f"no split '{split}' of {name}; there are train and test")
    module = importlib.import_module(f"capsbench.data.{name}")
    try:
        images, labels, factors = module.read(Path(root) / name, split, allow_unofficial, **options)
    except TypeError as error:
        if options and "unexpected keyword" in str(error):
            raise InputError(f"{name} has no such option: {', '.join(options)}") from None
        raise
    digest = hashlib.sha256()
    for array in (images, labels, *factors.values()):
        digest.update(str(tuple(array.shape)).encode())
        digest.update(memoryview(array.contiguous().numpy() if hasattr(array, "numpy") else array))
    return Images(images, labels, factors, digest.hexdigest())
