import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from capsbench.data.readers.cache import cache_folder, cached
from capsbench.errors import InputError

KEY = {"files": {"dat": "abc"}, "side": 48}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Builder:
    """Builds the same arrays each time and counts how often it did."""

    def __init__(self):
        self.built = 0

    def __call__(self):
        self.built += 1
        images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
        return {"images": images, "labels": np.array([3, 1]), "none": np.empty((0, 2))}


@pytest.fixture
def build():
    return Builder()


def entry_of(folder):
    (entry,) = (path for path in folder.iterdir() if path.is_dir())
    return entry


def test_arrays_are_built_once_and_then_mapped(build, folder):
    first, again = cached("x", KEY, build), cached("x", KEY, build)
    assert build.built == 1
    for arrays in (first, again):
        assert isinstance(arrays["images"], np.memmap)
        for name, expected in Builder()().items():
            assert arrays[name].dtype == expected.dtype
            np.testing.assert_array_equal(arrays[name], expected)
    assert sorted(p.name for p in entry_of(folder).iterdir()) == ["images.npy", "labels.npy", "none.npy", "sums.json"]


def test_what_a_reader_changes_stays_with_the_reader(build):
    cached("x", KEY, build)["images"][0] = 99
    assert cached("x", KEY, build)["images"].max() == 23
    assert build.built == 1


def test_arrays_that_are_not_contiguous_are_kept_as_they_look():
    array = np.arange(24).reshape(4, 6).T[:, ::2]
    np.testing.assert_array_equal(cached("x", KEY, lambda: {"a": array})["a"], array)


def test_all_that_decides_the_arrays_is_in_the_name(build, folder):
    for key in (KEY, {**KEY, "side": 32}, {**KEY, "files": {"dat": "abd"}}):
        cached("x", key, build)
    cached("y", KEY, build)
    cached("x", dict(reversed(KEY.items())), build)  # the order does not
    assert build.built == 4
    assert len([path for path in folder.iterdir() if path.is_dir()]) == 4


def truncate(path, to):
    os.truncate(path, to)


DAMAGE = {
    "an array cut short": lambda e: truncate(e / "images.npy", (e / "images.npy").stat().st_size - 1),
    "an array cut in its header": lambda e: truncate(e / "images.npy", 20),
    "an empty array file": lambda e: truncate(e / "images.npy", 0),
    "no array": lambda e: (e / "labels.npy").unlink(),
    "a byte that is another": lambda e: (e / "images.npy").write_bytes((e / "images.npy").read_bytes()[:-1] + b"\xff"),
    "another array": lambda e: np.save(e / "labels.npy", np.array([1, 3])),
    "another type": lambda e: np.save(e / "labels.npy", np.array([3, 1], np.uint64)),
    "no sums": lambda e: (e / "sums.json").unlink(),
    "torn sums": lambda e: truncate(e / "sums.json", 30),
    "empty sums": lambda e: truncate(e / "sums.json", 0),
    "sums of nothing": lambda e: (e / "sums.json").write_text("{}"),
    "a header that does not parse": lambda e: (e / "images.npy").write_bytes(
        (e / "images.npy").read_bytes().replace(b"'descr'", b"(((((((")
    ),
    "wrong sums": lambda e: (e / "sums.json").write_text(
        json.dumps(dict.fromkeys(json.loads((e / "sums.json").read_text()), "0" * 64))
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_entry_that_is_not_whole_is_built_again(build, folder, damage):
    cached("x", KEY, build)
    DAMAGE[damage](entry_of(folder))
    arrays = cached("x", KEY, build)
    assert build.built == 2
    assert arrays["images"].max() == 23
    assert arrays["labels"].tolist() == [3, 1]
    cached("x", KEY, build)
    assert build.built == 2


def test_a_build_that_fails_leaves_nothing_and_says_so_itself(build, folder):
    def fail():
        raise InputError("the file is damaged")

    with pytest.raises(InputError, match="the file is damaged"):
        cached("x", KEY, fail)
    assert not [path for path in folder.iterdir() if path.is_dir()]
    cached("x", KEY, build)
    assert build.built == 1


def test_what_an_interrupted_build_left_is_cleared_away(build, folder):
    cached("x", KEY, build)
    entry = entry_of(folder)
    entry.rename(entry.with_name(f".{entry.name}.part"))
    cached("x", KEY, build)
    assert build.built == 2
    assert entry_of(folder) == entry


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_said(build, folder):
    folder.mkdir()
    folder.chmod(0o500)
    with pytest.raises(InputError, match=r"cannot keep prepared data in .*CAPSBENCH_CACHE names another"):
        cached("x", KEY, build)


def test_a_folder_that_cannot_be_made_is_said(build, folder):
    folder.write_text("a file, not a folder")
    with pytest.raises(InputError, match=r"cannot keep prepared data in .*CAPSBENCH_CACHE names another") as caught:
        cached("x", KEY, build)
    assert "\n" not in str(caught.value)


def test_two_threads_at_once_build_once(build):
    together = threading.Barrier(2)

    def use(_):
        together.wait()
        return cached("x", KEY, build)["images"].sum()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(use, range(2))) == [276, 276]
    assert build.built == 1


def test_the_folder_is_the_users_cache_unless_named(folder, monkeypatch, tmp_path):
    assert cache_folder() == folder
    monkeypatch.delenv("CAPSBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "capsbench"
