"""smallNORB from its six official files (binary matrices, gzip or plain), checked byte for byte, brought to 48x48."""

import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from capsbench.data.readers.cache import cached
from capsbench.data.readers.download import RemoteFile, fetch
from capsbench.data.readers.raw import Raw, SourceSplit, check_official
from capsbench.errors import InputError
from capsbench.study import DataOptions

FORMAT = 1  # of the prepared arrays; raise it when this file comes to give others
MIRRORS = (
    "https://cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
    "http://www.cs.nyu.edu/~ylclab/data/norb-v1.0-small/",
)
STEMS = {
    "train": "smallnorb-5x46789x9x18x6x2x96x96-training",
    "test": "smallnorb-5x01235x9x18x6x2x96x96-testing",
}
PARTS = ("dat", "cat", "info")
# name -> (md5 of the uncompressed bytes, md5 of the .gz that the server has)
FILES = {
    f"{STEMS['train']}-dat.mat": ("8138a0902307b32dfa0025a36dfa45ec", "66054832f9accfe74a0f4c36a75bc0a2"),
    f"{STEMS['train']}-cat.mat": ("fd5120d3f770ad57ebe620eb61a0b633", "23c8b86101fbf0904a000b43d3ed2fd9"),
    f"{STEMS['train']}-info.mat": ("19faee774120001fc7e17980d6960451", "51dee1210a742582ff607dfd94e332e3"),
    f"{STEMS['test']}-dat.mat": ("e9920b7f7b2869a8f1a12e945b2c166c", "e4ad715691ed5a3a5f138751a4ceb071"),
    f"{STEMS['test']}-cat.mat": ("fd5120d3f770ad57ebe620eb61a0b633", "5aa791cd7e6016cf957ce9bdb93b8603"),
    f"{STEMS['test']}-info.mat": ("7c5b871cc69dcadec1bf6a18141f5edc", "a9454f3864d7fd4bb3ea7fc3eb84924e"),
}
# md5 of the uncompressed bytes -> what the copy is; results on it carry this name
KNOWN_COPIES = {
    "98b4bdd8fe1dbbf0f9b17c78606f2eb7": "JPEG-75 copy",  # training dat
    "796ad9a3f1256ecfc1cfa48476aa28e5": "JPEG-75 copy",  # training info: the instance alone is known
    "38867184dff5c1fc44b703b9521c7c37": "JPEG-75 copy",  # testing dat
    "ea0582b9dad917bf50ea7dace8823607": "JPEG-75 copy",  # testing info: the azimuth is not known
}
BYTE_MATRIX, INT_MATRIX = 0x1E3D4C55, 0x1E3D4C54
PAIRS = 24_300
SIDE = 48  # half of the 96 in the files
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}
FACTORS = ("instance", "elevation", "azimuth", "lighting")
UNKNOWN = -1
VIEWS = {"elevation": range(9), "azimuth": range(0, 36, 2), "lighting": range(6)}
CHUNK_PAIRS = 900


def read(folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: DataOptions | None = None) -> Raw:
    """Return images uint8 [24300, 2, 48, 48], labels int64 [24300] and the factors, int64 [24300] each.

    The channels are the two cameras; each pixel is the mean of a 2x2 block, rounded half up. Factors: instance,
    elevation 0-8, azimuth 0, 2..34 (tens of degrees), lighting 0-5; -1 where a copy does not know them. Each read
    checks the md5 of the uncompressed bytes; the 48x48 arrays are built once.

    Raises:
        InputError: a file is missing, damaged or, unless that is allowed, not the official one.
    """
    paths = {part: _find(folder, f"{STEMS[split]}-{part}.mat") for part in PARTS}
    found = {part: _md5_and_size(path) for part, path in paths.items()}
    unofficial: tuple[str, ...] = ()
    for part, path in paths.items():
        md5 = found[part][0]
        lines = check_official(str(path), md5, FILES[f"{STEMS[split]}-{part}.mat"][0], allow_unofficial)
        unofficial += tuple(f"smallNORB ({KNOWN_COPIES.get(md5, 'unofficial copy')}): {line}" for line in lines)
    made_from = {"files": {part: md5 for part, (md5, _) in found.items()}, "side": SIDE, "format": FORMAT}
    sizes = {part: size for part, (_, size) in found.items()}
    arrays = cached(f"smallnorb-{split}", made_from, lambda: _build(paths, sizes, split))
    return Raw(arrays["images"], arrays["labels"], {name: arrays[name] for name in FACTORS}, unofficial)


