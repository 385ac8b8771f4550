"""Making sure of a data set before anything trains on it: fetched, checked, counted, its caches built."""

import importlib
from pathlib import Path
from typing import Any

from capsbench.config import Data
from capsbench.data import fingerprint, make_feed, read_raw
from capsbench.data.catalogue import CATALOGUE, Role


def fetch(name: str, root: Path) -> None:
    """Download what is missing of a data set's files; what is there stays, and is checked when it is read."""
    facts = CATALOGUE[name]
    if facts.needs_files:
        for folder in facts.folders:
            importlib.import_module(f"capsbench.data.{folder}").download(root / folder)


def prepare(data: Data, root: Path) -> dict[str, Any]:
    """Fetch what is missing, read every split as a study will, and return counts, labels and fingerprints.

    Raises InputError for anything that is not the official data, unless the study allows it, and for a protocol that
    this copy cannot bear.
    """
    fetch(data.name, root)
    facts = CATALOGUE[data.name]
    about: dict[str, Any] = {
        "name": data.name,
        "title": facts.title,
        "options": data.options.model_dump(mode="json"),
        "unofficial": [],
    }
    for role in roles(data):
        split = count(data, root, role)
        about["unofficial"] += [line for line in split.pop("unofficial") if line not in about["unofficial"]]
        about[role] = split
    return about


def roles(data: Data) -> list[Role]:
    """Return the splits that a data set has under its options."""
    familiar: list[Role] = ["familiar"] if CATALOGUE[data.name].has_familiar_test(data.options) else []
    return ["train", *familiar, "test"]


def count(data: Data, root: Path, role: Role) -> dict[str, Any]:
    """Read one split -> number of images, of each class, of each value of a factor; fingerprint of its arrays."""
    import torch

    facts = CATALOGUE[data.name]
    raw = read_raw(data.name, root, role, data.allow_unofficial, data.options)
    feed = make_feed(data.name, raw, role, data.options, torch.device("cpu"))
    factors = {}
    for name, values in raw.factors.items():
        if values.dtype.kind != "i":  # measured, such as affNIST's rotation: a value of its own for each image
            continue
        counted = torch.from_numpy(values).unique(return_counts=True)
        factors[name] = dict(zip(*(part.tolist() for part in counted), strict=True))
    return {
        "images": len(feed.labels),
        "made_from": len(raw.labels),
        "shape": list(facts.shape(data.options)),
        "images_by_class": feed.labels.flatten().bincount(minlength=facts.num_classes).tolist(),
        "factors": {name: {str(k): v for k, v in values.items()} for name, values in factors.items()},
        "fingerprint": fingerprint([raw.images, raw.labels, *raw.factors.values()]),
        "unofficial": list(raw.unofficial),
    }
