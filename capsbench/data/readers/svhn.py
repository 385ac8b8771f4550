"""SVHN, cropped digits of house numbers, from its official .mat files, read and checked by torchvision."""

from pathlib import Path

import numpy as np

from capsbench.data.readers.download import RemoteFile, fetch, sha256_of
from capsbench.data.readers.raw import Raw, SourceSplit
from capsbench.errors import InputError
from capsbench.study import DataOptions


def read(folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: DataOptions | None = None) -> Raw:
    """Return images uint8 [N, 3, 32, 32] and labels int64 [N], 0 to 9; N is 73,257 (train) or 26,032 (test).

    Reads train_32x32.mat or test_32x32.mat; extra_32x32.mat, 531,131 easier digits, is never used. torchvision compares
    the md5 of the file with the official one; `allow_unofficial` changes nothing here.

    Raises:
        InputError: the file is missing, damaged or not the official one.
    """
    from torchvision.datasets import SVHN

    path = folder / SVHN.split_list[split][1]
    if not path.exists():
        raise InputError(
            f"{path} is missing: 'capsbench data fetch svhn' downloads it, "
            "or set CAPSBENCH_DATA to the folder that holds svhn/"
        )
    try:
        found = SVHN(str(folder), split=split)
        files = {path.name: sha256_of(path)}
    except RuntimeError:
        md5 = SVHN.split_list[split][2]
        raise InputError(
            f"{path}: damaged or not the official file (expected md5 {md5}); delete it and run "
            "'capsbench data fetch svhn'"
        ) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    return Raw(np.ascontiguousarray(found.data), found.labels.astype(np.int64), files=files)


def download(folder: Path) -> None:
    """Fetch the files of both splits that are missing. What is there is checked when it is read."""
    from torchvision.datasets import SVHN

    for split in ("train", "test"):
        address, name, md5 = SVHN.split_list[split]
        if not (folder / name).exists():
            fetch(RemoteFile(name, md5, (address.removesuffix(name),)), folder)
