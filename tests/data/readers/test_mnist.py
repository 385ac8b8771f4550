import gzip
import hashlib
import os
import shutil
import struct
import tracemalloc

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
    monkeypatch.setattr(mnist, "ITEMS", {"train": 20, "t10k": 10})
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
        (IMAGES, lambda c: gzip.compress(c[:-1] + bytes([c[-1] ^ 1])), "expected .* not the official file"),
        (IMAGES, lambda c: gzip.compress(c + b"\x00"), "more than 15,696 bytes"),
        (LABELS, lambda c: gzip.compress(c + b"\x00"), "expected .* not the official file"),
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
        (LABELS, idx(np.zeros(19, np.uint8), 2049), "has 19 items, MNIST's file of this name has 20"),
        (IMAGES, idx(np.zeros((0, 28, 28), np.uint8), 2051), "has 0 items"),
        (IMAGES, idx(np.zeros((10, 28, 28), np.uint8), 2051), "has 10 items"),
        (LABELS, struct.pack(">2i", 2049, -1), "negative size in .-1"),
        (IMAGES, struct.pack(">4i", 2051, -20, -28, 28) + bytes(20 * 784), "negative size in .-20, -28, 28"),
        (IMAGES, struct.pack(">4i", 2051, 2**31 - 1, 2**31 - 1, 4), "promises 18,446,744,056,529,682,436 bytes, 0"),
    ],
)
def test_unofficial_files_must_still_be_idx_files(files, name, content, message):
    replace(files, name, gzip.compress(content))
    with pytest.raises(InputError, match=message) as caught:
        mnist.read(files, "train", allow_unofficial=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("allow_unofficial", [False, True])
@pytest.mark.parametrize(
    ("there", "taken_from"),
    [
        ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte"),
        ("train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte"),
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("t10k-images-idx3-ubyte", "train-images-idx3-ubyte"),
        ("t10k-labels-idx1-ubyte", "train-labels-idx1-ubyte"),
    ],
)
def test_another_official_file_is_never_taken(files, there, taken_from, allow_unofficial):
    shutil.copy(files / f"{taken_from}.gz", files / f"{there}.gz")
    with pytest.raises(
        InputError, match=rf"{there}.gz: this is {taken_from}, which belongs in another place"
    ) as caught:
        mnist.read(files, "train" if there.startswith("train") else "test", allow_unofficial)
    assert "\n" not in str(caught.value)


def test_real_training_files_do_not_pass_for_the_test(mnist_root, tmp_path):
    for part in ("images-idx3", "labels-idx1"):
        for here, there in (("train", "t10k"), ("t10k", "train")):
            (tmp_path / f"{here}-{part}-ubyte.gz").symlink_to(mnist_root / f"mnist/{there}-{part}-ubyte.gz")
    for split, other in (("train", "t10k"), ("test", "train")):
        with pytest.raises(InputError, match=f"this is {other}-images-idx3-ubyte"):
            mnist.read(tmp_path, split, allow_unofficial=True)


@pytest.mark.parametrize("packed", [True, False])
def test_no_more_is_read_than_the_largest_file_of_mnist_has(files, packed):
    """A file of 100 MB, 0.1 MB of it on the disk if it is packed; the largest of the files has 15,696 bytes here."""
    content = gzip.compress(bytes(10**8)) if packed else bytes(10**8)
    (files / f"{LABELS}.gz").unlink()
    (files / (f"{LABELS}.gz" if packed else LABELS)).write_bytes(content)
    del content
    tracemalloc.start()
    with pytest.raises(InputError, match=r"more than 15,696 bytes.*delete it") as caught:
        mnist.read(files, "train", allow_unofficial=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10**7
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [LABELS, f"{LABELS}.gz"])
def test_a_fifo_in_a_files_place_is_said_and_not_waited_for(files, name):
    (files / f"{LABELS}.gz").unlink()
    os.mkfifo(files / name)
    with pytest.raises(InputError, match=f"{name}: cannot be read: it is not a regular file"):
        mnist.read(files, "train", allow_unofficial=True)


def test_the_sha256_of_the_uncompressed_files_is_kept(files):
    raw = mnist.read(files, "train")
    expected = {
        name: hashlib.sha256(gzip.decompress((files / f"{name}.gz").read_bytes())).hexdigest()
        for name in (IMAGES, LABELS)
    }
    assert raw.files == expected
    assert raw.take(np.arange(3)).files == expected
    assert mnist.read(files, "test").files.keys() == {"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}


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
