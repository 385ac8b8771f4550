"""Whatever the bytes of a raw file are, a reader gives checked arrays or one line that names the file or its folder."""

import gzip
import hashlib
import io
import pickle
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from any_cases import cases, for_each
from hypothesis import strategies as st
from scipy.io import savemat
from test_affnist import fields, save
from test_cifar10 import TEST, TRAIN, batch, pickled
from test_mnist import idx
from test_smallnorb import PAIRS, contents
from test_smallnorb_records import example, framed
from torchvision.datasets import CIFAR10, SVHN

from capsbench.data.readers import affnist, cifar10, mnist, smallnorb, svhn
from capsbench.data.readers.raw import Raw
from capsbench.data.readers.smallnorb_records import read_pairs
from capsbench.errors import InputError

Form = Callable[[str, bytes], tuple[str, bytes]]  # name and content of a plain file -> those of a packed one


@dataclass(frozen=True)
class Source:
    """The raw files of one split as they are whole, the forms that each may have, and what reads them."""

    files: Mapping[str, bytes]
    read: Callable[[Path], Raw]
    classes: int
    forms: tuple[Form, ...]


NUMBERS = st.sampled_from([
    struct.pack(order + "i", number)
    for order in "<>"
    for number in (-1, 0, 1, 2, 14, 15, 255, 2**16, 2**31 - 1, -(2**31))
])  # fmt: skip
BYTES = st.one_of(NUMBERS, st.binary(min_size=1, max_size=12))
PLACES = st.one_of(st.integers(0, 300), st.integers(0, 2**20))
CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "put", "flip", "insert", "remove", "end", "start", "repeat"]), PLACES, BYTES),
    min_size=1, max_size=4,
)  # fmt: skip


def changed(content: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    """Content after some changes, each of an action, a place and bytes."""
    for action, place, given in changes:
        at, size = place % (len(content) + 1), given[0]
        before, after = content[:at], content[at:]
        content = {
            "put": before + given + after[len(given) :],
            "flip": before + bytes([byte ^ (1 << size % 8) for byte in after[:1]]) + after[1:],
            "insert": before + given * (1 + size % 9) + after,
            "remove": before + after[size:],
            "end": before,
            "start": after,
            "repeat": before + after[:size] + after,
        }[action]
    return content


def zipped(name: str, content: bytes) -> tuple[str, bytes]:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return f"{name}.zip", made.getvalue()


def gzipped(name: str, content: bytes) -> tuple[str, bytes]:
    return f"{name}.gz", gzip.compress(content, 1)


def compressed_mat(name: str, content: bytes) -> tuple[str, bytes]:
    """A .mat file whose content is one compressed part, as MATLAB writes them."""
    packed = zlib.compress(content[128:], 1)
    return name, content[:128] + struct.pack("<2I", affnist.COMPRESSED, len(packed)) + packed


def of_mnist(monkeypatch, folder: Path) -> Source:
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    files = {
        "train-images-idx3-ubyte": idx(images, 2051),
        "train-labels-idx1-ubyte": idx(np.arange(20, dtype=np.uint8) % 10, 2049),
    }
    official = {name: (hashlib.md5(content).hexdigest(), "") for name, content in files.items()}
    monkeypatch.setattr(mnist, "FILES", official)
    monkeypatch.setattr(mnist, "ITEMS", {"train": 20})
    return Source(
        files, lambda folder: mnist.read(folder, "train", allow_unofficial=True), 10, (*plain_form(), gzipped)
    )


def of_smallnorb(monkeypatch, folder: Path) -> Source:
    monkeypatch.setattr(smallnorb, "PAIRS", PAIRS)
    monkeypatch.setattr(smallnorb, "cached", lambda name, made_from, build: build())  # thousands of entries otherwise
    stem = smallnorb.STEMS["train"]
    files = {f"{stem}-{part}.mat": content for part, content in contents("train").items()}
    official = {name: (hashlib.md5(content).hexdigest(), "") for name, content in files.items()}
    monkeypatch.setattr(smallnorb, "FILES", official)
    return Source(
        files, lambda folder: smallnorb.read(folder, "train", allow_unofficial=True), 5, (*plain_form(), gzipped)
    )


def of_affnist(monkeypatch, folder: Path) -> Source:
    monkeypatch.setattr(affnist, "COPIES", 3)
    monkeypatch.setattr(affnist, "ORIGINALS", (0, 10, *[0] * 8))
    monkeypatch.setattr(affnist, "MOST_BYTES", 2**22)
    monkeypatch.setattr(affnist, "cached", lambda name, made_from, build: build())
    save(folder / "made.mat", fields(original_id=np.tile(np.arange(1, 11), 3)[np.newaxis]), compressed=False)
    files = {"test.mat": (folder / "made.mat").read_bytes()}
    (folder / "made.mat").unlink()
    forms = (*plain_form(), compressed_mat, zipped)
    return Source(files, lambda folder: affnist.read(folder, "test", allow_unofficial=True), 10, forms)


def of_cifar10(monkeypatch, folder: Path) -> Source:
    files = {name: pickled(batch(seed)) for seed, name in enumerate(TRAIN + TEST)}
    files["batches.meta"] = pickle.dumps({"label_names": list("abcdefghij")}, protocol=2)
    md5s = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5s[name]] for name in TRAIN])
    monkeypatch.setattr(CIFAR10, "test_list", [[name, md5s[name]] for name in TEST])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5s["batches.meta"]})
    inside = {f"{CIFAR10.base_folder}/{name}": content for name, content in files.items()}
    return Source(inside, lambda folder: cifar10.read(folder, "test"), 10, plain_form())


