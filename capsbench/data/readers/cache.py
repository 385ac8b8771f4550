"""Prepared arrays on disk, memory-mapped, so that every run after the first reads them in moments.

An entry is a folder named by the hash of what it was made from: checksums of the source files, options, and the
FORMAT of the reader, a number that is raised whenever the reader's code gives other arrays. An entry is made under
another name and moved into place whole. Before use its bytes are compared with the checksums written with it, so that
an entry that is torn, truncated or altered is made again and never used. From a folder that may only be read, entries
are used; what cannot be kept is made in memory, with a warning.
"""

import errno
import functools
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from capsbench.errors import InputError

log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]
NO_ROOM = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}  # the folder is sound, but takes nothing
ENTRY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*-[0-9a-f]{16}|\.[a-z0-9]+(-[a-z0-9]+)*-[0-9a-f]{16}\.part")


def cache_folder() -> Path:
    """Return the folder of prepared arrays: CAPSBENCH_CACHE, else capsbench/ in the user's cache folder."""
    if named := os.environ.get("CAPSBENCH_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "capsbench"


def cached(name: str, made_from: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of an entry as copy-on-write memory maps, building them if they are missing or not whole.

    Where the folder is read-only or full, they are built in memory, and a warning says so once per process.

    Args:
        name: how the entry's folder begins.
        made_from: everything that decides the arrays.
        build: makes the arrays.

    Raises:
        InputError: the cache is not a folder, or its disk is damaged.
    """
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    entry = cache_folder() / f"{name}-{key}"
    arrays = _read(entry)  # without the lock, which a folder that may only be read does not grant
    if arrays is not None:
        return arrays
    built: list[Arrays] = []
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(_lock(entry)):
            arrays = _read(entry)
            if arrays is None:  # no other process built it in the meantime
                built.append(build())
                _write(entry, built[0])
                arrays = _read(entry)
        if arrays is None:
            raise InputError(f"{entry}: what was just written there cannot be read back; is the disk damaged?")
        return arrays
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise InputError(
                f"cannot keep prepared data in {cache_folder()}: {error.strerror or error}; "
                "CAPSBENCH_CACHE names another folder"
            ) from None
        _warn(cache_folder(), error.strerror or str(error))
    made = built[0] if built else build()
    return {name: np.ascontiguousarray(array) for name, array in made.items()}


def entries() -> dict[Path, int]:
    """Return the entries of the cache, whole or left over from an interruption, with their sizes in bytes.

    A folder is an entry if it is named as one and holds arrays and checksums only, so that nothing else is ever
    removed where CAPSBENCH_CACHE names a folder of other things.

    Raises:
        InputError: the cache cannot be read.
    """
    folder = cache_folder()
    try:
        found = {path: _size(path) for path in sorted(folder.iterdir()) if ENTRY.fullmatch(path.name)}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"cannot read {folder}: {error.strerror or error}") from None
    return {path: size for path, size in found.items() if size is not None}


def remove(entry: Path) -> bool:
    """Remove an entry, unless another process is building it. A process that has mapped its arrays keeps them.

    Returns:
        Whether it was removed.

    Raises:
        InputError: it may not be removed.
    """
    try:
        with FileLock(_lock(entry), timeout=0):
            shutil.rmtree(entry)
    except Timeout:
        return False
    except OSError as error:
        raise InputError(f"cannot remove {entry}: {error.strerror or error}") from None
    return True


def _lock(entry: Path) -> Path:
    return entry.with_name(f".{entry.name.removeprefix('.').removesuffix('.part')}.lock")


def _size(path: Path) -> int | None:
    """Return the bytes of an entry's files, or None for what is no entry."""
    if path.is_symlink() or not path.is_dir():
        return None
    files = list(path.iterdir())
    ours = all(file.suffix == ".npy" or file.name == "sums.json" for file in files)
    return sum(file.stat().st_size for file in files) if ours and all(map(Path.is_file, files)) else None


@functools.cache
def _warn(folder: Path, problem: str) -> None:
    log.warning(
        f"prepared data cannot be kept in {folder} ({problem}): they are made in memory each time; CAPSBENCH_CACHE "
        "names another folder"
    )


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
