"""Prepared arrays on disk, memory-mapped, so that every run after the first reads them in moments.

An entry is a folder named by the hash of what it was made from: checksums of the source files, options, and the
FORMAT of the reader, a number that is raised whenever the reader's code gives other arrays. An entry is made under
another name and moved into place whole. Before use its bytes are compared with the checksums written with it, so that
an entry that is torn, truncated or altered is made again and never used.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from capsbench.errors import InputError

Arrays = dict[str, np.ndarray]


def cache_folder() -> Path:
    """Return the folder of prepared arrays: CAPSBENCH_CACHE, else capsbench/ in the user's cache folder."""
    if named := os.environ.get("CAPSBENCH_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "capsbench"


def cached(name: str, made_from: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of an entry as copy-on-write memory maps, building them if they are missing or not whole.

    Args:
        name: how the entry's folder begins.
        made_from: everything that decides the arrays.
        build: makes the arrays.

    Raises:
        InputError: the cache cannot be written or read.
    """
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    entry = cache_folder() / f"{name}-{key}"
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(entry.with_name(f".{entry.name}.lock")):
            arrays = _read(entry)
            if arrays is None:
                _write(entry, build())
                arrays = _read(entry)
            if arrays is None:
                raise InputError(f"{entry}: what was just written there cannot be read back; is the disk damaged?")
            return arrays
    except OSError as error:
        raise InputError(
            f"cannot keep prepared data in {cache_folder()}: {error.strerror or error}; "
            "CAPSBENCH_CACHE names another folder"
        ) from None


def _write(entry: Path, arrays: Arrays) -> None:
    aside = entry.with_name(f".{entry.name}.part")
    for old in (aside, entry):
        shutil.rmtree(old, ignore_errors=True)
    aside.mkdir()
    try:
        for name, array in arrays.items():
            np.save(aside / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
        sums = {name: _sum(array) for name, array in arrays.items()}
        (aside / "sums.json").write_text(json.dumps(sums))
        aside.replace(entry)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _read(entry: Path) -> Arrays | None:
    """Return an entry's arrays, or None if any of it is missing, torn or not what was written."""
    try:
        sums = json.loads((entry / "sums.json").read_text())
        arrays = {name: np.load(entry / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in sums}
    except Exception:  # a damaged header raises what its parser happens to raise
        return None
    return arrays if sums and all(_sum(array) == sums[name] for name, array in arrays.items()) else None


def _sum(array: np.ndarray) -> str:
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