def download(folder: Path) -> None:
    """Fetch the files that are missing. Files that are there stay, and are checked when they are read."""
    for name, (_, gz_md5) in FILES.items():
        if not ((folder / name).exists() or (folder / f"{name}.gz").exists()):
            fetch(RemoteFile(f"{name}.gz", gz_md5, MIRRORS), folder)


def halve(images: np.ndarray) -> np.ndarray:
    """Average 2x2 blocks: uint8 [..., H, W] -> uint8 [..., H/2, W/2], rounded half up."""
    wide = images.astype(np.uint16)
    total = wide[..., ::2, ::2] + wide[..., ::2, 1::2] + wide[..., 1::2, ::2] + wide[..., 1::2, 1::2]
    return ((total + 2) // 4).astype(np.uint8)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise InputError(
        f"{folder / name}.gz is missing: 'capsbench data fetch smallnorb' downloads it, "
        "or set CAPSBENCH_DATA to the folder that holds smallnorb/"
    )


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for its uncompressed bytes; an error while reading it becomes an InputError."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip file ({error}); delete it and fetch it again") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def _md5_and_size(path: Path) -> tuple[str, int]:
    digest, size = hashlib.md5(usedforsecurity=False), 0
    with _opened(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def _build(paths: dict[str, Path], sizes: dict[str, int], split: SourceSplit) -> dict[str, np.ndarray]:
    images = np.empty((PAIRS, 2, SIDE, SIDE), np.uint8)
    with _matrix(paths["dat"], sizes["dat"], BYTE_MATRIX, (PAIRS, 2, 2 * SIDE, 2 * SIDE)) as file:
        for start in range(0, PAIRS, CHUNK_PAIRS):
            part = images[start : start + CHUNK_PAIRS]
            shape = (len(part), 2, 2 * SIDE, 2 * SIDE)
            part[:] = halve(np.frombuffer(file.read(int(np.prod(shape))), np.uint8).reshape(shape))
    labels = _integers(paths["cat"], sizes["cat"], (PAIRS,))
    info = _integers(paths["info"], sizes["info"], (PAIRS, len(FACTORS)))
    factors = {name: np.ascontiguousarray(info[:, column]) for column, name in enumerate(FACTORS)}
    _check_values(paths, labels, factors, split)
    return {"images": images, "labels": labels, **factors}


@contextmanager
def _matrix(path: Path, size: int, magic: int, shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """Check the header of a matrix file and open it at the first element; `size` is that of the uncompressed file."""
    stored = max(3, len(shape))  # a header lists at least three sizes, of which a vector or matrix uses fewer
    header = 8 + 4 * stored
    with _opened(path) as file:
        if size < header:
            raise InputError(f"{path}: {size} bytes are too short for a header of {header}")
        found, dimensions, *rest = struct.unpack(f"<{2 + stored}i", file.read(header))
        if found != magic:
            raise InputError(f"{path}: magic number {found:#x}, expected {magic:#x}: not this file of smallNORB")
        if dimensions != len(shape) or tuple(rest[: len(shape)]) != shape:
            given = f"{dimensions} dimensions, {rest}"
            raise InputError(f"{path}: the header says {given}; expected {len(shape)}, {list(shape)}")
        promised = int(np.prod(shape)) * (1 if magic == BYTE_MATRIX else 4)
        if size - header != promised:
            raise InputError(f"{path}: the header promises {promised:,} bytes, {size - header:,} follow")
        yield file


def _integers(path: Path, size: int, shape: tuple[int, ...]) -> np.ndarray:
    with _matrix(path, size, INT_MATRIX, shape) as file:
        return np.frombuffer(file.read(), "<i4").reshape(shape).astype(np.int64)


def _check_values(
    paths: dict[str, Path], labels: np.ndarray, factors: dict[str, np.ndarray], split: SourceSplit
) -> None:
    values, counts = np.unique(labels, return_counts=True)
    if values.tolist() != list(range(5)) or set(counts.tolist()) != {PAIRS // 5}:
        given = ", ".join(f"{value}: {count:,}" for value, count in zip(values[:8], counts[:8], strict=True))
        raise InputError(f"{paths['cat']}: categories {given}; expected 0 to 4 with {PAIRS // 5:,} pairs each")
    instances = np.unique(factors["instance"]).tolist()
    if instances != list(INSTANCES[split]):
        raise InputError(f"{paths['info']}: instances {instances[:12]}; those of {split} are {list(INSTANCES[split])}")
    for name, known in VIEWS.items():
        wrong = np.setdiff1d(factors[name], [UNKNOWN, *known])
        if len(wrong):
            raise InputError(f"{paths['info']}: {name} {wrong[0]}; expected {known[0]} to {known[-1]}, -1 for unknown")
