import gzip
import hashlib
import os
import struct

import numpy as np
import pytest
from torchvision.datasets import FashionMNIST

from capsbench.data.readers import fashion_mnist
from capsbench.errors import InputError

COUNTS = {"train": 30, "t10k": 20}


def contents(prefix):
    """The two files of a split, uncompressed."""
    count = COUNTS[prefix]
    pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    labels = (np.arange(count) % 10).astype(np.uint8)
    return {
        f"{prefix}-images-idx3-ubyte": struct.pack(">4i", 2051, count, 28, 28) + pixels.tobytes(),
        f"{prefix}-labels-idx1-ubyte": struct.pack(">2i", 2049, count) + labels.tobytes(),
    }


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A small data set in the official format, official in that its checksums are the ones torchvision expects."""
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    resources = []
    for name, content in {**contents("train"), **contents("t10k")}.items():
        packed = gzip.compress(content)
        (folder / f"{name}.gz").write_bytes(packed)
        resources.append((f"{name}.gz", hashlib.md5(packed).hexdigest()))
    monkeypatch.setattr(FashionMNIST, "resources", resources)
    return folder


def test_both_splits_read_with_their_checksums(files):
    for split, prefix in (("train", "train"), ("test", "t10k")):
        found = fashion_mnist.read(files, split)
        (images, image_bytes), (labels, label_bytes) = contents(prefix).items()
        assert found.images.shape == (COUNTS[prefix], 1, 28, 28)
        assert (found.images.dtype, found.labels.dtype) == (np.uint8, np.int64)
        assert found.images.flags.writeable
        assert found.images.tobytes() == image_bytes[16:]
        assert found.labels.tolist() == list(label_bytes[8:])
        assert (found.unofficial, found.factors) == ((), {})
        assert found.files == {
            images: hashlib.sha256(image_bytes).hexdigest(),
            labels: hashlib.sha256(label_bytes).hexdigest(),
        }


def test_a_missing_file_says_what_to_do(files):
    (files / "t10k-labels-idx1-ubyte.gz").unlink()
    fashion_mnist.read(files, "train")
    with pytest.raises(InputError, match=r"t10k-labels.* is missing: 'capsbench data fetch fashion-mnist'"):
        fashion_mnist.read(files, "test")


def fifo(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("allow_unofficial", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "md5 .*, expected .*damaged or not the official"),
        (lambda path: path.write_bytes(gzip.compress(b"other")), "md5 .*, expected .*damaged or not the official"),
        (lambda path: path.with_name("train-images-idx3-ubyte.gz").replace(path), "damaged or not the official"),
        (fifo, "not a regular file"),
    ],
    ids=["cut", "other", "the other split", "a FIFO"],
)
def test_other_bytes_are_refused_in_one_line(files, change, message, allow_unofficial):
    path = files / "t10k-images-idx3-ubyte.gz"
    change(path)
    with pytest.raises(InputError, match=message) as caught:
        fashion_mnist.read(files, "test", allow_unofficial)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_download_asks_for_what_is_missing_by_https_first(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(fashion_mnist, "fetch", lambda file, folder: asked.append(file))
    (tmp_path / "train-labels-idx1-ubyte.gz").touch()
    fashion_mnist.download(tmp_path)
    assert {file.name: file.md5 for file in asked} == {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    }
    assert all(file.mirrors[0].startswith("https://") for file in asked)
