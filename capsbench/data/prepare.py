"""Preparing a data set before anything trains on it: fetch, check and count its files, and build its caches."""

import json
import os
from pathlib import Path
from typing import Any

import torch

from capsbench.data import fingerprint, make_task, read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.errors import InputError
from capsbench.study import Data, Split


def fetch(name: str, root: Path) -> None:
    """Download what is missing of a data set's files. Files that are there stay, and are checked when they are read."""
    facts = CATALOGUE[name]
    for download, folder in ((facts.download, facts.folder), (facts.download_test, facts.test_folder)):
        if download is not None and folder is not None:
            download(root / folder)


def prepare(data: Data, root: Path) -> dict[str, Any]:
    """Fetch what is missing and read every split as a study will.

    Returns:
        The manifest: name, title and options of the data set, what is not official, and what `count` says of each
        split.

    Raises:
        InputError: a file is not the official one and the study does not allow that, or this copy of the data lacks
            what the options need.
    """
    fetch(data.name, root)
    return _described(data, root)


def is_outdated(manifest: Path, data: Data, root: Path) -> bool:
    """Tell whether raw files came after a manifest, and preparing the data would give another one.

    A manifest that holds is dated anew, so that the files are not read again for nothing.

    Args:
        manifest: where it is, or would be.
        data: of the experiment.
        root: the folder of raw data.
    """
    folders = {data.facts.folder, data.facts.test_folder} - {None}
    files = [path for folder in folders for path in (root / str(folder)).rglob("*") if path.is_file()]
    if not manifest.exists() or not any(_came(path) > manifest.stat().st_mtime for path in files):
        return False
    try:
        if manifest.read_text(encoding="utf-8") != json.dumps(_described(data, root), indent=2) + "\n":
            return True
    except (InputError, OSError, ValueError):  # preparing them says what is wrong
        return True
    os.utime(manifest)
    return False


def _came(path: Path) -> float:
    """Return when a file was written, or put where it is: copying may keep an older date."""
    return max(path.stat().st_mtime, path.stat().st_ctime)


def _described(data: Data, root: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = {
        "name": data.name,
        "title": data.facts.title,
        "options": data.options.model_dump(mode="json"),
        "unofficial": [],
    }
    for split in splits_of(data):
        counts = count(data, root, split)
        manifest["unofficial"] += [line for line in counts.pop("unofficial") if line not in manifest["unofficial"]]
        manifest[split] = counts
    return manifest


def splits_of(data: Data) -> list[Split]:
    """Return the splits that a data set has under its options."""
    familiar: list[Split] = ["familiar"] if data.has_familiar_test else []
    return ["train", *familiar, "test"]


def count(data: Data, root: Path, split: Split) -> dict[str, Any]:
    """Read one split and count its images, those of each class and those of each value of a factor.

    Returns:
        The counts, the shape that a network sees, the fingerprint of the arrays, the sha256 of each raw file as far as
        its reader gives it, and what is not official.

    Raises:
        InputError: as `prepare` does.
    """
    raw = read_split(data, root, split)
    task = make_task(data, raw, split, torch.device("cpu"))
    factors = {}
    for name, values in raw.factors.items():
        if values.dtype.kind != "i":  # measured, such as affNIST's rotation: each image has a value of its own
            continue
        counted = torch.from_numpy(values).unique(return_counts=True)
        factors[name] = dict(zip(*(part.tolist() for part in counted), strict=True))
    return {
        "images": len(task.labels),
        "made_from": len(raw.labels),
        "shape": list(data.image_shape),
        "images_by_class": task.labels.flatten().bincount(minlength=data.facts.num_classes).tolist(),
        "factors": {name: {str(k): v for k, v in values.items()} for name, values in factors.items()},
        "fingerprint": fingerprint([raw.images, raw.labels, *raw.factors.values()]),
        "files": dict(raw.files),
        "unofficial": list(raw.unofficial),
    }
