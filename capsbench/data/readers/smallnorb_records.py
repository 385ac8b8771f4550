"""smallNORB's pairs in the TFRecord files of H18's authors, read without TensorFlow.

A file is a row of records: the length (uint64, little-endian), its checksum, the content, its checksum. The checksums
are CRC-32C, masked. A record is a protobuf message, `tf.train.Example`, with the features that the authors' converter
writes (google-research, capsule_em/norb/norb_convert.py): height, width and depth (96, 96 and 2), label (the category),
meta (instance, elevation, azimuth, lighting) and image_raw, the bytes of both cameras' images [2, 96, 96].

Formats: tensorflow.org/tutorials/load_data/tfrecord; protobuf.dev/programming-guides/encoding.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from capsbench.errors import InputError

# as the authors' converter names its output, and as their reader looks for it
NAMES = ("{split}duo.tfrecords", "{split}duo-az.tfrecords")
SHAPE = (2, 96, 96)
LARGEST = 1 << 16  # bytes of a record; a pair has about 18,600
POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
SIZES = {"height": SHAPE[1], "width": SHAPE[2], "depth": SHAPE[0]}

Feature = list[int] | list[bytes]


class Pairs(NamedTuple):
    """images uint8 [n, 2, 96, 96], labels int64 [n], info int64 [n, 4]: instance, elevation, azimuth, lighting."""

    images: np.ndarray
    labels: np.ndarray
    info: np.ndarray


def find_records(folder: Path, split: str) -> Path | None:
    """Return the file of records of a split ("train" or "test"), or None if there is none."""
    paths = (folder / name.format(split=split) for name in NAMES)
    return next((path for path in paths if path.is_file()), None)


def read_pairs(path: Path, chunk: int) -> Iterator[Pairs]:
    """Yield all pairs of a file in its order, up to `chunk` at once.

    Raises:
        InputError: the file is damaged, or its records are not smallNORB's pairs.
    """
    try:
        with path.open("rb") as file:
            first = 0
            while records := _records(file, path, first, chunk):
                found = [_pair(record, f"{path}: record {first + i}") for i, record in enumerate(records)]
                images, labels, info = zip(*found, strict=True)
                yield Pairs(np.stack(images), np.array(labels, np.int64), np.array(info, np.int64))
                first += len(records)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def crc32c(rows: np.ndarray) -> np.ndarray:
    """Return the CRC-32C of each row of bytes: uint8 [n, length] -> uint32 [n]."""
    found = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):  # all rows at once: Python's loop is over the length alone
        found = _TABLE[(found ^ column) & 0xFF] ^ (found >> 8)
    return ~found


def masked(checksums: np.ndarray) -> np.ndarray:
    """Return checksums uint32 [n] as TFRecord files store them: turned by 15 bits, plus a constant."""
    wide = checksums.astype(np.uint64)
    turned = (wide >> np.uint64(15)) | (wide << np.uint64(17))
    return ((turned + np.uint64(0xA282EAD8)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


def parse_example(message: bytes) -> dict[str, Feature]:
    """Return the features of a tf.train.Example by name. Raises ValueError for what is no such message."""
    found: dict[str, Feature] = {}
    for _, features in _lengthy(message, 1):
        for _, entry in _lengthy(features, 1):
            name = b"".join(key for _, key in _lengthy(entry, 1)).decode()
            found[name] = [value for _, feature in _lengthy(entry, 2) for value in _values(feature)]  # type: ignore[assignment]
    return found


def _make_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1)
    return table


_TABLE = _make_table()


def _records(file: BinaryIO, path: Path, first: int, count: int) -> list[bytes]:
    """Read up to `count` records, of which the first has the number `first`, and check their checksums."""
    records: list[bytes] = []
    checksums: list[int] = []
    while len(records) < count and (head := file.read(12)):
        where = f"{path}: record {first + len(records)}"
        if len(head) < 12:
            raise InputError(f"{where}: the file ends within it")
        length, checksum = struct.unpack("<QI", head)
        if masked(crc32c(np.frombuffer(head[:8], np.uint8)[None]))[0] != checksum:
            raise InputError(f"{where}: the checksum of its length is wrong: damaged, or no TFRecord file")
        if length > LARGEST:
            raise InputError(f"{where}: {length:,} bytes; a pair of smallNORB has about 18,600")
        body = file.read(length + 4)
        if len(body) < length + 4:
            raise InputError(f"{where}: the file ends within it")
        records.append(body[:-4])
        checksums += struct.unpack("<I", body[-4:])
    _check(records, checksums, path, first)
    return records


def _check(records: list[bytes], checksums: list[int], path: Path, first: int) -> None:
    lengths = np.array([len(record) for record in records])
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length)
        rows = np.frombuffer(b"".join(records[i] for i in members), np.uint8).reshape(len(members), length)
        wrong = members[masked(crc32c(rows)) != np.array([checksums[i] for i in members], np.uint32)]
        if len(wrong):
            raise InputError(f"{path}: record {first + wrong[0]}: its checksum is wrong: damaged; fetch the file again")


def _pair(record: bytes, where: str) -> tuple[np.ndarray, int, list[int]]:
    """Return image uint8 [2, 96, 96], category and info of a record; `where` names it."""
    try:
        features = parse_example(record)
    except ValueError as error:
        raise InputError(f"{where}: no tf.train.Example ({error})") from None
    for name, size in SIZES.items():
        if features.get(name) != [size]:
            raise InputError(f"{where}: {name} is {features.get(name)}; expected {size}: not smallNORB's pairs")
    image, label, info = (features.get(name, []) for name in ("image_raw", "label", "meta"))
    if [len(part) for part in (image, label, info)] != [1, 1, 4] or not _are_integers([*label, *info]):
        raise InputError(f"{where}: expected one image_raw, one label and four numbers in meta: not smallNORB's pairs")
    if not isinstance(image[0], bytes) or len(image[0]) != int(np.prod(SHAPE)):
        raise InputError(f"{where}: image_raw is not {int(np.prod(SHAPE)):,} bytes")
    return np.frombuffer(image[0], np.uint8).reshape(SHAPE), int(label[0]), [int(value) for value in info]


def _are_integers(values: list[object]) -> bool:
    return all(isinstance(value, int) and -(2**31) <= value < 2**31 for value in values)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message: number, and value (a varint) or bytes (all else)."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if place + size > len(message):
            raise ValueError("it ends within a field")
        yield key >> 3, message[place : place + size]
        place += size


def _lengthy(message: bytes, number: int) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of one number; all of them must be bytes."""
    for found, value in _fields(message):
        if found == number:
            if not isinstance(value, bytes):
                raise ValueError(f"field {number} is a number")
            yield found, value


def _values(feature: bytes) -> Iterator[int | bytes]:
    """Yield the values of a tf.train.Feature: bytes (field 1) or integers (field 3), packed or one by one."""
    for _, values in _lengthy(feature, 1):
        yield from (value for _, value in _lengthy(values, 1))
    for _, values in _lengthy(feature, 3):
        for number, value in _fields(values):
            if number == 1:
                yield from _packed(value) if isinstance(value, bytes) else [_signed(value)]


def _packed(values: bytes) -> Iterator[int]:
    place = 0
    while place < len(values):
        value, place = _varint(values, place)
        yield _signed(value)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Read a number of seven bits per byte, the lowest first; returns it and the place after it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("it ends within a number")
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if not byte & 0x80:
            return value & (2**64 - 1), place
    raise ValueError("a number of more than ten bytes")
