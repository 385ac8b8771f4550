"""Fashion-MNIST from its four official .gz files; names, checksums and addresses are torchvision's."""

import gzip
import hashlib
from pathlib import Path

import numpy as np

from capsbench.data.readers.download import RemoteFile, fetch
from capsbench.data.readers.raw import Raw, SourceSplit, check_regular
from capsbench.errors import InputError
from capsbench.study import DataOptions

MIRRORS = ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",)  # the authors'
PREFIX = {"train": "train", "test": "t10k"}
SIDE = 28
IMAGES_HEADER, LABELS_HEADER = 16, 8  # bytes: magic number and sizes


def read(folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: DataOptions | None = None) -> Raw:
    """Return images uint8 [N, 1, 28, 28] and labels int64 [N]; N is 60,000 (train) or 10,000 (test).

    Only the official .gz files are taken, since only their checksums are published; `allow_unofficial` changes nothing
    here. torchvision's own reader wants unpacked files, which it does not check.

    Raises:
        InputError: a file is missing, damaged or not the official one.
    """
    names = tuple(f"{PREFIX[split]}-{part}-ubyte" for part in ("images-idx3", "labels-idx1"))
    images, labels = (_content(folder, name) for name in names)
    files = {name: hashlib.sha256(content).hexdigest() for name, content in zip(names, (images, labels), strict=True)}
    pixels = np.frombuffer(images, np.uint8, offset=IMAGES_HEADER).reshape(-1, 1, SIDE, SIDE).copy()
    return Raw(pixels, np.frombuffer(labels, np.uint8, offset=LABELS_HEADER).astype(np.int64), files=files)


def download(folder: Path) -> None:
    """Fetch the files that are missing. Files that are there stay, and are checked when they are read."""
    from torchvision.datasets import FashionMNIST

    for name, md5 in FashionMNIST.resources:
        if not (folder / name).exists():
            fetch(RemoteFile(name, md5, (*MIRRORS, *FashionMNIST.mirrors)), folder)


def _content(folder: Path, name: str) -> bytes:
    """Return the uncompressed bytes of an official file, whose checksum is compared before it is unpacked."""
    from torchvision.datasets import FashionMNIST

    path, expected = folder / f"{name}.gz", dict(FashionMNIST.resources)[f"{name}.gz"]
    if not path.exists():
        raise InputError(
            f"{path} is missing: 'capsbench data fetch fashion-mnist' downloads it, "
            "or set CAPSBENCH_DATA to the folder that holds fashion-mnist/"
        )
    check_regular(path)
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    found = hashlib.md5(packed, usedforsecurity=False).hexdigest()
    if found != expected:
        raise InputError(
            f"{path}: md5 {found}, expected {expected}: damaged or not the official file; delete it and run "
            "'capsbench data fetch fashion-mnist'"
        )
    return gzip.decompress(packed)
