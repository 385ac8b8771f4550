import gzip
import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from capsbench.data.readers import smallnorb
from capsbench.data.tasks.stereo import NorbOptions
from capsbench.errors import InputError

PAIRS = 50
COPY = Path(__file__).parents[4] / "shared/data"


def matrix(array: np.ndarray, magic: int) -> bytes:
    sizes = [*array.shape, 1, 1, 1][: max(3, array.ndim)]
    return struct.pack(f"<{2 + len(sizes)}i", magic, array.ndim, *sizes) + array.tobytes()


def contents(split: str) -> dict[str, bytes]:
    """A split in smallNORB's own format: two views of each of the 25 objects."""
    rng = np.random.default_rng(len(split))
    images = rng.integers(0, 256, (PAIRS, 2, 96, 96), dtype=np.uint8)
    category = np.tile(np.arange(5, dtype="<i4"), PAIRS // 5)
    info = np.zeros((PAIRS, 4), "<i4")
    info[:, 0] = np.repeat(smallnorb.INSTANCES[split], PAIRS // 5)
    info[:, 1:] = np.stack([np.arange(PAIRS) % 9, np.arange(PAIRS) % 18 * 2, np.arange(PAIRS) % 6], axis=1)
    return {
        "dat": matrix(images, smallnorb.BYTE_MATRIX),
        "cat": matrix(category, smallnorb.INT_MATRIX),
        "info": matrix(info, smallnorb.INT_MATRIX),
    }


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A small data set, official in that its checksums are the ones expected."""
    monkeypatch.setenv("CAPSBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smallnorb, "PAIRS", PAIRS)
    monkeypatch.setattr(smallnorb, "CHUNK_PAIRS", 7)
    folder = tmp_path / "smallnorb"
    folder.mkdir()
    official = {}
    for split, stem in smallnorb.STEMS.items():
        for part, content in contents(split).items():
            (folder / f"{stem}-{part}.mat.gz").write_bytes(gzip.compress(content, 1))
            official[f"{stem}-{part}.mat"] = (hashlib.md5(content).hexdigest(), "")
    monkeypatch.setattr(smallnorb, "FILES", official)
    return folder


def path_of(files, part, split="train"):
    return files / f"{smallnorb.STEMS[split]}-{part}.mat.gz"


def test_a_split_reads_as_stereo_pairs_with_their_factors(files):
    raw = smallnorb.read(files, "train")
    assert raw.images.shape == (PAIRS, 2, 48, 48)
    assert raw.images.dtype == np.uint8
    assert raw.labels.tolist() == [0, 1, 2, 3, 4] * 10
    assert raw.labels.dtype == np.int64
    assert list(raw.factors) == ["instance", "elevation", "azimuth", "lighting"]
    assert {values.dtype for values in raw.factors.values()} == {np.dtype(np.int64)}
    assert raw.factors["instance"][::10].tolist() == [4, 6, 7, 8, 9]
    assert raw.factors["azimuth"][:3].tolist() == [0, 2, 4]
    assert raw.unofficial == ()


def whole(split="train") -> np.ndarray:
    return np.frombuffer(contents(split)["dat"], np.uint8, offset=24).reshape(PAIRS, 2, 96, 96)


def test_by_default_a_pixel_is_every_second_one(files):
    raw = smallnorb.read(files, "train")
    np.testing.assert_array_equal(raw.images, whole()[:, :, ::2, ::2])
    given = smallnorb.read(files, "train", options=NorbOptions(resize="every_second"))
    np.testing.assert_array_equal(given.images, raw.images)


def test_a_mean_is_that_of_a_block_rounded_half_up(files):
    blocks = np.array([[0, 0, 0, 1, 255, 255], [0, 1, 0, 1, 255, 255]], np.uint8)  # means 0.25, 0.5, 255
    assert smallnorb.reduced(blocks[None], "mean").tolist() == [[[0, 1, 255]]]
    expected = np.floor(whole().reshape(PAIRS, 2, 48, 2, 48, 2).mean(axis=(3, 5)) + 0.5)
    found = smallnorb.read(files, "train", options=NorbOptions(resize="mean"))
    np.testing.assert_array_equal(found.images, expected)


def test_64_pixels_join_neighbours_by_three_to_one(files):
    """TF2's bilinear resize: pixel d of 64 lies at 1.5 d + 0.25 of 96, between two pixels, the nearer counts 3/4."""
    weights = np.zeros((64, 96))
    for d in range(64):
        left = int(1.5 * d + 0.25)
        weights[d, left], weights[d, left + 1] = (0.75, 0.25) if d % 2 == 0 else (0.25, 0.75)
    expected = np.floor(weights @ whole().astype(float) @ weights.T + 0.5)
    found = smallnorb.read(files, "train", options=NorbOptions(resize="bilinear_64", crop=48))
    assert found.images.shape == (PAIRS, 2, 64, 64)
    assert found.images.dtype == np.uint8
    np.testing.assert_array_equal(found.images, expected)


def test_gzip_and_plain_files_read_alike(files):
    packed = smallnorb.read(files, "test")
    for path in files.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    plain = smallnorb.read(files, "test")
    np.testing.assert_array_equal(packed.images, plain.images)
    assert plain.factors["instance"][::10].tolist() == [0, 1, 2, 3, 5]


def test_the_arrays_are_built_once_but_the_files_checked_each_time(files, monkeypatch):
    first = smallnorb.read(files, "train")
    smallnorb.read(files, "train", options=NorbOptions(resize="mean"))
    monkeypatch.setattr(smallnorb, "reduced", None)
    np.testing.assert_array_equal(smallnorb.read(files, "train").images, first.images)
    mean = smallnorb.read(files, "train", options=NorbOptions(resize="mean")).images
    assert (mean != first.images).mean() > 0.9  # each resize has arrays of its own
    path_of(files, "dat").write_bytes(b"not what it was")
    with pytest.raises(InputError, match="damaged gzip file"):
        smallnorb.read(files, "train")


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("dat", lambda c: gzip.compress(c, 1)[:-200], "damaged gzip file"),
        ("info", lambda c: b"<html>not found</html>", "damaged gzip file"),
        ("dat", lambda c: gzip.compress(c[:-2] + b"\x00\x01", 1), "expected .* not the official file"),
        ("info", lambda c: gzip.compress(c + bytes(10**7), 1), "more than 820 bytes when uncompressed"),
        ("cat", lambda c: gzip.compress(c[:-4] + c[:4]), "md5 of the uncompressed bytes is"),
    ],
)
def test_files_with_other_bytes_are_refused(files, part, change, message):
    path = path_of(files, part)
    path.write_bytes(change(gzip.decompress(path.read_bytes())))
    with pytest.raises(InputError, match=message) as caught:
        smallnorb.read(files, "train")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_what_to_do(files):
    path_of(files, "info").unlink()
    with pytest.raises(InputError, match=r"training-info.mat.gz is missing: 'capsbench data fetch smallnorb'"):
        smallnorb.read(files, "train")


