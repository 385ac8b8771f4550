import hashlib
import os
import signal
import tracemalloc
import zipfile

import numpy as np
import pytest
import scipy.io

from capsbench.data.readers import affnist
from capsbench.errors import InputError

COUNT = 30


def glyphs() -> np.ndarray:
    """Upright ones with a flag to the left of the top, each a little elsewhere; no symmetry: uint8 [30, 40, 40]."""
    images = np.zeros((COUNT, 40, 40), np.uint8)
    for index, image in enumerate(images):
        column = 10 + index % 20
        image[8:32, column : column + 3] = 200
        image[10:13, column - 4 : column] = 90
    return images


def fields(images=None, labels=None, order="C", **others) -> dict[str, np.ndarray]:
    """What affNISTdata holds, images in columns of 1,600; order: C where these run along rows, F along columns."""
    images = glyphs() if images is None else images
    labels = np.ones(len(images), np.uint8) if labels is None else labels
    return {
        "affine_matrix": np.zeros((9, len(images))),
        "image": np.stack([image.ravel(order=order) for image in images], axis=1),
        "label_one_of_n": np.eye(10, dtype=np.uint8)[labels.ravel().astype(int) % 10].T,
        "label_int": labels.reshape(1, -1),
        "human_readable_transform": np.linspace(-20, 20, 6 * len(images)).reshape(6, -1),
        **others,
    }


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for a test set of 10 ones, 3 times each."""
    monkeypatch.setenv("CAPSBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(affnist, "COPIES", 3)
    monkeypatch.setattr(affnist, "ORIGINALS", (0, 10, *[0] * 8))
    (tmp_path / "affnist").mkdir()
    return tmp_path / "affnist"


@pytest.fixture
def of_all_classes(monkeypatch):
    """The test set has one digit of each class instead."""
    monkeypatch.setattr(affnist, "ORIGINALS", (1,) * 10)


def save(path, content, compressed=True):
    scipy.io.savemat(path, {"affNISTdata": content}, do_compression=compressed)


@pytest.mark.parametrize("order", ["C", "F"])
def test_digits_stand_upright_however_their_columns_run(folder, order):
    save(folder / "test.mat", fields(order=order))
    raw = affnist.read(folder, "test")
    assert raw.images.shape == (COUNT, 1, 40, 40)
    assert raw.images.dtype == np.uint8
    np.testing.assert_array_equal(raw.images[:, 0], glyphs())
    assert raw.labels.tolist() == [1] * COUNT
    assert raw.labels.dtype == np.int64
    assert raw.factors["rotation"][0] == -20
    assert raw.unofficial == ()


def test_without_ones_the_columns_run_along_rows(folder, monkeypatch):
    monkeypatch.setattr(affnist, "ORIGINALS", (*[0] * 7, 10, 0, 0))
    save(folder / "test.mat", fields(labels=np.full(COUNT, 7, np.uint8)))
    np.testing.assert_array_equal(affnist.read(folder, "test").images[:, 0], glyphs())


def test_real_ones_are_found_to_stand_and_to_lie(mnist_root):
    from capsbench.data.readers import mnist

    raw = mnist.read(mnist_root / "mnist", "test")
    padded = np.pad(raw.images[:, 0], ((0, 0), (6, 6), (6, 6)))
    assert not affnist._lie_down(padded, raw.labels)
    assert affnist._lie_down(padded.transpose(0, 2, 1), raw.labels)


def test_the_zip_of_the_site_is_read_as_it_is(folder, tmp_path, of_all_classes):
    save(tmp_path / "test.mat", fields(labels=np.arange(COUNT, dtype=np.uint8) % 10))
    with zipfile.ZipFile(folder / "test.mat.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "test.mat", "test.mat")
    raw = affnist.read(folder, "test")
    assert raw.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] * 3
    assert raw.files == {"test.mat.zip": hashlib.sha256((folder / "test.mat.zip").read_bytes()).hexdigest()}


def test_the_arrays_are_built_once(folder, monkeypatch):
    save(folder / "test.mat", fields())
    affnist.read(folder, "test")
    monkeypatch.setattr(affnist, "_read_mat", None)
    assert affnist.read(folder, "test").images.shape == (COUNT, 1, 40, 40)


def test_transformations_that_are_not_given_are_no_factor(folder):
    content = fields()
    del content["human_readable_transform"]
    save(folder / "test.mat", content)
    assert affnist.read(folder, "test").factors == {}


def test_the_numbers_of_the_official_test_are_mnists(mnist_root):
    from capsbench.data.readers import mnist

    assert tuple(np.bincount(mnist.read(mnist_root / "mnist", "test").labels)) == affnist.ORIGINALS
    assert [affnist.COPIES * count for count in affnist.ORIGINALS] == [
        31360, 36320, 33024, 32320, 31424, 28544, 30656, 32896, 31168, 32288,
    ]  # fmt: skip


def mnist_copies(mnist_root, split, start=0):
    """Labels of 32 copies of 10,000 of MNIST's digits, as the official files have them."""
    from capsbench.data.readers import mnist

    return np.tile(mnist.read(mnist_root / "mnist", split).labels[start : start + 10_000], 32)


