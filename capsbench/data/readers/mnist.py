"""MNIST from its four idx files, gzip or plain, checked byte for byte."""

import gzip
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

from capsbench.data.readers.download import RemoteFile, fetch
from capsbench.data.readers.raw import Raw, SourceSplit, check_official
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
SIDE = 28
MAGIC = {1: 2049, 3: 2051}  # dimensions -> magic number of unsigned bytes


def read(folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: DataOptions | None = None) -> Raw:
    """Return images uint8 [N, 1, 28, 28] and labels int64 [N]; N is 60,000 (train) or 10,000 (test).

    Raises:
        InputError: a file is missing, damaged or, unless that is allowed, not the official one.
    """
    prefix = "train" if split == "train" else "t10k"
    images, images_unofficial = read_idx(folder, f"{prefix}-images-idx3-ubyte", 3, allow_unofficial)
    labels, labels_unofficial = read_idx(folder, f"{prefix}-labels-idx1-ubyte", 1, allow_unofficial)
    if len(images) != len(labels):
        raise InputError(f"{folder}: {len(images)} {split} images but {len(labels)} labels")
    if len(images) == 0 or images.shape[1:] != (SIDE, SIDE) or labels.max() > 9:
        found = f"{len(images)} images of {images.shape[1]}x{images.shape[2]}, labels up to {labels.max(initial=0)}"
        raise InputError(f"{folder}: {split} has {found}; MNIST has images of {SIDE}x{SIDE} and labels 0 to 9")
    return Raw(images[:, np.newaxis], labels.astype(np.int64), unofficial=images_unofficial + labels_unofficial)


def download(folder: Path) -> None:
    """Fetch the files that are missing. Files that are there stay, and are checked when they are read."""
    for name, (_, gz_md5) in FILES.items():
        if not ((folder / name).exists() or (folder / f"{name}.gz").exists()):
            fetch(RemoteFile(f"{name}.gz", gz_md5, MIRRORS), folder)


def read_idx(
    folder: Path, name: str, dimensions: int, allow_unofficial: bool = False
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Read FOLDER/NAME or FOLDER/NAME.gz.

    Args:
        folder: of the four files.
        name: one of FILES.
        dimensions: of the array, as the file's magic number has to say.
        allow_unofficial: accept a file whose md5 is not the official one.

    Returns:
        An array uint8 of the shape that the header gives, and the lines that name what is not official.

    Raises:
        InputError: the file is missing, damaged, not official or not an idx file.
    """
    plain, packed = folder / name, folder / f"{name}.gz"
    path = plain if plain.exists() else packed
    if not path.exists():
        raise InputError(
            f"{packed} is missing: 'capsbench data fetch mnist' downloads it, "
            "or set CAPSBENCH_DATA to the folder that holds mnist/"
        )
    try:
        content = path.read_bytes() if path is plain else gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file ({error}); delete it and fetch it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    unofficial = check_official(str(path), found, FILES[name][0], allow_unofficial)
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise InputError(f"{path}: {len(content)} bytes are too short for an idx header of {header}")
    magic, *shape = struct.unpack(f">{1 + dimensions}i", content[:header])
    if magic != MAGIC[dimensions]:
        raise InputError(f"{path}: magic number {magic}, expected {MAGIC[dimensions]}: not an idx file of bytes")
    size = int(np.prod(shape))
    if len(content) - header != size:
        raise InputError(f"{path}: the header promises {size:,} bytes, {len(content) - header:,} follow")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy(), unofficial
