import gzip
import hashlib
import shutil
import struct

import numpy as np
import pytest

from capsbench.data.readers import mnist
from capsbench.errors import InputError


def idx(array: np.ndarray, magic: int) -> bytes:
    return struct.pack(f">{1 + array.ndim}i", magic, *array.shape) + array.tobytes()


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A small data set in MNIST's own format, official in that its checksums are the ones expected."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    official = {}
    for prefix, count in (("train", 20), ("t10k", 10)):
        images = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        for name, content in (
            (f"{prefix}-images-idx3-ubyte", idx(images, 2051)),
            (f"{prefix}-labels-idx1-ubyte", idx(labels, 2049)),
        ):
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            official[name] = (hashlib.md5(content).hexdigest(), "")
    monkeypatch.setattr(mnist, "FILES", official)
    return folder


def test_gzip_and_plain_files_read_alike(files):
    packed = mnist.read(files, "train")
    for path in files.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    plain = mnist.read(files, "train")
    assert packed.images.shape == (20, 1, 28, 28)
    assert packed.images.dtype == np.uint8
    np.testing.assert_array_equal(packed.images, plain.images)
    assert packed.labels.tolist() == [*range(10), *range(10)]
    assert packed.labels.dtype == np.int64
    assert (packed.unofficial, packed.factors) == ((), {})


def test_train_and_test_are_different_files(files):
    assert len(mnist.read(files, "test").images) == 10
    assert not np.array_equal(mnist.read(files, "test").images[:5], mnist.read(files, "train").images[:5])


def replace(files, name, content):
    (files / f"{name}.gz").write_bytes(content)


LABELS, IMAGES = "train-labels-idx1-ubyte", "train-images-idx3-ubyte"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (IMAGES, lambda c: gzip.compress(c)[:-200], "damaged gzip file"),
        (IMAGES, lambda c: b"<html>not found</html>", "damaged gzip file"),
        (IMAGES, lambda c: gzip.compress(c[:-1] + b"\x00\x01"), "expected .* not the official file"),
        (LABELS, lambda c: gzip.compress(b"\x09" + c[1:]), "md5 of the uncompressed bytes is"),
    ],
)
def test_files_with_other_bytes_are_refused(files, name, change, message):
    content = gzip.decompress((files / f"{name}.gz").read_bytes())
    replace(files, name, change(content))
    with pytest.raises(InputError, match=message) as caught:
        mnist.read(files, "train")
    assert str(files) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (LABELS, idx(np.zeros(20, np.uint8), 2051), "magic number 2051, expected 2049"),
        (LABELS, idx(np.zeros(20, np.uint8), 2049)[:-3], "promises 20 bytes, 17 follow"),
        (LABELS, b"\x00\x00", "too short for an idx header"),
        (LABELS, idx(np.zeros(19, np.uint8), 2049), "20 train images but 19 labels"),
    ],
)
def test_unofficial_files_must_still_be_idx_files(files, name, content, message):
    replace(files, name, gzip.compress(content))
    with pytest.raises(InputError, match=message):
        mnist.read(files, "train", allow_unofficial=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            IMAGES,
            idx(np.zeros((20, 14, 56), np.uint8), 2051),
            "20 images of 14x56, labels up to 9; MNIST has images of",
        ),
        (LABELS, idx(np.full(20, 200, np.uint8), 2049), "20 images of 28x28, labels up to 200; MNIST has images of"),
    ],
)
def test_unofficial_files_must_hold_what_mnist_holds(files, name, content, message):
    replace(files, name, gzip.compress(content))
    with pytest.raises(InputError, match=message):
        mnist.read(files, "train", allow_unofficial=True)


def test_a_folder_in_a_files_place_is_said(tmp_path):
    (tmp_path / f"{IMAGES}.gz").mkdir()
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        mnist.read(tmp_path, "train")


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match="is missing: 'capsbench data fetch mnist'"):
        mnist.read(tmp_path, "train")


def test_another_copy_is_read_where_allowed_and_named(files):
    labels = np.full(20, 7, np.uint8)
    replace(files, LABELS, gzip.compress(idx(labels, 2049)))
    raw = mnist.read(files, "train", allow_unofficial=True)
    assert raw.labels.tolist() == [7] * 20
    (line,) = raw.unofficial
    assert line.startswith(f"{LABELS}.gz: md5 ")


def test_a_download_asks_for_what_is_missing(files, monkeypatch):
    asked = []
    monkeypatch.setattr(mnist, "fetch", lambda file, folder: asked.append((file.name, folder)))
    (files / f"{LABELS}.gz").unlink()
    mnist.download(files)
    assert asked == [(f"{LABELS}.gz", files)]


def test_the_real_files_are_mnist(mnist_root):
    train, test = mnist.read(mnist_root / "mnist", "train"), mnist.read(mnist_root / "mnist", "test")
    assert train.images.shape == (60_000, 1, 28, 28)
    assert test.images.shape == (10_000, 1, 28, 28)
    assert np.bincount(test.labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert abs(train.images.mean() - 33.318421) < 1e-4


def test_a_torn_copy_of_the_real_file_is_refused(mnist_root, tmp_path):
    shutil.copytree(mnist_root / "mnist", tmp_path / "mnist")
    path = tmp_path / "mnist/t10k-labels-idx1-ubyte.gz"
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="damaged gzip file"):
        mnist.read(tmp_path / "mnist", "test")
