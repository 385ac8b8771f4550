"""affNIST from its official .mat file: MNIST's test digits under affine transformations, in 40x40.

The release has no official checksums that we know of, so the content is checked instead: the struct and its fields,
types, 40x40, 32 images of each of MNIST's test digits by their labels and, where it is there, by `original_id` (and the
checksums inside .zip and compressed .mat files). The official validation file has as many images and the same fields;
its digits are MNIST's training digits, which their labels show.
"""

import faulthandler
import io
import struct
import sys
import warnings
import zipfile
import zlib
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import IO

import numpy as np

from capsbench.data.readers.cache import cached
from capsbench.data.readers.download import RemoteFile, fetch, sha256_of
from capsbench.data.readers.raw import Raw, SourceSplit, check_regular
from capsbench.errors import InputError
from capsbench.study import DataOptions

MIRRORS = ("https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/",)
FORMAT = 2  # of the prepared arrays; raise it when this file comes to give others
SIDE = 40
ORIGINALS = (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009)  # MNIST's test digits, by class
COPIES = 32  # images of each of them
# images -> which other file of the release has so many
OTHER_SIZES = {
    10_000: "one of the 32 parts of the test, or the test digits before they were transformed",
    50_000: "one of the 32 parts of the training set, or its digits before they were transformed",
    60_000: "one of the 32 parts of training and validation set, or their digits before they were transformed",
    1_600_000: "the training set",
}
MOST_BYTES = 2 * 10**9  # of an unpacked file: the pixels of the official one are a quarter of it
COMPRESSED = 15  # kind of a part of a .mat file, version 5
CHUNK = 1 << 10  # bytes that are unpacked at a time, to a thousand times as many at most
FETCH_AGAIN = "delete it and fetch it again"


