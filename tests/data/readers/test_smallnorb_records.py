"""The TFRecord reader against files that are written here, byte by byte, in the format of H18's authors."""

import functools
import hashlib
import struct

import numpy as np
import pytest

from capsbench.data.readers import smallnorb
from capsbench.data.readers.smallnorb_records import crc32c, masked, parse_example, read_pairs
from capsbench.data.tasks.stereo import NorbOptions
from capsbench.errors import InputError

PAIRS = 50


def slow_crc(content: bytes) -> int:
    """CRC-32C bit by bit, then masked, as in TensorFlow's description of the format."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def integers(values: list[int], packed: bool = True) -> bytes:
    if packed:
        return field(3, field(1, b"".join(map(varint, values))))
    return field(3, b"".join(varint(1 << 3) + varint(value) for value in values))


def example(image: np.ndarray, label: int, info: list[int], packed: bool = True, **other: bytes) -> bytes:
    features = {
        "height": integers([96], packed),
        "width": integers([96], packed),
        "depth": integers([2], packed),
        "label": integers([label], packed),
        "meta": integers(info, packed),
        "image_raw": field(1, field(1, image.tobytes())),
        **other,
    }
    entries = b"".join(field(1, field(1, name.encode()) + field(2, value)) for name, value in features.items())
    return field(1, entries)


def framed(record: bytes, checksum: int | None = None) -> bytes:
    """A record between its length and its checksum; the slow sum is used on the short part alone."""
    length = struct.pack("<Q", len(record))
    if checksum is None:
        checksum = int(masked(crc32c(np.frombuffer(record, np.uint8)[None]))[0])
    return length + struct.pack("<I", slow_crc(length)) + record + struct.pack("<I", checksum)


def arrays(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(len(split))
    info = np.zeros((PAIRS, 4), "<i4")
    info[:, 0] = np.repeat(smallnorb.INSTANCES[split], PAIRS // 5)
    info[:, 1:] = np.stack([np.arange(PAIRS) % 9, np.arange(PAIRS) % 18 * 2, np.arange(PAIRS) % 6], axis=1)
    images = rng.integers(0, 256, (PAIRS, 2, 96, 96), dtype=np.uint8)
    return images, np.tile(np.arange(5, dtype="<i4"), PAIRS // 5), info


def matrix(array: np.ndarray, magic: int) -> bytes:
    sizes = [*array.shape, 1, 1, 1][: max(3, array.ndim)]
    return struct.pack(f"<{2 + len(sizes)}i", magic, array.ndim, *sizes) + array.tobytes()


def file_of(contents: list[bytes]) -> bytes:
    """All records of one length framed, their checksums computed together: the loop of crc32c is over the length."""
    rows = np.stack([np.frombuffer(record, np.uint8) for record in contents])
    checksums = masked(crc32c(rows)).tolist()
    return b"".join(framed(record, checksum) for record, checksum in zip(contents, checksums, strict=True))


@functools.cache
def official_file(split: str) -> bytes:
    return file_of(records(split))


def records(split: str) -> list[bytes]:
    return [example(image, int(label), info.tolist()) for image, label, info in zip(*arrays(split), strict=True)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """smallNORB's folder with nothing but the authors' records, which hold the official bytes."""
    monkeypatch.setenv("CAPSBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(smallnorb, "PAIRS", PAIRS)
    monkeypatch.setattr(smallnorb, "CHUNK_PAIRS", 20)
    folder = tmp_path / "smallnorb"
    folder.mkdir()
    official = {}
    for split, stem in smallnorb.STEMS.items():
        (folder / f"{split}duo.tfrecords").write_bytes(official_file(split))
        for part, array in zip(("dat", "cat", "info"), arrays(split), strict=True):
            magic = smallnorb.BYTE_MATRIX if part == "dat" else smallnorb.INT_MATRIX
            official[f"{stem}-{part}.mat"] = (hashlib.md5(matrix(array, magic)).hexdigest(), "")
    monkeypatch.setattr(smallnorb, "FILES", official)
    return folder


def test_the_checksum_is_crc_32c_masked():
    digits = np.frombuffer(b"123456789", np.uint8)[None]
    assert crc32c(digits).tolist() == [0xE3069283]  # the check value of the algorithm's definition
    assert crc32c(np.zeros((1, 32), np.uint8)).tolist() == [0x8A9136AA]  # RFC 3720, B.4
    rows = np.random.default_rng(0).integers(0, 256, (5, 40), dtype=np.uint8)
    assert masked(crc32c(rows)).tolist() == [slow_crc(row.tobytes()) for row in rows]


@pytest.mark.parametrize("packed", [True, False])
def test_an_example_is_parsed_with_its_numbers_packed_or_one_by_one(packed):
    image = np.zeros((2, 96, 96), np.uint8)
    found = parse_example(example(image, 4, [9, 300, -1, 0], packed))
    assert found["label"] == [4]
    assert found["meta"] == [9, 300, -1, 0]
    assert found["image_raw"] == [image.tobytes()]


def test_a_split_reads_with_full_pose_labels_and_is_official_if_its_bytes_are(folder):
    for split in ("train", "test"):
        images, labels, info = arrays(split)
        raw = smallnorb.read(folder, split)
        np.testing.assert_array_equal(raw.images, images[:, :, ::2, ::2])
        assert raw.labels.tolist() == labels.tolist()
        for column, name in enumerate(smallnorb.FACTORS):
            assert raw.factors[name].tolist() == info[:, column].tolist()
            assert raw.factors[name].dtype == np.int64
        assert raw.unofficial == ()


def test_the_records_read_as_the_official_files_do(folder):
    found = smallnorb.read(folder, "train", options=NorbOptions(resize="mean"))
    for part, array in zip(("dat", "cat", "info"), arrays("train"), strict=True):
        magic = smallnorb.BYTE_MATRIX if part == "dat" else smallnorb.INT_MATRIX
        (folder / f"{smallnorb.STEMS['train']}-{part}.mat").write_bytes(matrix(array, magic))
    (folder / "trainduo.tfrecords").write_bytes(b"the official files come first")
    expected = smallnorb.read(folder, "train", options=NorbOptions(resize="mean"))
    np.testing.assert_array_equal(found.images, expected.images)
    assert found.factors.keys() == expected.factors.keys()


def test_other_bytes_are_unofficial_and_say_what_differs(folder):
    changed = records("train")
    changed[0], changed[5] = changed[5], changed[0]  # of one category: only images and poses change places
    (folder / "trainduo.tfrecords").write_bytes(file_of(changed))
    with pytest.raises(InputError, match=r"trainduo.tfrecords \(dat\): .*not the official file") as caught:
        smallnorb.read(folder, "train")
    assert "\n" not in str(caught.value)
    lines = smallnorb.read(folder, "train", allow_unofficial=True).unofficial
    assert len(lines) == 2  # images and poses; the categories are the official ones
    assert all("trainduo.tfrecords" in line and "unofficial copy" in line for line in lines)


def test_records_of_the_other_split_are_refused(folder):
    (folder / "trainduo.tfrecords").write_bytes((folder / "testduo.tfrecords").read_bytes())
    with pytest.raises(InputError, match=r"instances \[0, 1, 2, 3, 5\]; those of train are"):
        smallnorb.read(folder, "train", allow_unofficial=True)


def test_the_name_of_the_authors_reader_is_taken_too(folder):
    (folder / "trainduo.tfrecords").rename(folder / "trainduo-az.tfrecords")
    assert smallnorb.read(folder, "train").images.shape == (PAIRS, 2, 48, 48)


def test_nothing_is_downloaded_for_a_split_whose_records_are_there(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(smallnorb, "fetch", lambda file, folder: asked.append(file.name))
    smallnorb.download(folder)
    assert asked == []
    (folder / "testduo.tfrecords").unlink()
    smallnorb.download(folder)
    assert sorted(asked) == sorted(f"{smallnorb.STEMS['test']}-{part}.mat.gz" for part in ("dat", "cat", "info"))


def test_the_arrays_are_built_once(folder, monkeypatch):
    first = smallnorb.read(folder, "train")
    monkeypatch.setattr(smallnorb, "read_pairs", None)
    np.testing.assert_array_equal(smallnorb.read(folder, "train").images, first.images)


IMAGE = np.zeros((2, 96, 96), np.uint8)
GOOD = example(IMAGE, 0, [4, 0, 0, 0])
FRAMED = framed(GOOD)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (FRAMED[:-5], "record 1: the file ends within it"),
        (b"\x07\x00", "record 1: the file ends within it"),
        (b"<html>not found</html>", "record 1: the checksum of its length is wrong"),
        (framed(GOOD, checksum=7), "record 1: its checksum is wrong"),
        (FRAMED[:5000] + b"\x01" + FRAMED[5001:], "record 1: its checksum is wrong"),
        (framed(bytes(70_000)), "record 1: 70,000 bytes"),
        (framed(b"\x0a\xff"), "record 1: no tf.train.Example"),
        (framed(b"\x0b"), "record 1: no tf.train.Example .*wire type 3"),
        (framed(b"\xff" * 11), "more than ten bytes"),
        (framed(b""), "height is None; expected 96"),
        (framed(example(IMAGE, 0, [4, 0, 0, 0], depth=integers([1]))), r"depth is \[1\]; expected 2"),
        (framed(example(IMAGE[:1], 0, [4, 0, 0, 0])), "image_raw is not 18,432 bytes"),
        (framed(example(IMAGE, 0, [4, 0, 0])), "four numbers in meta"),
        (framed(example(IMAGE, 0, [4, 0, 0, 2**40])), "four numbers in meta"),
        (framed(example(IMAGE, 0, [4, 0, 0, 0], image_raw=integers([1]))), "image_raw is not"),
    ],
)
def test_damaged_and_foreign_records_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "trainduo.tfrecords"
    path.write_bytes(FRAMED + content)
    with pytest.raises(InputError, match=message) as caught:
        list(read_pairs(path, 900))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_number_of_pairs_is_refused(folder):
    path = folder / "trainduo.tfrecords"
    path.write_bytes(file_of(records("train")[:-1]))
    with pytest.raises(InputError, match="49 pairs; smallNORB has 50 in each split"):
        smallnorb.read(folder, "train", allow_unofficial=True)