def ints(values) -> bytes:
    return matrix(np.array(values, "<i4"), smallnorb.INT_MATRIX)


CATEGORIES = [0, 1, 2, 3, 4] * 10
VIEWS = [[instance, 0, 0, 0] for instance in (4, 6, 7, 8, 9) for _ in range(10)]


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("dat", ints([1, 2]), "magic number 0x1e3d4c54, expected 0x1e3d4c55"),
        ("cat", contents("train")["dat"][:220], "magic number 0x1e3d4c55, expected 0x1e3d4c54"),
        ("dat", matrix(np.zeros((PAIRS, 96, 96), np.uint8), smallnorb.BYTE_MATRIX), "says 3 dimensions.*expected 4"),
        ("dat", matrix(np.zeros((9, 2, 96, 96), np.uint8), smallnorb.BYTE_MATRIX), r"\[9, 2, 96, 96\]; expected"),
        ("info", ints(np.zeros((PAIRS, 3))), r"\[50, 3, 1\]; expected 2, \[50, 4\]"),
        ("dat", contents("train")["dat"][:-3], "promises 921,600 bytes, 921,597 follow"),
        ("cat", contents("train")["cat"] + b"more", "more than 220 bytes"),
        ("cat", b"\x54\x4c", "2 bytes are too short for a header of 20"),
        ("cat", b"", "0 bytes are too short"),
        ("cat", ints([*CATEGORIES[:-1], 0]), "categories 0: 11, .* 4: 9; expected 0 to 4 with 10 pairs each"),
        ("cat", ints([*CATEGORIES[:-1], 5]), "categories .*5: 1; expected 0 to 4"),
        ("info", ints([[0, *view[1:]] for view in VIEWS]), r"instances \[0\]; those of train are \[4, 6, 7, 8, 9\]"),
        ("info", ints([[view[0], 9, 0, 0] for view in VIEWS]), "elevation 9; expected 0 to 8"),
        ("info", ints([[view[0], 0, 35, 0] for view in VIEWS]), "azimuth 35; expected 0 to 34"),
        ("info", ints([[view[0], 0, 0, -2] for view in VIEWS]), "lighting -2; expected 0 to 5, -1 for unknown"),
    ],
)
def test_unofficial_files_must_still_be_smallnorb(files, part, content, message):
    path_of(files, part).write_bytes(gzip.compress(content, 1))
    with pytest.raises(InputError, match=message) as caught:
        smallnorb.read(files, "train", allow_unofficial=True)
    assert "\n" not in str(caught.value)


