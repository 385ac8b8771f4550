"""affNIST from its official .mat file: MNIST's test digits under affine transformations, in 40x40.

The release has no official checksums that we know of, so the structure is checked instead: the struct and its fields,
types, 40x40, the number of images, labels 0 to 9 (and the checksums inside .zip and compressed .mat files).
"""

import io
import warnings
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from capsbench.data.readers.cache import cached
from capsbench.data.readers.download import RemoteFile, fetch, md5_of
from capsbench.data.readers.raw import Raw, SourceSplit
from capsbench.errors import InputError
from capsbench.study import DataOptions

MIRRORS = (
    "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/",
    "http://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/",
)
FORMAT = 1  # of the prepared arrays; raise it when this file comes to give others
SIDE = 40
TEST_IMAGES = 320_000  # 32 of each of MNIST's test images


def read(folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: DataOptions | None = None) -> Raw:
    """Return the test images uint8 [320000, 1, 40, 40], labels int64 [320000] and the rotation in degrees.

    Args:
        folder: has test.mat, or test.mat.zip with it inside.
        split: "test"; studies train on MNIST placed in 40x40.
        allow_unofficial: accept another number of images.
        options: not used here.

    Raises:
        InputError: the file is missing, damaged or not affNIST, or the split is "train".
    """
    if split != "test":
        raise InputError("affNIST is a test set: train on mnist placed in 40x40 and test on affnist")
    path = _find(folder)
    try:
        md5 = md5_of(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    wanted = None if allow_unofficial else TEST_IMAGES
    arrays = cached("affnist-test", {"md5": md5, "format": FORMAT}, lambda: _build(path, wanted))
    count = len(arrays["labels"])
    if wanted not in (None, count):  # kept in the cache by a read that allowed it
        raise _wrong_count(path, count)
    unofficial = f"affNIST (unofficial copy): {path.name}: md5 {md5}, {_counts(count)}"
    factors = {"rotation": arrays["rotation"]} if "rotation" in arrays else {}
    return Raw(arrays["images"], arrays["labels"], factors, () if count == TEST_IMAGES else (unofficial,))


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


def _build(path: Path, wanted: int | None) -> dict[str, np.ndarray]:
    arrays = _read_mat(path, wanted)
    images = arrays["images"]
    if _lie_down(images, arrays["labels"]):
        images = images.transpose(0, 2, 1)
    return {**arrays, "images": images[:, np.newaxis]}


def _read_mat(path: Path, wanted: int | None) -> dict[str, np.ndarray]:
    """Return images uint8 [N, 40, 40] as they are laid out, labels int64 [N] and rotation [N] if the file has it."""
    struct = _load(path)
    pixels, labels = (_field(path, struct, name) for name in ("image", "label_int"))
    if pixels.dtype != np.uint8:
        raise InputError(f"{path}: the images are {pixels.dtype}, expected uint8")
    if pixels.ndim != 2 or pixels.shape[0] != SIDE * SIDE:
        raise InputError(f"{path}: images of shape {list(pixels.shape)}, expected [{SIDE * SIDE}, N]: 40x40 in columns")
    count = pixels.shape[1]
    if wanted not in (None, count):
        raise _wrong_count(path, count)
    if labels.size != count:
        raise InputError(f"{path}: {count:,} images but {labels.size:,} labels")
    if labels.dtype.kind not in "iuf" or not np.isin(labels, np.arange(10)).all():
        raise InputError(f"{path}: the labels are not all digits from 0 to 9")
    found = {"images": pixels.T.reshape(count, SIDE, SIDE), "labels": labels.ravel().astype(np.int64)}
    transform = struct.get("human_readable_transform")  # six rows, only the first of which is documented
    if transform is not None and transform.ndim == 2 and transform.shape[1] == count and transform.dtype.kind in "iuf":
        found["rotation"] = transform[0].astype(np.float64)
    return found


def _load(path: Path) -> dict[str, np.ndarray]:
    """Return the fields of the struct affNISTdata of a .mat file, or of the one inside a .zip."""
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


def _counts(found: int) -> str:
    return f"{found:,} images, the official file has {TEST_IMAGES:,}"


def _wrong_count(path: Path, found: int) -> InputError:
    return InputError(
        f"{path}: {_counts(found)}; delete it and fetch it again, or write 'allow_unofficial: true' in the study "
        "to use it anyway, marked in every table"
    )
