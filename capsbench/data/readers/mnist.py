"""MNIST from its four idx files, gzip or plain, checked byte for byte."""

import gzip
import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capsbench.data.readers.download import RemoteFile, fetch
from capsbench.data.readers.raw import Raw, SourceSplit, check_official, check_regular
from capsbench.errors import InputError
from capsbench.study import DataOptions

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
# name -> (md5 of the uncompressed bytes, md5 of the .gz that the mirrors serve)
FILES = {
    "train-images-idx3-ubyte": ("6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    "train-labels-idx1-ubyte": ("a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432"),
    "t10k-images-idx3-ubyte": ("2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
    "t10k-labels-idx1-ubyte": ("27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c"),
}
ITEMS = {"train": 60_000, "t10k": 10_000}  # first word of a file's name -> images or labels in it
SIDE = 28
MAGIC = {1: 2049, 3: 2051}  # dimensions -> magic number of unsigned bytes
FETCH_AGAIN = "delete it and fetch it again"


@dataclass(frozen=True)
class IdxFile:
    """What an idx file has: its array, the sha256 of its uncompressed bytes, and a line if it is not official."""

    array: np.ndarray
    sha256: str
    unofficial: tuple[str, ...]


def read(folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: DataOptions | None = None) -> Raw:
    """Return images uint8 [N, 1, 28, 28] and labels int64 [N]; N is 60,000 (train) or 10,000 (test).

    Raises:
        InputError: a file is missing, damaged or, unless that is allowed, not the official one. Another official file,
            or one of another number of items, is refused whatever is allowed.
    """
    prefix = "train" if split == "train" else "t10k"
    dimensions = {f"{prefix}-images-idx3-ubyte": 3, f"{prefix}-labels-idx1-ubyte": 1}
    read_files = {name: read_idx(folder, name, number, allow_unofficial) for name, number in dimensions.items()}
    images, labels = (file.array for file in read_files.values())
    if images.shape[1:] != (SIDE, SIDE) or labels.max() > 9:
        found = f"{len(images)} images of {images.shape[1]}x{images.shape[2]}, labels up to {labels.max()}"
        raise InputError(f"{folder}: {split} has {found}; MNIST has images of {SIDE}x{SIDE} and labels 0 to 9")
    unofficial = tuple(line for file in read_files.values() for line in file.unofficial)
    files = {name: file.sha256 for name, file in read_files.items()}
    return Raw(images[:, np.newaxis], labels.astype(np.int64), {}, unofficial, files)


def download(folder: Path) -> None:
    """Fetch the files that are missing. Files that are there stay, and are checked when they are read."""
    for name, (_, gz_md5) in FILES.items():
        if not ((folder / name).exists() or (folder / f"{name}.gz").exists()):
            fetch(RemoteFile(f"{name}.gz", gz_md5, MIRRORS), folder)


def read_idx(folder: Path, name: str, dimensions: int, allow_unofficial: bool = False) -> IdxFile:
    """Read FOLDER/NAME or FOLDER/NAME.gz into an array uint8.

    Args:
        folder: of the four files.
        name: one of FILES.
        dimensions: of the array, as the file's magic number has to say.
        allow_unofficial: accept a file whose md5 is not the official one, unless it is that of another of FILES.

    Raises:
        InputError: the file is missing, damaged, not official or not an idx file of the official number of items.
    """
    plain, packed = folder / name, folder / f"{name}.gz"
    path = plain if plain.exists() else packed
    content = _content(path)
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    others = {md5: other for other, (md5, _) in FILES.items()}
    unofficial = check_official(str(path), md5, FILES[name][0], allow_unofficial, others)
    shape, values = _parse(path, content, dimensions)
    items = ITEMS[name.split("-")[0]]
    if shape[0] != items:
        raise InputError(f"{path}: has {shape[0]:,} items, MNIST's file of this name has {items:,}; {FETCH_AGAIN}")
    return IdxFile(values.reshape(shape).copy(), hashlib.sha256(content).hexdigest(), unofficial)


def _content(path: Path) -> bytes:
    """Return the uncompressed bytes of a file: at most one more than the largest of FILES has."""
    if not path.exists():
        raise InputError(
            f"{path} is missing: 'capsbench data fetch mnist' downloads it, "
            "or set CAPSBENCH_DATA to the folder that holds mnist/"
        )
    check_regular(path)
    most = 16 + max(ITEMS.values()) * SIDE * SIDE
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(most + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file ({error}); {FETCH_AGAIN}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > most:
        raise InputError(f"{path}: has more than {most:,} bytes, as no file of MNIST has; {FETCH_AGAIN}")
    return content


def _parse(path: Path, content: bytes, dimensions: int) -> tuple[tuple[int, ...], np.ndarray]:
    """Return the shape that the header of an idx file gives and the flat array uint8 that follows it."""
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise InputError(f"{path}: {len(content)} bytes are too short for an idx header of {header}")
    magic, *shape = struct.unpack(f">{1 + dimensions}i", content[:header])
    if magic != MAGIC[dimensions]:
        raise InputError(f"{path}: magic number {magic}, expected {MAGIC[dimensions]}: not an idx file of bytes")
    if min(shape) < 0:
        raise InputError(f"{path}: the header has a negative size in {shape}: not an idx file")
    if len(content) - header != math.prod(shape):
        follow = f"{len(content) - header:,} follow"
        raise InputError(f"{path}: the header promises {math.prod(shape):,} bytes, {follow}")
    return tuple(shape), np.frombuffer(content, np.uint8, offset=header)
