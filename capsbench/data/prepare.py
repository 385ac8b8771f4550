"""Making sure of a data set before anything trains on it: fetched, checked, counted."""

import importlib
from pathlib import Path
from typing import Any

from capsbench.data import load
from capsbench.data.catalogue import CATALOGUE
from capsbench.run_folder import write_json


def prepare(name: str, root: Path, manifest: Path | None = None) -> dict[str, Any]:
    """Fetch what is missing, load both splits, and return (and write) their counts, labels and fingerprints.

    Raises InputError for anything that is not the official data.
    """
    if CATALOGUE[name].needs_files:
        importlib.import_module(f"capsbench.data.{name}").download(root / name)
    facts: dict[str, Any] = {"name": name, "title": CATALOGUE[name].title}
    for split in ("train", "test"):
        loaded = load(name, root, split)
        facts[split] = {
            "images": len(loaded.images),
            "shape": list(loaded.images.shape[1:]),
            "images_by_class": loaded.labels.bincount(minlength=CATALOGUE[name].num_classes).tolist(),
            "fingerprint": loaded.fingerprint,
        }
    if manifest is not None:
        write_json(manifest, facts)
    return facts
