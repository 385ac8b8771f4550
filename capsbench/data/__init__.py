"""Data sets, loaded by name; `catalogue` knows their facts without importing torch.

raw files -> Raw arrays (one module a source: mnist, smallnorb, ...) -> Feed (one module a kind of task: plain, pairs,
affine, norb) -> Batch, on the device.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from capsbench.data.catalogue import CATALOGUE
from capsbench.data.feeds import make_feed, read_raw
from capsbench.data.raw import Raw
from capsbench.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

__all__ = ["Images", "Raw", "data_root", "fingerprint", "load", "make_feed", "read_raw"]


@dataclass(frozen=True)
class Images:
    """One split of a data set.

    images uint8 [N, C, H, W]; labels int64 [N] (or multi-hot [N, K]); factors: arrays [N] by name, such as the
    azimuth; fingerprint: sha256 of what was loaded; sources uint8 [N, S, C, H, W]: of pairs, each digit alone, the
    lower class first; unofficial: a line for each file whose checksum is not the official one.
    """

    images: "Tensor"
    labels: "Tensor"
    factors: dict[str, "np.ndarray"]
    fingerprint: str
    sources: "Tensor | None" = None
    unofficial: tuple[str, ...] = ()


def data_root() -> Path:
    """Return the folder of raw data: CAPSBENCH_DATA, else data/ in the working folder."""
    return Path(os.environ.get("CAPSBENCH_DATA") or "data")


def load(
    name: str,
    root: str | os.PathLike[str],
    split: Literal["train", "familiar", "test"],
    allow_unofficial: bool = False,
    **options: Any,
) -> Images:
    """Load one split of a data set from ROOT/NAME/ (of what is made from MNIST, from ROOT/mnist/).

    split: `familiar` is the test under the conditions of training, where a data set's test is under others.
    allow_unofficial: accept files whose checksum is not the official one. options: those of the data set.
    Pairs and generated images come as fixed by seed and index. smallNORB comes whole (48x48), before any crop.
    Raises InputError for an unknown name, split or option and for missing or wrong files.
    """
    import torch

    if name not in CATALOGUE:
        raise InputError(f"no data set '{name}'; there are {', '.join(CATALOGUE)}")
    facts = CATALOGUE[name]
    try:
        checked = facts.options(**options)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{name}: option '{first['loc'][0]}': {first['msg']}") from None
    splits = ["train", "test", *(["familiar"] if facts.has_familiar_test(checked) else [])]
    if split not in splits:
        raise InputError(f"no split '{split}' of {name}; there are {', '.join(splits)}")
    raw = read_raw(name, Path(root), split, allow_unofficial, checked)
    feed = make_feed(name, raw, split, checked, torch.device("cpu"))
    parts = [feed.fixed_items(chosen) for chosen in torch.arange(len(feed.labels)).split(1000)]
    images = torch.cat([part for part, _ in parts])
    sources = torch.cat([s for _, s in parts if s is not None]) if facts.objects > 1 else None
    labels = feed.labels
    if facts.objects > 1:
        labels = torch.nn.functional.one_hot(labels, facts.num_classes).sum(dim=1)
    factors = raw.factors if len(raw.labels) == len(labels) else {}
    found = fingerprint([images.numpy(), labels.numpy(), *factors.values()])
    return Images(images, labels, factors, found, sources, raw.unofficial)


def fingerprint(arrays: Iterable["np.ndarray"]) -> str:
    """Hash the shapes and bytes of arrays: sha256."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str(tuple(array.shape)).encode())
        digest.update((array if array.flags.c_contiguous else array.copy()).data)
    return digest.hexdigest()
