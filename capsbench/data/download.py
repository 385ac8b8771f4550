"""Fetching raw data: mirrors in order, a progress bar, checksum before use, whole files only."""

import hashlib
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from capsbench.errors import InputError

TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class RemoteFile:
    """A file by its official name, the md5 of its bytes, and base addresses to try in order."""

    name: str
    md5: str
    mirrors: tuple[str, ...]


def fetch(file: RemoteFile, folder: Path) -> Path:
    """Download a file into a folder, verified, under a lock so that two processes do not meet.

    Raises InputError where no mirror has it, naming what each answered, or where the disk refuses.
    """
    target = folder / file.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f".{file.name}.lock"):
            if target.exists():  # another process was faster
                return target
            problems = []
            for mirror in file.mirrors:
                try:
                    return _fetch_from(mirror + file.name, file.md5, target)
                except (urllib.error.URLError, TimeoutError, ConnectionError, InputError) as error:
                    problems.append(f"{mirror}: {getattr(error, 'reason', error)}")
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from None
    raise InputError(
        f"cannot download {file.name} ({'; '.join(problems)}): is there a network? "
        f"Or put the file at {target} by hand (md5 {file.md5})"
    )


def _fetch_from(address: str, md5: str, target: Path) -> Path:
    part = target.with_name(target.name + ".part")
    digest = hashlib.md5(usedforsecurity=False)
    with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as response:
        size = int(response.headers.get("Content-Length") or 0)
        with part.open("wb") as out, tqdm(total=size, unit="B", unit_scale=True, desc=target.name) as bar:
            while chunk := response.read(1 << 16):
                out.write(chunk)
                digest.update(chunk)
                bar.update(len(chunk))
    received = part.stat().st_size
    if size and received != size:
        part.unlink()
        raise InputError(f"{received:,} of {size:,} bytes arrived")
    if digest.hexdigest() != md5:
        part.unlink()
        raise InputError(f"md5 {digest.hexdigest()}, expected {md5}")
    os.replace(part, target)  # noqa: PTH105
    return target
