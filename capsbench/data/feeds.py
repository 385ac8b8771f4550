"""From the name of a data set to the batches of one of its splits."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsbench.data.catalogue import CATALOGUE, Role
from capsbench.data.raw import Raw

if TYPE_CHECKING:
    import torch

    from capsbench.data.batches import Feed


def read_raw(name: str, root: Path, role: Role, allow_unofficial: bool, options: Any) -> Raw:
    """Read the arrays that a role's batches are made from; validation items are cut from those of `train`.

    options: of the data set, checked. Raises InputError for missing or wrong files.
    """
    facts = CATALOGUE[name]
    base = "affnist" if name == "affnist" and role == "test" else facts.base
    more = {"lightings": options.lightings} if hasattr(options, "lightings") else {}
    split = "train" if role in ("train", "validation") else "test"
    raw: Raw = _module(base).read(root / base, split, allow_unofficial, **more)
    if facts.kind == "norb":
        raw = _module("norb").select_views(raw, options, role)
    return raw


def make_feed(name: str, raw: Raw, role: Role, options: Any, device: "torch.device") -> "Feed":
    """Return the feed that shows raw arrays as a role sees them."""
    feed: Feed = _module(CATALOGUE[name].kind).make_feed(CATALOGUE[name], raw, role, options, device)
    return feed


def _module(name: str) -> Any:
    # by name, so that a training rests on the modules of its own data set and no others: see capsbench.sources
    return importlib.import_module(f"capsbench.data.{name}")
