import hashlib

import numpy as np
import pytest
import scipy.io
from torchvision.datasets import SVHN

from capsbench.data.readers import svhn
from capsbench.errors import InputError

COUNTS = {"train": 30, "test": 12}
NAMES = {"train": "train_32x32.mat", "test": "test_32x32.mat"}
LABELS = {split: np.arange(count) % 10 + 1 for split, count in COUNTS.items()}  # as in the files: 10 is the digit 0


def pixels(split):
    return np.random.default_rng(COUNTS[split]).integers(0, 256, (32, 32, 3, COUNTS[split]), dtype=np.uint8)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A small data set in SVHN's own format, official in that its checksums are the ones torchvision expects."""
    folder = tmp_path / "svhn"
    folder.mkdir()
    table = {}
    for split, name in NAMES.items():
        scipy.io.savemat(folder / name, {"X": pixels(split), "y": LABELS[split][:, None].astype(np.uint8)})
        md5 = hashlib.md5((folder / name).read_bytes()).hexdigest()
        table[split] = [f"http://localhost/housenumbers/{name}", name, md5]
    monkeypatch.setattr(SVHN, "split_list", {**SVHN.split_list, **table})
    return folder


def test_both_splits_read_as_channels_rows_columns_with_ten_as_zero(files):
    for split, count in COUNTS.items():
        found = svhn.read(files, split)
        assert found.images.shape == (count, 3, 32, 32)
        assert (found.images.dtype, found.labels.dtype) == (np.uint8, np.int64)
        assert found.images.flags.c_contiguous
        np.testing.assert_array_equal(found.images[5, 2], pixels(split)[:, :, 2, 5])
        assert found.labels.tolist() == (LABELS[split] % 10).tolist()
        assert (found.unofficial, found.factors) == ((), {})
        assert found.files == {NAMES[split]: hashlib.sha256((files / NAMES[split]).read_bytes()).hexdigest()}


def test_each_split_needs_its_own_file_alone(files):
    (files / NAMES["train"]).unlink()
    svhn.read(files, "test")
    with pytest.raises(InputError, match=r"train_32x32.mat is missing: 'capsbench data fetch svhn'"):
        svhn.read(files, "train")


@pytest.mark.parametrize("allow_unofficial", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / NAMES["test"]).write_bytes((folder / NAMES["test"]).read_bytes()[:-9]),
        lambda folder: (folder / NAMES["test"]).write_text("<html>not found</html>"),
        lambda folder: (folder / NAMES["train"]).replace(folder / NAMES["test"]),
        lambda folder: ((folder / NAMES["test"]).unlink(), (folder / NAMES["test"]).mkdir()),
    ],
    ids=["cut", "html", "the other split", "a folder"],
)
def test_other_bytes_are_refused_in_one_line(files, change, allow_unofficial):
    change(files)
    with pytest.raises(InputError, match=r"test_32x32.mat: damaged or not the official file .*expected md5") as caught:
        svhn.read(files, "test", allow_unofficial)
    assert "\n" not in str(caught.value)


def test_a_download_asks_for_the_missing_files_of_both_splits(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(svhn, "fetch", lambda file, folder: asked.append(file))
    (tmp_path / "train_32x32.mat").touch()
    svhn.download(tmp_path)
    (file,) = asked
    assert (file.name, file.md5) == ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3")
    assert file.mirrors == ("http://ufldl.stanford.edu/housenumbers/",)
    svhn.download(tmp_path / "elsewhere")
    assert [file.name for file in asked[1:]] == list(NAMES.values())
