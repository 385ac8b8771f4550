"""Fetching raw data: mirrors in order, a progress bar, interrupted downloads resumed, whole and checked files only.

What has arrived is kept as NAME.part until it is whole and its checksum is right; only then is it renamed to NAME.
"""

import errno
import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from capsbench.errors import InputError

TIMEOUT_SECONDS = 30
CHUNK = 1 << 16
# an OSError in the calls that catch these comes from the network: none of them touches the disk
NETWORK_ERRORS = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class RemoteFile:
    """A file by its official name, the md5 of its bytes (None: unknown), and base addresses to try in order."""

    name: str
    md5: str | None
    mirrors: tuple[str, ...]


class _MirrorError(Exception):
    """This mirror did not deliver the file; the next one may."""


def fetch(file: RemoteFile, folder: Path) -> Path:
    """Download a file into a folder and verify it, under a lock so that two processes do not download it twice.

    If the md5 is unknown, only the length is checked, and nothing is taken over plain http, where it may be changed on
    the way; the reader of the file checks its content.

    Returns:
        The path of the file.

    Raises:
        InputError: no mirror delivered the file (the message has each mirror's answer), or it cannot be written. What
            has arrived stays as NAME.part.
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
                except _MirrorError as error:
                    problems.append(f"{mirror}: {error}")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise InputError(
                f"no space left on the disk for {target}: make room and fetch again; the download resumes from "
                f"{_part(target).name}"
            ) from None
        raise InputError(f"cannot write {target}: {error.strerror or error}") from None
    by_hand = f"md5 {file.md5}" if file.md5 else "its checksum is unknown"
    raise InputError(
        f"cannot download {file.name} ({'; '.join(problems)}): check the network, "
        f"or put the file at {target} by hand ({by_hand})"
    )


def md5_of(path: Path) -> str:
    """Return the md5 of a file's bytes.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _part(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _fetch_from(address: str, md5: str | None, target: Path) -> Path:
    part = _part(target)
    start = part.stat().st_size if part.exists() else 0
    resumed = _receive(address, part, start, md5)
    found = md5_of(part)
    if resumed and md5 not in (None, found):  # the first piece may be of another version of the file
        _receive(address, part, 0, md5)
        found = md5_of(part)
    if md5 not in (None, found):
        part.unlink()
        raise _MirrorError(f"md5 {found}, expected {md5}")
    return part.replace(target)


def _receive(address: str, part: Path, start: int, md5: str | None) -> bool:
    """Download an address to a file, from byte `start` on.

    Returns:
        Whether the file begins with bytes of an earlier download.

    Raises:
        _MirrorError: the file did not arrive whole; what did arrive stays.
    """
    _check_address(address, md5)
    with _open(address, start) as response:
        _check_address(response.url, md5)  # where a redirect led
        given = response.headers.get("Content-Range") or ""
        if response.status == 416 and given == f"bytes */{start}":
            return True  # the earlier download was complete
        if start and response.status != 200 and not (response.status == 206 and given.startswith(f"bytes {start}-")):
            return _receive(address, part, 0, md5)
        if response.status == 200:
            start = 0  # the server ignored the range and sends the whole file
        length = response.headers.get("Content-Length")
        size = start + int(length) if length and length.isdigit() else None
        if size is None and md5 is None:
            raise _MirrorError("the server does not send the file's length, and its checksum is unknown")
        with (
            part.open("ab" if start else "wb") as out,
            tqdm(total=size, initial=start, unit="B", unit_scale=True, desc=part.stem) as bar,
        ):
            received = start
            for chunk in _chunks(response):
                out.write(chunk)
                received += len(chunk)
                bar.update(len(chunk))
    if size is not None and received != size:
        raise _MirrorError(f"{received:,} of {size:,} bytes arrived; fetch again to resume")
    return start > 0


def _check_address(address: str, md5: str | None) -> None:
    if md5 is None and not address.startswith("https://"):
        raise _MirrorError(f"{address} is not https, and the file's checksum is unknown: what arrives may be anything")


def _open(address: str, start: int) -> http.client.HTTPResponse | urllib.error.HTTPError:
    """Request an address from byte `start` on and return the response, of status 200, 206 or (range refused) 416."""
    request = urllib.request.Request(address, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:
            return error
        with error:
            raise _MirrorError(f"{error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _MirrorError(str(error.reason)) from None
    except NETWORK_ERRORS as error:
        raise _MirrorError(str(error) or type(error).__name__) from None
    return response


def _chunks(response: http.client.HTTPResponse | urllib.error.HTTPError) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK)
        except http.client.IncompleteRead as error:
            chunk = error.partial
        except NETWORK_ERRORS as error:
            raise _MirrorError(f"connection lost: {error or type(error).__name__}") from None
        if not chunk:
            return
        yield chunk
