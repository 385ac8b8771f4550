"""smallNORB, checked byte for byte and brought to 48x48 or 64x64.

It is read from its six official files (binary matrices, gzip or plain) or, where they are not there, from the TFRecord
files of H18's authors. These are official where the matrices that their records make up have the official checksums.
"""

import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from capsbench.data.readers.cache import cached
from capsbench.data.readers.download import RemoteFile, fetch
from capsbench.data.readers.raw import Raw, SourceSplit, check_official
from capsbench.data.readers.smallnorb_records import Pairs, find_records, read_pairs
from capsbench.data.tasks.stereo import SIDES, NorbOptions, Resize, resized
from capsbench.errors import InputError

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
# md5 of the uncompressed bytes -> what the copy is, which name results carry, and the file that it stands for
KNOWN_COPIES = {
    "98b4bdd8fe1dbbf0f9b17c78606f2eb7": ("JPEG-75 copy", f"{STEMS['train']}-dat.mat"),
    "796ad9a3f1256ecfc1cfa48476aa28e5": ("JPEG-75 copy", f"{STEMS['train']}-info.mat"),  # knows the instance alone
    "38867184dff5c1fc44b703b9521c7c37": ("JPEG-75 copy", f"{STEMS['test']}-dat.mat"),
    "ea0582b9dad917bf50ea7dace8823607": ("JPEG-75 copy", f"{STEMS['test']}-info.mat"),  # does not know the azimuth
}
BYTE_MATRIX, INT_MATRIX = 0x1E3D4C55, 0x1E3D4C54
PAIRS = 24_300
LARGEST_RECORD = 20_000  # bytes of a pair in the authors' TFRecords, which have about 18,600
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}
FACTORS = ("instance", "elevation", "azimuth", "lighting")
UNKNOWN = -1
VIEWS = {"elevation": range(9), "azimuth": range(0, 36, 2), "lighting": range(6)}
CHUNK_PAIRS = 900


def read(folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: NorbOptions | None = None) -> Raw:
    """Return images uint8 [24300, 2, S, S], labels int64 [24300] and the factors, int64 [24300] each.

    The channels are the two cameras. S is 48, or 64, by `options.resize`; averages are rounded half up. Factors:
    instance, elevation 0-8, azimuth 0, 2..34 (tens of degrees), lighting 0-5; -1 where a copy does not know them. Each
    read checks the md5 of the uncompressed bytes; the reduced arrays are built once for each `resize`.

    Raises:
        InputError: a file is missing, damaged or, unless that is allowed, not the official one.
    """
    resize = (options or NorbOptions()).resize
    records = find_records(folder, split)
    if records is not None and not all(_at(folder, f"{STEMS[split]}-{part}.mat") for part in PARTS):
        return _read_records(records, split, allow_unofficial, resize)
    paths = {part: _find(folder, f"{STEMS[split]}-{part}.mat") for part in PARTS}
    found = {part: _md5_and_size(path, _official_size(part)) for part, path in paths.items()}
    md5s = {part: (paths[part], md5) for part, (md5, _) in found.items()}
    unofficial = _check_official(md5s, split, allow_unofficial)
    made_from = {"files": {part: md5 for part, (md5, _) in found.items()}, "resize": resize, "format": FORMAT}
    sizes = {part: size for part, (_, size) in found.items()}
    arrays = cached(f"smallnorb-{split}", made_from, lambda: _build(paths, sizes, split, resize))
    files = {path.name: f"md5 {md5}" for path, md5 in md5s.values()}
    return Raw(arrays["images"], arrays["labels"], {name: arrays[name] for name in FACTORS}, unofficial, files)


def download(folder: Path) -> None:
    """Fetch the official files that are missing, except those of a split whose TFRecord file is there.

    Files that are there stay, and are checked when they are read.
    """
    splits: tuple[SourceSplit, ...] = ("train", "test")
    covered = tuple(STEMS[split] for split in splits if find_records(folder, split) is not None)
    for name, (_, gz_md5) in FILES.items():
        if not (_at(folder, name) or name.startswith(covered)):
            fetch(RemoteFile(f"{name}.gz", gz_md5, MIRRORS), folder)


def reduced(images: np.ndarray, resize: Resize) -> np.ndarray:
    """Bring images uint8 [..., 96, 96] to uint8 [..., S, S]; averages are rounded half up."""
    small = resized(torch.from_numpy(images).to(torch.float32), resize)
    return (small + 0.5).floor().to(torch.uint8).numpy()


def _read_records(path: Path, split: SourceSplit, allow_unofficial: bool, resize: Resize) -> Raw:
    """Read a split from the authors' TFRecords."""
    md5, _ = _md5_and_size(path, PAIRS * LARGEST_RECORD)
    made_from = {"records": md5, "resize": resize, "format": FORMAT}
    arrays = cached(f"smallnorb-records-{split}", made_from, lambda: _build_from_records(path, split, resize))
    made_up = {part: (Path(f"{path} ({part})"), arrays[f"md5_{part}"].tobytes().decode()) for part in PARTS}
    unofficial = _check_official(made_up, split, allow_unofficial)
    factors = {name: arrays[name] for name in FACTORS}
    return Raw(arrays["images"], arrays["labels"], factors, unofficial, {path.name: f"md5 {md5}"})