def read(folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: DataOptions | None = None) -> Raw:
    """Return the test images uint8 [320000, 1, 40, 40], labels int64 [320000] and the rotation in degrees.

    Args:
        folder: has test.mat, or test.mat.zip with it inside.
        split: "test"; studies train on MNIST placed in 40x40.
        allow_unofficial: accept a file whose `original_id` does not name each digit 32 times. Another number of images,
            and labels that are not those of MNIST's test digits, are refused all the same.
        options: not used here.

    Raises:
        InputError: the file is missing, damaged or not affNIST's test, or the split is "train".
    """
    if split != "test":
        raise InputError("affNIST is a test set: train on mnist placed in 40x40 and test on affnist")
    path = _find(folder)
    check_regular(path)
    try:
        sha256 = sha256_of(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None

    made_from = {"sha256": sha256, "format": FORMAT}
    arrays = cached("affnist-test", made_from, lambda: _build(path, allow_unofficial))
    odd = _check_originals(path, arrays, allow_unofficial)  # again: another read may have allowed what is in the cache
    unofficial = tuple(f"affNIST (unofficial copy): {path.name}: sha256 {sha256}, {line}" for line in odd)
    factors = {"rotation": arrays["rotation"]} if "rotation" in arrays else {}
    return Raw(arrays["images"], arrays["labels"], factors, unofficial, {path.name: sha256})


def originals(folder: Path) -> np.ndarray | None:
    """Return which digit each test image was made from, int64 [320000] from 0, or None where the file does not say it.

    By `original_id`, which counts MNIST's test digits from 1; without it by the labels, where these come in blocks of
    32 copies or as 32 rounds through the digits. Labels sorted by class fit both, and say nothing.

    Args:
        folder: as for `read`, which checks the file.

    Raises:
        InputError: the file is missing or damaged.
    """
    path = _find(folder)
    made_from = {"sha256": sha256_of(path), "format": FORMAT}
    arrays = cached("affnist-test", made_from, lambda: _build(path, True))
    if "original" in arrays:
        return np.unique(arrays["original"], return_inverse=True)[1].astype(np.int64)
    return originals_by_labels(np.asarray(arrays["labels"]))


def originals_by_labels(labels: np.ndarray) -> np.ndarray | None:
    """Return the digit of each of 32 copies, int64 [N], as far as the order of labels [N] shows it; else None."""
    digits = len(labels) // COPIES
    if (np.diff(labels) >= 0).all():
        return None
    if (labels.reshape(digits, COPIES) == labels[::COPIES, np.newaxis]).all():
        return np.arange(len(labels)) // COPIES
    if (labels.reshape(COPIES, digits) == labels[:digits]).all():
        return np.arange(len(labels)) % digits
    return None


def download(folder: Path) -> None:
    """Fetch the test set if it is missing. A file that is there stays, and is checked when it is read."""
    if not ((folder / "test.mat").exists() or (folder / "test.mat.zip").exists()):
        fetch(RemoteFile("test.mat.zip", None, MIRRORS), folder)


def _find(folder: Path) -> Path:
    for path in (folder / "test.mat", folder / "test.mat.zip"):
        if path.exists():
            return path
    raise InputError(
        f"{folder / 'test.mat.zip'} is missing: 'capsbench data fetch affnist' downloads it, "
        "or set CAPSBENCH_DATA to the folder that holds affnist/"
    )


def _build(path: Path, allow_unofficial: bool) -> dict[str, np.ndarray]:
    arrays = _read_mat(path)
    _check_originals(path, arrays, allow_unofficial)
    images = arrays["images"]
    if _lie_down(images, arrays["labels"]):
        images = images.transpose(0, 2, 1)
    return {**arrays, "images": images[:, np.newaxis]}


def _read_mat(path: Path) -> dict[str, np.ndarray]:
    """Return images uint8 [N, 40, 40] as they are laid out, labels int64 [N], and what the file has of other columns.

    These are `rotation` (float64, degrees) and `original` (int64, which digit an image was made from), [N] each.
    """
    fields = _load(path)
    pixels, labels = (_field(path, fields, name) for name in ("image", "label_int"))
    if pixels.dtype != np.uint8:
        raise InputError(f"{path}: the images are {pixels.dtype}, expected uint8")
    if pixels.ndim != 2 or pixels.shape[0] != SIDE * SIDE:
        raise InputError(f"{path}: images of shape {list(pixels.shape)}, expected [{SIDE * SIDE}, N]: 40x40 in columns")
    count = pixels.shape[1]
    if labels.size != count:
        raise InputError(f"{path}: {count:,} images but {labels.size:,} labels")
    if labels.dtype.kind not in "iuf" or not np.isin(labels, np.arange(10)).all():
        raise InputError(f"{path}: the labels are not all digits from 0 to 9")
    found = {"images": pixels.T.reshape(count, SIDE, SIDE), "labels": labels.ravel().astype(np.int64)}
    _check_labels(path, found["labels"])
    transform = fields.get("human_readable_transform")  # six rows, only the first of which is documented
    if transform is not None and transform.ndim == 2 and transform.shape[1] == count and transform.dtype.kind in "iuf":
        found["rotation"] = transform[0].astype(np.float64)
    original = fields.get("original_id")
    if original is not None:
        if original.size != count or original.dtype.kind not in "iuf":
            raise InputError(f"{path}: {count:,} images but {original.size:,} original_id of {original.dtype}")
        found["original"] = original.ravel().astype(np.int64)
    return found


def _check_labels(path: Path, labels: np.ndarray) -> None:
    """Refuse what is not 32 images of each of MNIST's test digits, and say what it seems to be."""
    wanted = COPIES * sum(ORIGINALS)
    if len(labels) != wanted:
        other = OTHER_SIZES.get(len(labels))
        seems = f": it seems to be {other}" if other else ""
        raise InputError(f"{path}: {len(labels):,} images, affNIST's test has {wanted:,}{seems}; {FETCH_AGAIN}")
    by_class = np.bincount(labels, minlength=10)
    if (by_class != COPIES * np.array(ORIGINALS)).any():
        if (by_class % COPIES == 0).all():
            seems = f"{COPIES} images of each of other digits: it seems to be affNIST's validation file"
        else:
            seems = f"not {COPIES} images of each of any digits: it does not seem to be of affNIST"
        raise InputError(
            f"{path}: the labels 0 to 9 occur {', '.join(map(str, by_class))} times, and {COPIES} times as often as "
            f"among MNIST's test digits in affNIST's test; these are {seems}; {FETCH_AGAIN}"
        )


def _check_originals(path: Path, arrays: dict[str, np.ndarray], allow_unofficial: bool) -> tuple[str, ...]:
    """Return the line that says what is odd about `original_id`, if anything is; refuse it unless that is allowed."""
    if "original" not in arrays:
        return ()
    _, times = np.unique(arrays["original"], return_counts=True)
    if (times == COPIES).all():
        return ()
    found = f"original_id names {len(times):,} digits, each {times.min():,} to {times.max():,} times"
    line = f"{found}; affNIST's test has {sum(ORIGINALS):,}, each {COPIES} times"
    if allow_unofficial:
        return (line,)
    raise InputError(
        f"{path}: {line}; {FETCH_AGAIN}, or write 'allow_unofficial: true' in the study to use it anyway, marked in "
        "every table"
    )


def _load(path: Path) -> dict[str, np.ndarray]:
    """Return the fields of the struct affNISTdata of a .mat file, or of the one inside a .zip.

    In a process of its own, since scipy's reader crashes on some damaged files, and Python with it.
    """
    context = get_context("fork" if sys.platform == "linux" else "spawn")
    try:
        with ProcessPoolExecutor(1, mp_context=context, initializer=faulthandler.disable) as reader:
            return reader.submit(_load_here, path).result()
    except BrokenProcessPool:
        raise InputError(f"{path}: damaged mat file, on which its reader crashed; {FETCH_AGAIN}") from None


def _load_here(path: Path) -> dict[str, np.ndarray]:
    import scipy.io

    try:
        with warnings.catch_warnings(), _opened(path) as content:
            warnings.simplefilter("ignore")
            _check_unpacked_size(path, content)
            found = scipy.io.loadmat(content, variable_names=["affNISTdata"])
    except InputError:
        raise
    except Exception as error:  # scipy has a dozen kinds for a damaged file
        what = "zip" if path.suffix == ".zip" else "mat"
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: damaged {what} file ({reason}); {FETCH_AGAIN}") from None
    found_struct = found.get("affNISTdata")
    if found_struct is None or found_struct.dtype.names is None or found_struct.size != 1:
        raise InputError(f"{path}: has no struct affNISTdata: not a file of affNIST")
    record = found_struct.ravel()[0]
    return {name: np.asarray(record[name]) for name in found_struct.dtype.names}


def _opened(path: Path) -> IO[bytes]:
    """Open a .mat file, or the one inside a .zip, which is read into memory as far as MOST_BYTES."""
    if path.suffix != ".zip":
        return path.open("rb")
    with zipfile.ZipFile(path) as archive, archive.open(path.stem) as packed:
        content = packed.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise _too_large(path)
    return io.BytesIO(content)


def _check_unpacked_size(path: Path, file: IO[bytes]) -> None:
    """Unpack the parts of a .mat file piece by piece and refuse what has more than MOST_BYTES, before scipy keeps it.

    Only version 5 has compressed parts. A file of another version is left to scipy.
    """
    order = {b"IM": "<", b"MI": ">"}.get(file.read(128)[126:])
    total = 0
    while order and len(tag := file.read(8)) == 8:
        kind, left = struct.unpack(f"{order}2I", tag)
        unpacker = zlib.decompressobj()
        while left > 0 and (piece := file.read(min(CHUNK, left))):
            left -= len(piece)
            total += len(unpacker.decompress(piece)) if kind == COMPRESSED else len(piece)
            if total > MOST_BYTES:
                raise _too_large(path)
    file.seek(0)


def _too_large(path: Path) -> InputError:
    return InputError(
        f"{path}: unpacks to more than {MOST_BYTES:,} bytes, which affNIST's test does not; {FETCH_AGAIN}"
    )


def _field(path: Path, struct: dict[str, np.ndarray], name: str) -> np.ndarray:
    if name not in struct:
        raise InputError(f"{path}: affNISTdata has no field '{name}', only {', '.join(struct)}")
    return struct[name]


def _lie_down(images: np.ndarray, labels: np.ndarray) -> bool:
    """Tell whether the ones lie on their side, which shows how the columns of 1,600 pixels are laid out.

    The release does not document whether they run along rows, and public readers disagree. On MNIST a one's squared
    spread is six times larger in height than in width, so that turns of 20 degrees do not mislead.
    """
    ones = images[np.flatnonzero(labels == 1)[:2000]].astype(np.float64)

    def spread(weight: np.ndarray) -> float:
        """Return the mean squared distance from each image's centre of mass along the last axis of [N, 40]."""
        place = np.arange(SIDE)
        total = weight.sum(axis=1).clip(min=1)
        centre = (weight * place).sum(axis=1) / total
        return float(((weight * (place - centre[:, np.newaxis]) ** 2).sum(axis=1) / total).sum())

    return spread(ones.sum(axis=1)) > spread(ones.sum(axis=2))
