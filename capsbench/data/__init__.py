"""Data sets, loaded by name.

Raw files -> Raw, the arrays of a split (readers) -> Task, what they become (tasks) -> Batch, on the device. The data
sets are listed in `catalogue`.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from capsbench.data.catalogue import CATALOGUE
from capsbench.data.readers.raw import Raw, SourceSplit
from capsbench.data.tasks.task import Task
from capsbench.errors import InputError
from capsbench.registry import no_such
from capsbench.study import Data, Split

__all__ = ["Images", "Raw", "data_root", "fingerprint", "load", "make_task", "read_split"]


@dataclass(frozen=True)
class Images:
    """One split of a data set.

    Attributes:
        images: uint8 [N, C, H, W].
        labels: int64 [N], or multi-hot [N, K] if an image shows several objects.
        factors: arrays [N] by name, such as the azimuth.
        fingerprint: sha256 of what was loaded.
        sources: uint8 [N, S, C, H, W]: each digit of a pair alone, the lower class first; None for single images.
        unofficial: one line for each file whose checksum is not the official one.
    """

    images: Tensor
    labels: Tensor
    factors: dict[str, np.ndarray]
    fingerprint: str
    sources: Tensor | None = None
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
    """Load one split of a data set from ROOT/NAME/; what is made from MNIST is loaded from ROOT/mnist/.

    Pairs and generated images come as their seed and index fix them. smallNORB comes whole (48x48), before any crop.

    Args:
        name: of the data set.
        root: folder of raw data.
        split: "familiar" is the test under the conditions of training, for data sets whose test differs from it.
        allow_unofficial: accept files whose checksum is not the official one.
        **options: those of the data set.

    Raises:
        InputError: the name, the split or an option is unknown, or a file is missing or wrong.
    """
    data = _checked(name, allow_unofficial, options)
    facts = data.facts
    splits = ["train", "test", *(["familiar"] if data.has_familiar_test else [])]
    if split not in splits:
        raise InputError(f"no split '{split}' of {name}; there are {', '.join(splits)}")
    raw = read_split(data, Path(root), split)
    task = make_task(data, raw, split, torch.device("cpu"))
    parts = [task.eval_images(indices) for indices in torch.arange(len(task.labels)).split(1000)]
    images = torch.cat([part for part, _ in parts])
    sources = torch.cat([s for _, s in parts if s is not None]) if facts.objects > 1 else None
    labels = task.labels
    if facts.objects > 1:
        labels = torch.nn.functional.one_hot(labels, facts.num_classes).sum(dim=1)
    factors = raw.factors if len(raw.labels) == len(labels) else {}
    found = fingerprint([images.numpy(), labels.numpy(), *factors.values()])
    return Images(images, labels, factors, found, sources, raw.unofficial)


def read_split(data: Data, root: Path, split: Split) -> Raw:
    """Read the arrays that a split's images are made from; validation images are cut from those of "train".

    Raises:
        InputError: a file is missing or wrong.
    """
    facts = data.facts
    read, folder = facts.read, facts.folder
    if split == "test" and facts.read_test is not None:
        read, folder = facts.read_test, facts.test_folder or facts.folder
    source_split: SourceSplit = "train" if split in ("train", "validation") else "test"
    raw: Raw = read(root / folder, source_split, data.allow_unofficial, data.options)
    return raw if facts.select is None else facts.select(raw, split, data.options)


def make_task(data: Data, raw: Raw, split: Split, device: torch.device) -> Task:
    """Make batches of raw arrays as a split shows them."""
    task: Task = data.facts.task(raw, split, data.options, device)
    return task


def fingerprint(arrays: Iterable[np.ndarray]) -> str:
    """Hash the shapes and bytes of arrays with sha256."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(str(tuple(array.shape)).encode())
        digest.update((array if array.flags.c_contiguous else array.copy()).data)
    return digest.hexdigest()


def _checked(name: str, allow_unofficial: bool, options: dict[str, Any]) -> Data:
    if name not in CATALOGUE:
        raise InputError(no_such("data set", name, list(CATALOGUE)))
    try:
        checked = CATALOGUE[name].options(**options)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{name}: option '{first['loc'][0]}': {first['msg']}") from None
    return Data(name=name, options=checked, allow_unofficial=allow_unofficial)