def of_cifar10_packed(monkeypatch, folder: Path) -> Source:
    source = of_cifar10(monkeypatch, folder)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in source.files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    name = CIFAR10.filename.removesuffix(".gz")
    return Source({name: made.getvalue()}, source.read, 10, (gzipped,))


def of_svhn(monkeypatch, folder: Path) -> Source:
    made = io.BytesIO()
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
    savemat(made, {"X": images, "y": (np.arange(12, dtype=np.uint8) % 10 + 1)[:, None]}, do_compression=True)
    md5 = hashlib.md5(made.getvalue()).hexdigest()
    monkeypatch.setattr(SVHN, "split_list", {"test": ["", "test_32x32.mat", md5]})
    return Source({"test_32x32.mat": made.getvalue()}, lambda folder: svhn.read(folder, "test"), 10, plain_form())


def plain_form() -> tuple[Form, ...]:
    return (lambda name, content: (name, content),)


SOURCES = {
    "MNIST": of_mnist, "smallNORB": of_smallnorb, "affNIST": of_affnist, "CIFAR-10": of_cifar10,
    "CIFAR-10's archive": of_cifar10_packed, "SVHN": of_svhn,
}  # fmt: skip
# the slower a reader, the fewer
COUNTS = {"MNIST": 900, "smallNORB": 150, "affNIST": 90, "CIFAR-10": 700, "CIFAR-10's archive": 150, "SVHN": 300}
MANY = [pytest.param(name, count, marks=pytest.mark.slow) for name, count in COUNTS.items()]
CASES = st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans(), CHANGES)


def write(folder: Path, source: Source, case: tuple | None) -> None:
    """Write the files of a source, one of them changed before or after it is packed into one of its forms."""
    shutil.rmtree(folder, ignore_errors=True)
    number, form, packed_first, changes = case or (-1, 0, False, [])
    for place, (name, content) in enumerate(source.files.items()):
        pack = source.forms[form % len(source.forms)]
        if number >= 0 and place == number % len(source.files):
            if packed_first:
                name, content = pack(name, content)
                content = changed(content, changes)
            else:
                name, content = pack(name, changed(content, changes))
        else:
            name, content = pack(name, content)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def outcome(folder: Path, source: Source) -> str:
    """`read`, or `refused` in one line."""
    try:
        raw = source.read(folder)
    except InputError as error:
        line = str(error)
        assert str(folder) in line
        assert len(line.splitlines()) == 1
        assert len(line) < 1000
        return "refused"
    assert raw.images.dtype == np.uint8
    assert raw.images.ndim == 4
    assert raw.labels.dtype == np.int64
    assert raw.labels.shape == (len(raw.images),)
    assert 0 <= raw.labels.min() <= raw.labels.max() < source.classes
    assert all(len(values) == len(raw.images) for values in raw.factors.values())
    return "read"


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_changed_is_read_whole(tmp_path, monkeypatch, name):
    source = SOURCES[name](monkeypatch, tmp_path)
    for form in range(len(source.forms)):
        write(tmp_path / "raw", source, (0, form, False, []))
        assert outcome(tmp_path / "raw", source) == "read"


@pytest.mark.parametrize(("name", "count"), [*((name, 25) for name in SOURCES), *MANY])
def test_changed_bytes_are_read_or_refused_in_one_line(tmp_path, monkeypatch, name, count):
    source = SOURCES[name](monkeypatch, tmp_path)
    found: set[str] = set()

    def check(case: tuple) -> None:
        write(tmp_path / "raw", source, case)
        found.add(outcome(tmp_path / "raw", source))

    for_each(CASES, count, check)
    assert "refused" in found


@cases(25, 500)
def test_a_changed_record_is_refused_in_one_line(tmp_path, count):
    """Its checksum is right, so that the parser of the message sees it."""
    path = tmp_path / "trainduo.tfrecords"
    message = example(np.zeros((1, 4, 4), np.uint8), 0, [4, 0, 0, 300])

    def check(changes: list) -> None:
        path.write_bytes(framed(changed(message, changes)))
        with pytest.raises(InputError) as caught:
            list(read_pairs(path, 9))
        assert str(caught.value).startswith(f"{path}: record 0: ")
        assert len(str(caught.value).splitlines()) == 1

    for_each(CHANGES, count, check)
