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
    monkeypatch.setenv("CAPSBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(affnist, "TEST_IMAGES", COUNT)
    (tmp_path / "affnist").mkdir()
    return tmp_path / "affnist"


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


def test_without_ones_the_columns_run_along_rows(folder):
    save(folder / "test.mat", fields(labels=np.full(COUNT, 7, np.uint8)))
    np.testing.assert_array_equal(affnist.read(folder, "test").images[:, 0], glyphs())


def test_real_ones_are_found_to_stand_and_to_lie(mnist_root):
    from capsbench.data.readers import mnist

    raw = mnist.read(mnist_root / "mnist", "test")
    padded = np.pad(raw.images[:, 0], ((0, 0), (6, 6), (6, 6)))
    assert not affnist._lie_down(padded, raw.labels)
    assert affnist._lie_down(padded.transpose(0, 2, 1), raw.labels)


def test_the_zip_of_the_site_is_read_as_it_is(folder, tmp_path):
    save(tmp_path / "test.mat", fields(labels=np.arange(COUNT, dtype=np.uint8) % 10))
    with zipfile.ZipFile(folder / "test.mat.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "test.mat", "test.mat")
    raw = affnist.read(folder, "test")
    assert raw.labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] * 3


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


def test_another_number_of_images_must_be_allowed(folder, monkeypatch):
    save(folder / "test.mat", fields())
    monkeypatch.setattr(affnist, "TEST_IMAGES", 320_000)
    for _ in range(2):  # also once it is in the cache
        with pytest.raises(InputError, match=r"30 images, the official file has 320,000.*allow_unofficial"):
            affnist.read(folder, "test")
        (line,) = affnist.read(folder, "test", allow_unofficial=True).unofficial
        assert line.startswith("affNIST (unofficial copy): test.mat: md5 ")
        assert line.endswith(", 30 images, the official file has 320,000")


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
        (fields(images=glyphs()[:29]), "29 images, the official file has 30"),
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
