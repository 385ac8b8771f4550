import errno
import json
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from filelock import FileLock

from capsbench.data.readers import cache
from capsbench.data.readers.cache import cache_folder, cached, entries, remove
from capsbench.errors import InputError

KEY = {"files": {"dat": "abc"}, "side": 48}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSBENCH_CACHE", str(tmp_path / "cache"))
    cache._warn.cache_clear()
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


def refuse_writing(monkeypatch, code):
    """Let the cache's folder answer as a read-only or full one does, which root's would not."""

    def refuse(*arguments, **options):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cache, "FileLock", refuse)
    monkeypatch.setattr(cache, "_write", refuse)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


UNWRITABLE = [errno.EROFS, errno.EACCES, errno.ENOSPC]


@pytest.mark.parametrize("code", UNWRITABLE, ids=errno.errorcode.get)
def test_an_entry_of_a_folder_that_may_only_be_read_is_used(build, caplog, monkeypatch, code):
    cached("x", KEY, build)
    refuse_writing(monkeypatch, code)
    found = cached("x", KEY, build)
    assert build.built == 1
    assert isinstance(found["images"], np.memmap)
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("code", UNWRITABLE, ids=errno.errorcode.get)
def test_what_cannot_be_kept_is_built_in_memory_with_one_warning(build, folder, caplog, monkeypatch, code):
    refuse_writing(monkeypatch, code)
    for name in ("x", "y", "x"):
        found = cached(name, KEY, build)
        assert found["images"].flags.writeable
        for array, expected in Builder()().items():
            np.testing.assert_array_equal(found[array], expected)
    assert build.built == 3
    (line,) = warnings_of(caplog)
    assert [word for word in (str(folder), os.strerror(code), "CAPSBENCH_CACHE") if word not in line] == []
    assert "\n" not in line


def test_what_turns_out_not_to_fit_is_not_built_twice(build, caplog, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache, "_write", full)
    assert cached("x", KEY, build)["images"].max() == 23
    assert build.built == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_to_write_is_read(build, folder, caplog):
    cached("x", KEY, build)
    folder.chmod(0o500)
    try:
        cached("x", KEY, build)
        assert (build.built, warnings_of(caplog)) == (1, [])
        cached("y", KEY, build)
        assert build.built == 2
        assert "Permission denied" in warnings_of(caplog)[0]
    finally:
        folder.chmod(0o700)


def test_entries_are_listed_with_their_sizes_and_removed(build, folder):
    assert entries() == {}
    cached("x", KEY, build)
    cached("toynorb-train-6", KEY, build)
    leftover = folder / f".y-{'0' * 16}.part"
    leftover.mkdir()
    (leftover / "images.npy").write_bytes(b"123")
    found = entries()
    assert [path.name[:8] for path in found] == [f".y-{'0' * 5}", "toynorb-", f"x-{entry_key(found)[:6]}"]
    assert found[leftover] == 3
    for path, size in found.items():
        assert size == sum(file.stat().st_size for file in path.iterdir())
        assert remove(path)
        assert not path.exists()
    assert entries() == {}
    cached("x", KEY, build)
    assert build.built == 3


def entry_key(found):
    return next(path.name for path in found if path.name.startswith("x-")).removeprefix("x-")


NOT_ENTRIES = {
    "another name": lambda folder: (folder / "photos").mkdir(),
    "a key that is too short": lambda folder: (folder / "x-0123456789abcde").mkdir(),
    "a file": lambda folder: (folder / f"x-{'1' * 16}").touch(),
    "other files beside arrays": lambda folder: (
        (folder / f"x-{'2' * 16}").mkdir(),
        (folder / f"x-{'2' * 16}/sums.json").touch(),
        (folder / f"x-{'2' * 16}/thesis.tex").touch(),
    ),
    "folders in it": lambda folder: (folder / f"x-{'3' * 16}/images.npy").mkdir(parents=True),
    "a link": lambda folder: (
        (folder.parent / "elsewhere").mkdir(),
        (folder / f"x-{'4' * 16}").symlink_to(folder.parent / "elsewhere"),
    ),
}


@pytest.mark.parametrize("kind", NOT_ENTRIES)
def test_nothing_else_is_an_entry(folder, kind):
    folder.mkdir()
    NOT_ENTRIES[kind](folder)
    assert entries() == {}


def test_an_entry_that_is_being_built_stays(build, folder):
    cached("x", KEY, build)
    entry = entry_of(folder)
    with FileLock(entry.with_name(f".{entry.name}.lock")):
        assert not remove(entry)
    assert entry.exists()
    assert remove(entry)


def test_arrays_in_use_outlive_their_entry(build, folder):
    found = cached("x", KEY, build)
    assert remove(entry_of(folder))
    np.testing.assert_array_equal(found["images"], Builder()()["images"])


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
