"""affNIST from its official .mat files: MNIST digits under affine transformations, in 40x40.

The release has no official checksums that we know of, so what is checked is the structure: the struct and its fields,
types, 40x40, the number of images, labels 0 to 9 (and the checksums inside .zip and compressed .mat files).
"""

import hashlib
import io
import warnings
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from capsbench.data.cache import cached
from capsbench.data.download import RemoteFile, fetch, md5_of
from capsbench.data.raw import Raw
from capsbench.errors import InputError

MIRRORS = (
    "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/",
    "http://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/",
)
SIDE = 40
TEST_IMAGES = 320_000  # 32 of each of MNIST's test images
BATCHES = 32
BATCH_IMAGES = {"training_batches": 50_000, "validation_batches": 10_000}


def read(folder: Path, split: str, allow_unofficial: bool = False) -> Raw:
    """Return the test images uint8 [320000, 1, 40, 40], labels int64 [320000] and the rotation in degrees.

    Reads test.mat, or test.mat.zip with it inside. allow_unofficial: accept another number of images. Raises
    InputError for missing or wrong files and for the split "train": studies train on MNIST in 40x40.
    """
    if split != "test":
        raise InputError("affNIST is a test set: train on mnist placed in 40x40 and test on affnist")
    path = _find(folder, "test.mat")
    raw = _cached("affnist-test", [path], None if allow_unofficial else TEST_IMAGES)
    if len(raw.images) == TEST_IMAGES:
        return raw
    counts = f"{len(raw.images):,} images, the official file has {TEST_IMAGES:,}"
    line = f"affNIST (unofficial copy): {path.name}: md5 {md5_of(path)}, {counts}"
    return Raw(raw.images, raw.labels, raw.factors, (line,))


def read_training(folder: Path, part: str = "training_batches") -> Raw:
    """Return the 1,600,000 images of training_batches/ (2.6 GB), or the 320,000 of validation_batches/.

    For what the papers do not do, training on affine images. Each folder holds 1.mat to 32.mat, of 50,000 and 10,000.
    """
    paths = [_find(folder / part, f"{number}.mat") for number in range(1, BATCHES + 1)]
    return _cached(f"affnist-{part}", paths, BATCH_IMAGES[part])


def download(folder: Path) -> None:
    """Fetch the test set if it is missing; what is there stays and is checked when it is read."""
    if not ((folder / "test.mat").exists() or (folder / "test.mat.zip").exists()):
        fetch(RemoteFile("test.mat.zip", None, MIRRORS), folder)


def _find(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.zip"):
        if path.exists():
            return path
    if name == "test.mat":
        hint = "'capsbench data fetch affnist' downloads it, or let CAPSBENCH_DATA name the folder that holds affnist/"
        raise InputError(f"{folder / name}.zip is missing: {hint}")
    raise InputError(f"{folder / name} is missing: unzip {MIRRORS[0]}{folder.name}.zip there")


def _cached(name: str, paths: list[Path], images: int | None) -> Raw:
    try:
        sums = [md5_of(path) for path in paths]
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror or error}") from None
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    arrays = cached(name, {"files": sums, "code": code}, lambda: _build(paths, images))
    if images is not None and len(arrays["labels"]) != images * len(paths):  # kept from a read that allowed it
        raise _wrong_count(paths[0], len(arrays["labels"]), images)
    factors = {"rotation": arrays["rotation"]} if "rotation" in arrays else {}
    return Raw(arrays["images"], arrays["labels"], factors)


def _build(paths: list[Path], images: int | None) -> dict[str, np.ndarray]:
    parts: dict[str, list[np.ndarray]] = {}
    for path in paths:
        for name, array in _read_mat(path, images).items():
            parts.setdefault(name, []).append(array)
    joined = {name: _join(arrays) for name, arrays in parts.items() if len(arrays) == len(paths)}
    if _lie_down(joined["images"], joined["labels"]):
        joined["images"] = joined["images"].transpose(0, 2, 1)
    joined["images"] = joined["images"][:, np.newaxis]
    return joined


