import hashlib
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from torchvision.datasets import CIFAR10

from capsbench.data.readers import cifar10
from capsbench.errors import InputError

COUNT = 20
TRAIN, TEST = [f"data_batch_{number}" for number in range(1, 6)], ["test_batch"]


def batch(seed: int) -> dict:
    pixels = np.random.default_rng(seed).integers(0, 256, (COUNT, 3072), dtype=np.uint8)
    return {"data": pixels, "labels": [(seed + index) % 10 for index in range(COUNT)], "batch_label": f"batch {seed}"}


def pickled(content) -> bytes:
    """Pickle as the official files are: protocol 2, with the names that numpy's parts had then."""
    return pickle.dumps(content, protocol=2).replace(b"numpy._core", b"numpy.core")


def md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A small data set in CIFAR-10's own format, official in that its checksums are the ones torchvision expects."""
    folder = tmp_path / "cifar10"
    batches = folder / "cifar-10-batches-py"
    batches.mkdir(parents=True)
    for seed, name in enumerate(TRAIN + TEST):
        (batches / name).write_bytes(pickled(batch(seed)))
    (batches / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}, protocol=2))
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5(batches / name)] for name in TRAIN])
    monkeypatch.setattr(CIFAR10, "test_list", [[name, md5(batches / name)] for name in TEST])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(batches / "batches.meta")})
    return folder


def test_both_splits_read_as_channels_rows_columns(files):
    train, test = cifar10.read(files, "train"), cifar10.read(files, "test")
    assert train.images.shape == (5 * COUNT, 3, 32, 32)
    assert test.images.shape == (COUNT, 3, 32, 32)
    assert train.images.dtype == np.uint8
    assert train.images.flags.c_contiguous
    assert train.labels.dtype == np.int64
    assert train.labels[: 2 * COUNT].tolist() == batch(0)["labels"] + batch(1)["labels"]
    np.testing.assert_array_equal(test.images, batch(5)["data"].reshape(COUNT, 3, 32, 32))
    assert (train.unofficial, train.factors) == ((), {})
    batches = files / "cifar-10-batches-py"
    assert test.files == {"test_batch": hashlib.sha256((batches / "test_batch").read_bytes()).hexdigest()}
    assert list(train.files) == TRAIN


def pack(files):
    """Leave the archive alone in the folder."""
    with tarfile.open(files / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.add(files / "cifar-10-batches-py", "cifar-10-batches-py")
    for path in (files / "cifar-10-batches-py").iterdir():
        path.unlink()
    (files / "cifar-10-batches-py").rmdir()
    return files / "cifar-10-python.tar.gz"


def test_the_archive_alone_is_enough(files):
    before = cifar10.read(files, "train")
    pack(files)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: cifar10.read(files, "train"), range(2))
    np.testing.assert_array_equal(first.images, before.images)
    np.testing.assert_array_equal(second.labels, before.labels)
    assert not list(files.glob(".*.part"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c[: len(c) // 2], "damaged archive"),
        (lambda c: b"<html>not found</html>", "damaged archive"),
        (lambda c: b"", "damaged archive"),
    ],
)
def test_a_damaged_archive_leaves_no_batches(files, change, message):
    archive = pack(files)
    archive.write_bytes(change(archive.read_bytes()))
    with pytest.raises(InputError, match=message) as caught:
        cifar10.read(files, "test")
    assert "\n" not in str(caught.value)
    assert {path.name for path in files.iterdir() if path.suffix != ".lock"} == {archive.name}


def test_an_archive_of_something_else_is_refused(files):
    archive = pack(files)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(__file__, "a/file")
    with pytest.raises(InputError, match="has no folder cifar-10-batches-py"):
        cifar10.read(files, "test")


def test_a_missing_file_says_what_to_do(files, tmp_path):
    with pytest.raises(InputError, match=r"cifar-10-python.tar.gz is missing: 'capsbench data fetch cifar10'"):
        cifar10.read(tmp_path / "nowhere", "train")
    (files / "cifar-10-batches-py/data_batch_3").unlink()
    with pytest.raises(InputError, match=r"data_batch_3 is missing: delete .* 'capsbench data fetch cifar10'"):
        cifar10.read(files, "train")


class Evil:
    def __reduce__(self):
        return print, ("code of a pickle ran",)


@pytest.mark.parametrize("allow_unofficial", [False, True])
@pytest.mark.parametrize("content", [b"torn", pickled(batch(77)), pickle.dumps(Evil())], ids=["torn", "other", "evil"])
@pytest.mark.parametrize("name", ["test_batch", "batches.meta"])
def test_other_bytes_are_refused_in_one_line_and_never_unpickled(files, capsys, name, content, allow_unofficial):
    (files / "cifar-10-batches-py" / name).write_bytes(content)
    with pytest.raises(InputError, match=r"not found or corrupted; delete it and run") as caught:
        cifar10.read(files, "test", allow_unofficial)
    assert str(files / "cifar-10-batches-py") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "ran" not in capsys.readouterr().out


def test_a_download_asks_for_the_archive_if_nothing_is_there(files, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(cifar10, "fetch", lambda file, folder: asked.append(file))
    cifar10.download(files)
    assert not asked
    cifar10.download(tmp_path / "elsewhere")
    (file,) = asked
    assert (file.name, file.md5) == ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a")
    assert file.mirrors[0] == "https://www.cs.toronto.edu/~kriz/"