@pytest.mark.parametrize("allow_unofficial", [False, True])
@pytest.mark.parametrize("start", [0, 50_000])
def test_the_validation_file_does_not_pass_for_the_test(mnist_root, monkeypatch, tmp_path, start, allow_unofficial):
    """It has 320,000 images too, of 10,000 of MNIST's training digits; as `_load` would give it."""
    monkeypatch.setenv("CAPSBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "test.mat").write_bytes(b"stands for it")
    images = np.zeros((1600, 320_000), np.uint8)
    labels = mnist_copies(mnist_root, "train", start)
    monkeypatch.setattr(affnist, "_load", lambda path: {"image": images, "label_int": labels})
    with pytest.raises(InputError, match=r"seems to be affNIST's validation file; delete it") as caught:
        affnist.read(tmp_path, "test", allow_unofficial)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("cache/affnist*"))  # nothing of it is kept


def test_the_test_files_own_labels_pass(mnist_root):
    affnist._check_labels("test.mat", mnist_copies(mnist_root, "test"))


def test_labels_of_no_digits_copies_are_refused(folder, of_all_classes, monkeypatch):
    labels = np.arange(COUNT, dtype=np.uint8) % 10
    labels[0] = 9
    save(folder / "test.mat", fields(labels=labels))
    with pytest.raises(InputError, match=r"occur 2, 3, 3, 3, 3, 3, 3, 3, 3, 4 times.*does not seem to be of affNIST"):
        affnist.read(folder, "test", allow_unofficial=True)


@pytest.mark.parametrize("allow_unofficial", [False, True])
@pytest.mark.parametrize(("count", "seems"), [(10_000, "one of the 32 parts"), (1_600_000, "training set"), (29, "")])
def test_another_number_of_images_is_refused(folder, count, seems, allow_unofficial):
    with pytest.raises(InputError, match=rf"{count:,} images, affNIST's test has 30.*{seems}.*delete it") as caught:
        affnist._check_labels(folder / "test.mat", np.ones(count, np.int64))
    assert "\n" not in str(caught.value)
    assert ("seems" in str(caught.value)) == bool(seems)
    save(folder / "test.mat", fields(images=glyphs()[:29]))
    with pytest.raises(InputError, match="29 images, affNIST's test has 30"):
        affnist.read(folder, "test", allow_unofficial)


def test_original_id_names_each_digit_as_often(folder):
    save(folder / "test.mat", fields(original_id=np.tile(np.arange(1, 11), 3)[np.newaxis]))
    raw = affnist.read(folder, "test")
    assert raw.unofficial == ()
    assert set(raw.factors) == {"rotation"}
    assert raw.files == {"test.mat": hashlib.sha256((folder / "test.mat").read_bytes()).hexdigest()}


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (np.arange(30), "names 30 digits, each 1 to 1 times"),
        (np.repeat(np.arange(10), [4, 2, *[3] * 8]), "names 10 digits, each 2 to 4 times"),
        (np.repeat(np.arange(5), 6), "names 5 digits, each 6 to 6 times"),
    ],
)
def test_other_originals_must_be_allowed(folder, ids, found):
    save(folder / "test.mat", fields(original_id=ids.astype(np.float64)))
    for _ in range(2):  # also once it is in the cache
        with pytest.raises(InputError, match=rf"{found}; affNIST's test has 10, each 3 times.*allow_unofficial"):
            affnist.read(folder, "test")
        (line,) = affnist.read(folder, "test", allow_unofficial=True).unofficial
        assert line.startswith("affNIST (unofficial copy): test.mat: sha256 ")
        assert found in line


@pytest.mark.parametrize("name", ["test.mat", "test.mat.zip"])
def test_a_fifo_in_a_files_place_is_said_and_not_waited_for(folder, name):
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name}: cannot be read: it is not a regular file"):
        affnist.read(folder, "test")


@pytest.mark.parametrize("name", ["test.mat", "test.mat.zip"])
def test_a_folder_in_a_files_place_is_said(folder, name):
    (folder / name).mkdir()
    with pytest.raises(InputError, match=f"{name}: cannot be read: Is a directory"):
        affnist.read(folder, "test")