def test_a_copy_is_read_where_allowed_and_says_which_it_is(files, monkeypatch):
    unknown = ints([[view[0], -1, -1, -1] for view in VIEWS])
    path_of(files, "info").write_bytes(gzip.compress(unknown))
    raw = smallnorb.read(files, "train", allow_unofficial=True)
    assert set(raw.factors["azimuth"]) == {-1}
    (line,) = raw.unofficial
    assert line.startswith("smallNORB (unofficial copy): smallnorb-5x46789x9x18x6x2x96x96-training-info.mat")
    name = f"{smallnorb.STEMS['train']}-info.mat"
    monkeypatch.setitem(smallnorb.KNOWN_COPIES, hashlib.md5(unknown).hexdigest(), ("JPEG-75 copy", name))
    (line,) = smallnorb.read(files, "train", allow_unofficial=True).unofficial
    assert line.startswith("smallNORB (JPEG-75 copy): ")


@pytest.mark.parametrize("part", ["dat", "info"])
def test_another_file_of_smallnorb_is_refused_even_where_copies_are_allowed(files, part, monkeypatch):
    for split in ("train", "test"):
        content = path_of(files, part, "train" if split == "test" else "test").read_bytes()
        (files / f"swapped-{split}").write_bytes(content)
    for split in ("train", "test"):
        (files / f"swapped-{split}").rename(path_of(files, part, split))
    message = f"content of {smallnorb.STEMS['test']}-{part}.mat, in the place of {smallnorb.STEMS['train']}-{part}.mat"
    with pytest.raises(InputError, match=message):
        smallnorb.read(files, "train", allow_unofficial=True)
    # the files of a known copy, swapped: that the copy is known is enough
    md5 = smallnorb.FILES[f"{smallnorb.STEMS['test']}-{part}.mat"][0]
    monkeypatch.setitem(smallnorb.FILES, f"{smallnorb.STEMS['test']}-{part}.mat", ("0" * 32, ""))
    monkeypatch.setitem(smallnorb.KNOWN_COPIES, md5, ("JPEG-75 copy", f"{smallnorb.STEMS['test']}-{part}.mat"))
    with pytest.raises(InputError, match=message):
        smallnorb.read(files, "train", allow_unofficial=True)


def test_a_pipe_is_refused_and_not_waited_for(files):
    path_of(files, "info").unlink()
    os.mkfifo(path_of(files, "info"))
    with pytest.raises(InputError, match="not a regular file"):
        smallnorb.read(files, "train")


def test_a_download_asks_for_what_is_missing(files, monkeypatch):
    asked = []
    monkeypatch.setattr(smallnorb, "fetch", lambda file, folder: asked.append((file, folder)))
    path_of(files, "cat").unlink()
    smallnorb.download(files)
    ((file, folder),) = asked
    assert (file.name, folder) == (path_of(files, "cat").name, files)
    assert len(file.mirrors) > 1


@pytest.fixture(scope="session")
def jpeg_copy(tmp_path_factory):
    script = COPY / "unpack_smallnorb.py"
    if not (script.exists() and (COPY / "smallnorb/smallnorb-jpeg75.zip").exists()):
        pytest.skip("the developers' JPEG copy of smallNORB is not in ../shared/data")
    folder = tmp_path_factory.mktemp("smallnorb")
    subprocess.run([sys.executable, script, folder], check=True, stdout=subprocess.DEVNULL, timeout=300)
    yield folder
    for path in folder.iterdir():  # 0.9 GB
        path.unlink()


@pytest.mark.slow
def test_the_jpeg_copy_is_smallnorb_and_says_that_it_is_a_copy(jpeg_copy, tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSBENCH_CACHE", str(tmp_path))
    objects = {}
    for split in ("train", "test"):
        with pytest.raises(InputError, match="not the official file"):
            smallnorb.read(jpeg_copy, split)
        raw = smallnorb.read(jpeg_copy, split, allow_unofficial=True)
        assert raw.images.shape == (24_300, 2, 48, 48)
        assert np.bincount(raw.labels).tolist() == [4860] * 5
        assert len(raw.unofficial) == 2  # the categories are the official file
        assert all(line.startswith("smallNORB (JPEG-75 copy): ") for line in raw.unofficial)
        objects[split] = set(zip(raw.labels.tolist(), raw.factors["instance"].tolist(), strict=True))
        assert raw.images.std() > 20
        if split == "train":
            for camera, (mean, std) in enumerate(zip(NorbOptions.camera_means, NorbOptions.camera_stds, strict=True)):
                pixels = raw.images[:, camera] / np.float32(255)
                assert pixels.mean(dtype=np.float64) == pytest.approx(mean, abs=2e-4)
                assert pixels.std(dtype=np.float64) == pytest.approx(std, abs=2e-4)
    assert len(objects["train"]) == len(objects["test"]) == 25
    assert not objects["train"] & objects["test"]