def _join(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _read_mat(path: Path, images: int | None) -> dict[str, np.ndarray]:
    """Return images uint8 [N, 40, 40] as they are laid out, labels int64 [N] and, where it is given, rotation [N]."""
    struct = _load(path)
    pixels, labels = (_field(path, struct, name) for name in ("image", "label_int"))
    if pixels.dtype != np.uint8:
        raise InputError(f"{path}: the images are {pixels.dtype}, expected uint8")
    if pixels.ndim != 2 or pixels.shape[0] != SIDE * SIDE:
        raise InputError(f"{path}: images of shape {list(pixels.shape)}, expected [{SIDE * SIDE}, N]: 40x40 in columns")
    count = pixels.shape[1]
    if images is not None and count != images:
        raise _wrong_count(path, count, images)
    if labels.size != count:
        raise InputError(f"{path}: {count:,} images but {labels.size:,} labels")
    if labels.dtype.kind not in "iuf" or not np.isin(labels, np.arange(10)).all():
        raise InputError(f"{path}: the labels are not all digits from 0 to 9")
    found = {"images": pixels.T.reshape(count, SIDE, SIDE), "labels": labels.ravel().astype(np.int64)}
    transform = struct.get("human_readable_transform")  # six rows; only the first is known for sure
    if transform is not None and transform.ndim == 2 and transform.shape[1] == count and transform.dtype.kind in "iuf":
        found["rotation"] = transform[0].astype(np.float64)
    return found


def _load(path: Path) -> dict[str, np.ndarray]:
    """Return the fields of the struct affNISTdata of a .mat file or of the one inside a .zip."""
    import scipy.io

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content: IO[bytes] | str = io.BytesIO(_unzipped(path)) if path.suffix == ".zip" else str(path)
            found = scipy.io.loadmat(content, variable_names=["affNISTdata"])
    except Exception as error:  # scipy has a dozen kinds for a damaged file
        what = "zip" if path.suffix == ".zip" else "mat"
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: damaged {what} file ({reason}); delete it and fetch it again") from None
    struct = found.get("affNISTdata")
    if struct is None or struct.dtype.names is None or struct.size != 1:
        raise InputError(f"{path}: has no struct affNISTdata: not a file of affNIST")
    record = struct.ravel()[0]
    return {name: np.asarray(record[name]) for name in struct.dtype.names}


def _unzipped(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(path.stem)


def _field(path: Path, struct: dict[str, np.ndarray], name: str) -> np.ndarray:
    if name not in struct:
        raise InputError(f"{path}: affNISTdata has no field '{name}', but {', '.join(struct)}")
    return struct[name]


def _lie_down(images: np.ndarray, labels: np.ndarray) -> bool:
    """Return whether the ones lie: the columns of 1,600 are not said to run along rows, and public readers disagree.

    On MNIST a one's squared spread is six times larger in height than in width: turns of 20 degrees do not mislead.
    """
    ones = images[np.flatnonzero(labels == 1)[:2000]].astype(np.float64)

    def spread(weight: np.ndarray) -> float:
        """Return the mean squared distance from each image's centre of mass along the last axis of [N, 40]."""
        place = np.arange(SIDE)
        total = weight.sum(axis=1).clip(min=1)
        centre = (weight * place).sum(axis=1) / total
        return float(((weight * (place - centre[:, np.newaxis]) ** 2).sum(axis=1) / total).sum())

    return spread(ones.sum(axis=1)) > spread(ones.sum(axis=2))


def _wrong_count(path: Path, found: int, expected: int) -> InputError:
    return InputError(
        f"{path}: {found:,} images, the official file has {expected:,}; delete it and fetch it again, or let the "
        "study say 'allow_unofficial: true' to use it all the same, marked in every table"
    )