@pytest.mark.parametrize("form", ["zip", "compressed mat", "zip of a compressed mat", "plain mat"])
def test_what_unpacks_to_too_much_is_refused_before_it_is_unpacked(folder, tmp_path, monkeypatch, form):
    """20 MB that take 20 kB on the disk (but for the plain file), where 2 MB are allowed."""
    monkeypatch.setattr(affnist, "MOST_BYTES", 2 * 10**6)
    mat = folder / "test.mat" if not form.startswith("zip") else tmp_path / "test.mat"
    save(mat, fields(image=np.zeros((1600, 12_500), np.uint8)), compressed="compressed" in form)
    if form.startswith("zip"):
        with zipfile.ZipFile(folder / "test.mat.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(mat, "test.mat")
    monkeypatch.setattr(affnist, "_load", affnist._load_here)  # in this process, whose memory is looked at
    tracemalloc.start()
    with pytest.raises(InputError, match=r"unpacks to more than 2,000,000 bytes") as caught:
        affnist.read(folder, "test", allow_unofficial=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10**7
    assert "\n" not in str(caught.value)
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize("compressed", [True, False])
def test_the_limit_is_of_what_is_unpacked(folder, tmp_path, monkeypatch, compressed):
    save(tmp_path / "plain.mat", fields(), compressed=False)
    save(folder / "test.mat", fields(), compressed)
    # a file has a header of 128 bytes; the tag of its one part, 8 bytes, is compressed with it
    size = (tmp_path / "plain.mat").stat().st_size - 128 - (0 if compressed else 8)
    monkeypatch.setattr(affnist, "MOST_BYTES", size - 1)
    with pytest.raises(InputError, match="unpacks to more than"):
        affnist.read(folder, "test")
    monkeypatch.setattr(affnist, "MOST_BYTES", size)
    assert affnist.read(folder, "test").images.shape == (COUNT, 1, 40, 40)


def test_a_zip_without_the_file_is_said(folder, tmp_path):
    save(tmp_path / "other.mat", fields())
    with zipfile.ZipFile(folder / "test.mat.zip", "w") as archive:
        archive.write(tmp_path / "other.mat", "other.mat")
    with pytest.raises(InputError, match=r"damaged zip file.*no item named 'test.mat'"):
        affnist.read(folder, "test")


def test_a_missing_file_says_what_to_do(folder):
    with pytest.raises(InputError, match=r"test.mat.zip is missing: 'capsbench data fetch affnist'"):
        affnist.read(folder, "test")


def test_there_is_no_training_on_it(folder):
    with pytest.raises(InputError, match="affNIST is a test set: train on mnist"):
        affnist.read(folder, "train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c[: len(c) // 2], "damaged mat file"),
        (lambda c: c[:50], "damaged mat file"),
        (lambda c: b"", "damaged mat file"),
        (lambda c: b"<html>not found</html>" * 20, "damaged mat file"),
    ],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_damaged_files_are_refused(folder, change, message, compressed):
    path = folder / "test.mat"
    save(path, fields(), compressed)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InputError, match=message) as caught:
        affnist.read(folder, "test", allow_unofficial=True)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_zip_is_refused(folder, tmp_path):
    save(tmp_path / "test.mat", fields())
    with zipfile.ZipFile(folder / "test.mat.zip", "w") as archive:
        archive.write(tmp_path / "test.mat", "test.mat")
    content = (folder / "test.mat.zip").read_bytes()
    (folder / "test.mat.zip").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="damaged zip file"):
        affnist.read(folder, "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((3, 3)), "has no struct affNISTdata"),
        ({"image": glyphs()[0]}, "no field 'label_int', only image"),
        ({"label_int": np.ones(3)}, "no field 'image', only label_int"),
        (fields(image=np.zeros((1600, COUNT))), "images are float64, expected uint8"),
        (fields(images=np.zeros((COUNT, 28, 28), np.uint8)), r"shape \[784, 30\], expected \[1600, N\]"),
        (fields(image=glyphs()), r"shape \[30, 40, 40\], expected"),
        (fields(images=glyphs()[:29]), "29 images, affNIST's test has 30"),
        (fields(original_id=np.ones(29)), "30 images but 29 original_id"),
        (fields(original_id=np.array(["one"] * COUNT)), "30 images but .* original_id"),
        (fields(label_int=np.ones(29, np.uint8)), "30 images but 29 labels"),
        (fields(labels=np.full(COUNT, 10, np.uint8)), "labels are not all digits from 0 to 9"),
        (fields(labels=np.full(COUNT, 0.5)), "labels are not all digits from 0 to 9"),
    ],
)
def test_files_of_another_structure_are_refused(folder, content, message):
    save(folder / "test.mat", content)
    with pytest.raises(InputError, match=message) as caught:
        affnist.read(folder, "test")
    assert "\n" not in str(caught.value)


def test_a_download_asks_for_the_test_set_if_it_is_missing(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(affnist, "fetch", lambda file, folder: asked.append((file.name, folder)))
    affnist.download(folder)
    assert asked == [("test.mat.zip", folder)]
    save(folder / "test.mat", fields())
    affnist.download(folder)
    assert len(asked) == 1


def crash(path):
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_file_on_which_the_reader_crashes_is_refused(tmp_path, monkeypatch):
    """Scipy's does on some damaged files: it takes its process with it, and no other one."""
    monkeypatch.setattr(affnist, "_load_here", crash)
    (tmp_path / "test.mat").write_bytes(b"")
    with pytest.raises(InputError, match=r"test\.mat: damaged mat file, on which its reader crashed"):
        affnist._load(tmp_path / "test.mat")