def _build_from_records(path: Path, split: SourceSplit, resize: Resize) -> dict[str, np.ndarray]:
    """Return the reduced arrays, and the md5 of each official file that the records make up, as its 32 letters."""
    shapes = {"dat": (PAIRS, 2, 96, 96), "cat": (PAIRS,), "info": (PAIRS, len(FACTORS))}
    digests = {
        part: hashlib.md5(_header(BYTE_MATRIX if part == "dat" else INT_MATRIX, shape), usedforsecurity=False)
        for part, shape in shapes.items()
    }
    parts: list[Pairs] = []
    count = 0
    for images, labels, info in read_pairs(path, CHUNK_PAIRS):
        for part, array in (("dat", images), ("cat", labels.astype("<i4")), ("info", info.astype("<i4"))):
            digests[part].update(array.tobytes())
        parts.append(Pairs(reduced(images, resize), labels, info))
        count += len(labels)
    if count != PAIRS:
        raise InputError(f"{path}: {count:,} pairs; smallNORB has {PAIRS:,} in each split")
    images, labels, info = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    factors = {name: np.ascontiguousarray(info[:, column]) for column, name in enumerate(FACTORS)}
    _check_values(dict.fromkeys(PARTS, path), labels, factors, split)
    md5s = {f"md5_{part}": np.frombuffer(digest.hexdigest().encode(), np.uint8) for part, digest in digests.items()}
    return {"images": images, "labels": labels, **factors, **md5s}


def _check_official(found: dict[str, tuple[Path, str]], split: SourceSplit, allow_unofficial: bool) -> tuple[str, ...]:
    """Compare the md5 of each part (path, md5) with the official one -> a line for each unofficial file."""
    unofficial: tuple[str, ...] = ()
    for part, (path, md5) in found.items():
        name = f"{STEMS[split]}-{part}.mat"
        what, stands_for = KNOWN_COPIES.get(md5, ("unofficial copy", name))
        if md5 != FILES[name][0]:
            stands_for = next((other for other, (known, _) in FILES.items() if known == md5), stands_for)
        if stands_for != name:
            raise InputError(f"{path}: has the content of {stands_for}, in the place of {name}")
        lines = check_official(str(path), md5, FILES[name][0], allow_unofficial)
        unofficial += tuple(f"smallNORB ({what}): {line}" for line in lines)
    return unofficial


def _at(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None)


def _find(folder: Path, name: str) -> Path:
    path = _at(folder, name)
    if path is None:
        raise InputError(
            f"{folder / name}.gz is missing: 'capsbench data fetch smallnorb' downloads it, "
            "or set CAPSBENCH_DATA to the folder that holds smallnorb/"
        )
    if not path.is_file():  # opening a pipe would wait for ever
        raise InputError(f"{path}: not a regular file")
    return path


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


def _official_size(part: str) -> int:
    """Return the bytes of an official file, header included."""
    elements = {"dat": 2 * 96 * 96, "cat": 4, "info": 4 * len(FACTORS)}[part]
    return PAIRS * elements + (24 if part == "dat" else 20)


def _md5_and_size(path: Path, largest: int) -> tuple[str, int]:
    """Return the md5 of the uncompressed bytes, and how many they are.

    Raises:
        InputError: they are more than `largest`; the rest is not read.
    """
    digest, size = hashlib.md5(usedforsecurity=False), 0
    with _opened(path) as file:
        while chunk := file.read(min(1 << 20, largest + 1 - size)):
            digest.update(chunk)
            size += len(chunk)
            if size > largest:
                raise InputError(f"{path}: more than {largest:,} bytes when uncompressed: not this file of smallNORB")
    return digest.hexdigest(), size


def _header(magic: int, shape: tuple[int, ...]) -> bytes:
    """Return the header of a matrix file: it lists at least three sizes, of which a vector or matrix uses fewer."""
    sizes = [*shape, 1, 1, 1][: max(3, len(shape))]
    return struct.pack(f"<{2 + len(sizes)}i", magic, len(shape), *sizes)


def _build(paths: dict[str, Path], sizes: dict[str, int], split: SourceSplit, resize: Resize) -> dict[str, np.ndarray]:
    images = np.empty((PAIRS, 2, SIDES[resize], SIDES[resize]), np.uint8)
    with _matrix(paths["dat"], sizes["dat"], BYTE_MATRIX, (PAIRS, 2, 96, 96)) as file:
        for start in range(0, PAIRS, CHUNK_PAIRS):
            part = images[start : start + CHUNK_PAIRS]
            shape = (len(part), 2, 96, 96)
            part[:] = reduced(np.frombuffer(bytearray(file.read(int(np.prod(shape)))), np.uint8).reshape(shape), resize)
    labels = _integers(paths["cat"], sizes["cat"], (PAIRS,))
    info = _integers(paths["info"], sizes["info"], (PAIRS, len(FACTORS)))
    factors = {name: np.ascontiguousarray(info[:, column]) for column, name in enumerate(FACTORS)}
    _check_values(paths, labels, factors, split)
    return {"images": images, "labels": labels, **factors}


@contextmanager
def _matrix(path: Path, size: int, magic: int, shape: tuple[int, ...]) -> Iterator[BinaryIO]:
    """Check the header of a matrix file and open it at the first element; `size` is that of the uncompressed file."""
    header = len(_header(magic, shape))
    stored = header // 4 - 2
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
