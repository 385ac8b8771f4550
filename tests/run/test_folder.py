import csv
import errno
import json
import logging
import multiprocessing
import os
import queue
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from capsbench.errors import InputError
from capsbench.run.checkpoint import save_tensors
from capsbench.run.folder import Damaged, RunFolder, write_json, write_whole


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    return RunFolder.of(tmp_path, "study", "digits/capsnet/seed0")


def names_in(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def test_a_folder_lies_below_its_study(tmp_path, folder):
    assert folder.path == tmp_path / "study/runs/digits/capsnet/seed0"
    assert folder.evaluation_path("accuracy") == folder.path / "evaluations/accuracy.json"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="which file is open is read from /proc")
@pytest.mark.parametrize("lasting", [True, False])
def test_what_must_last_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch, lasting):
    path, synced = tmp_path / "checkpoint.pt", []

    def note(descriptor):
        name = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((name.name if name.is_file() else "folder", path.exists()))

    monkeypatch.setattr(os, "fsync", note)
    write_whole(path, lambda aside: aside.write_text("content"), lasting=lasting)
    assert path.read_text() == "content"
    assert synced == ([(f".checkpoint.pt.{os.getpid()}.part", False), ("folder", True)] if lasting else [])


def test_records_and_weights_last(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))
    RunFolder(tmp_path).write_record({"status": "ok"})
    save_tensors(tmp_path / "model.pt", {"weight": torch.zeros(2)})
    assert len(synced) == 4


def test_write_whole_makes_folders_and_replaces_a_file(tmp_path):
    path = tmp_path / "new/folder/file.txt"
    for text in ("old", "new"):
        write_whole(path, lambda aside, text=text: aside.write_text(text))
        assert path.read_text() == text
    assert names_in(path.parent) == ["file.txt"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail_halfway(aside: Path) -> None:
        aside.write_text("ne")
        raise error

    with pytest.raises(type(error)):
        write_whole(path, fail_halfway)
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["file.txt"]


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    seen = []

    def write(aside: Path) -> None:
        aside.write_text("new")
        seen.append(path.read_text())

    write_whole(path, write)
    assert (seen, path.read_text()) == (["old"], "new")


def test_json_comes_back(tmp_path):
    value = {"status": "ok", "error": 0.1 + 0.2, "nothing": None}
    write_json(tmp_path / "a.json", value)
    assert json.loads((tmp_path / "a.json").read_text()) == value


def test_a_record_comes_back_in_its_order(folder):
    record = {"status": "ok", "digest": "00e1", "seconds": 1e-06, "problem": "ein Täuschwort: x", "data": {"n": [1]}}
    assert folder.read_record() is None
    folder.write_record(record)
    assert list(folder.read_record().items()) == list(record.items())


def test_metrics_come_back_in_full(folder):
    rows = [
        {"epoch": 1, "train_loss": 0.1 + 0.2, "validation_loss": None},
        {"epoch": 2, "train_loss": 1e-12, "validation_loss": 1 / 3},
    ]
    folder.write_metrics(rows)
    with folder.metrics_path.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["validation_loss"] for row in read] == ["", repr(1 / 3)]
    assert [float(row["train_loss"]) for row in read] == [0.1 + 0.2, 1e-12]
    assert [row["epoch"] for row in read] == ["1", "2"]


def test_metrics_of_no_epoch_have_a_heading(folder):
    folder.write_metrics([])
    assert folder.metrics_path.read_text() == "epoch\n"


class _Sender(logging.Handler):
    def __init__(self, sent):
        super().__init__()
        self.sent = sent

    def emit(self, entry: logging.LogRecord) -> None:
        self.sent.put(entry.getMessage())


def _wait_for(path: Path, sent) -> None:
    log = logging.getLogger("capsbench")
    log.setLevel(logging.INFO)
    log.addHandler(_Sender(sent))
    with RunFolder(path).locked():
        sent.put("in")


def test_the_lock_holds_between_processes_and_the_second_waits(folder):
    context = multiprocessing.get_context("spawn")
    sent = context.Queue()
    with folder.locked():
        second = context.Process(target=_wait_for, args=(folder.path, sent))
        second.start()
        message = sent.get(timeout=30)
        assert str(folder.path) in message and "another process" in message and "waiting" in message
        with pytest.raises(queue.Empty):
            sent.get(timeout=0.3)
    assert sent.get(timeout=30) == "in"
    second.join(30)


def test_old_results_can_be_forgotten(folder):
    folder.evaluation_path("accuracy").parent.mkdir(parents=True)
    paths = [folder.model_path, folder.predictions_path, folder.evaluation_path("accuracy"), folder.path / ".x.1.part"]
    for path in [*paths, folder.checkpoint_path]:
        path.write_text("old")
    folder.forget_results()
    assert not any(path.exists() for path in paths)
    assert folder.checkpoint_path.exists()


def test_the_lock_is_given_back_when_training_fails(folder, caplog):
    caplog.set_level(logging.INFO, "capsbench")
    with pytest.raises(ZeroDivisionError), folder.locked():
        raise ZeroDivisionError
    with folder.locked():
        pass
    assert caplog.messages == []  # it did not wait


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unexpected pos 9 vs 8")]
)
def test_a_full_disk_is_said_with_the_final_name(tmp_path, error):
    """np.savez names no file, and torch raises an error of its own in the place of that of the disk."""

    def fail(aside: Path) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            raise error from None

    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole(tmp_path / "model.pt", fail)
    assert caught.value.filename == str(tmp_path / "model.pt")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_torch_on_a_full_disk_names_the_file(tmp_path):
    path = tmp_path / "model.pt"
    (tmp_path / f".model.pt.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as caught:
        save_tensors(path, {"weight": torch.zeros(100_000)})
    assert caught.value.filename == str(path)
    assert names_in(tmp_path) == []


def leave(path: Path, number: int, age: float = 100.0) -> Path:
    """What a process of a number left of a file that it was writing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    left = path.with_name(f".{path.name}.{number}.part")
    left.write_text("ha")
    os.utime(left, (time.time() - age, time.time() - age))
    return left


NOBODY = 2**22 + 1  # above the largest number that Linux gives a process


def test_what_a_killed_writer_left_goes_with_the_next_write(tmp_path):
    path = tmp_path / "runs.csv"
    gone, living, fresh = leave(path, NOBODY), leave(path, os.getppid()), leave(path, NOBODY + 1, age=1)
    other = leave(tmp_path / "plots.csv", NOBODY)
    write_whole(path, lambda aside: aside.write_text("new"))
    assert not gone.exists()
    assert living.exists() and fresh.exists() and other.exists()


def test_what_a_killed_training_or_evaluation_left_goes_with_the_next_training(folder):
    paths = [folder.predictions_path, folder.evaluation_path("accuracy")]
    old = [leave(path, NOBODY) for path in paths]
    with folder.locked():
        assert not any(path.exists() for path in old)
        fresh = [leave(path, NOBODY, age=0) for path in paths]
        folder.forget_results()
        assert not any(path.exists() for path in fresh)


RECORD = {
    "status": "ok", "digest": "0" * 16, "started": "2026-01-01T00:00:00Z", "commit": "c", "versions": {}, "machine": {},
    "config": {}, "data": {"fingerprint": "f", "train_images": 1, "epoch_images": 1, "unofficial": []},
    "parameters": 1, "epochs": 1, "seconds": 1.5, "finished": "2026-01-01T00:00:02Z", "files": {"model.pt": "0" * 64},
    "tracking_seconds": 0.5,
}  # fmt: skip


def test_a_record_that_is_cut_anywhere_is_damaged(folder):
    folder.write_record(RECORD)
    whole = folder.record_path.read_bytes()
    assert folder.sound_record() == RECORD
    before_checksums = whole.index(b"files:")  # cut there it is as a version without checksums wrote it
    for size in set(range(len(whole.rstrip()))) - {before_checksums - 1, before_checksums}:
        folder.record_path.write_bytes(whole[:size])
        with pytest.raises(Damaged, match=r"run\.yaml: damaged; delete the folder and train the run again"):
            folder.read_record()
        assert folder.sound_record() is None


@pytest.mark.parametrize("key", [key for key in RECORD if key not in ("files", "tracking_seconds")])
def test_a_record_that_lacks_a_key_is_damaged(folder, key):
    folder.write_record(RECORD)
    lines = folder.record_path.read_text().splitlines(keepends=True)
    first = next(number for number, line in enumerate(lines) if line.startswith(f"{key}:"))
    last = next(number for number in range(first + 1, len(lines)) if lines[number][0] not in " -")
    folder.record_path.write_text("".join(lines[:first] + lines[last:]))
    with pytest.raises(Damaged, match=r"run\.yaml: damaged"):
        folder.read_record()


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"- a", b"a: 2026-99-99", b"[" * 5000, b"a: &a [*a]"])
def test_a_record_that_is_none_is_damaged(folder, content):
    folder.path.mkdir(parents=True)
    folder.record_path.write_bytes(content)
    assert folder.sound_record() is None


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_fifo_or_folder_in_the_place_of_a_record_is_said_and_not_waited_for(folder, make):
    folder.path.mkdir(parents=True)
    make(folder.record_path)
    with pytest.raises(Damaged, match=r"run\.yaml: is no regular file"):
        folder.read_record()


def test_a_record_that_was_changed_is_not_taken_for_one_that_is_damaged(folder):
    folder.write_record(RECORD)
    folder.record_path.write_text(folder.record_path.read_text().replace("epochs: 1", "epochs: 2"))
    with pytest.raises(InputError, match="was changed since it was written"):
        folder.sound_record()


@pytest.fixture
def trained(folder) -> RunFolder:
    """A run folder with everything that a trained and evaluated run has."""
    folder.write_record({"status": "ok", "digest": "d", "files": {}})
    folder.model_path.write_bytes(b"weights")
    with folder.predictions_path.open("wb") as file:
        np.savez(file, scores=np.zeros(3))
    folder.write_evaluation("accuracy", {"status": "ok"})
    folder.write_metrics([{"epoch": 1, "seconds": 2.0}])
    return folder


def test_what_is_whole_is_usable(trained):
    assert trained.unusable() == []
    (trained.path / "evaluations/perturbation.npz").write_text("of a protocol, whose result has its sha256")
    assert trained.unusable() == []


def test_one_changed_letter_makes_a_run_or_a_result_unusable(trained):
    result = trained.evaluation_path("accuracy")
    text = result.read_text()
    result.write_text(text.replace("ok", "no"))
    assert trained.unusable() == [result]
    result.write_text(text)
    record = trained.record_path.read_text()
    trained.record_path.write_text(record.replace("digest: d", "digest: e"))
    assert {path.name for path in trained.unusable()} == {"model.pt", "predictions.npz", "accuracy.json"}


@pytest.mark.parametrize("left", [None, "", "status: ok\ndigest: d\nfi", "status: running\ndigest: d\n"])
def test_nothing_is_usable_without_the_record_of_a_training_that_ended(trained, left):
    trained.record_path.unlink()
    if left is not None:
        trained.record_path.write_text(left)
    found = {path.name for path in trained.unusable()}
    assert found == {"model.pt", "predictions.npz", "accuracy.json"}
    trained.model_path.unlink()
    assert trained.unusable() == []  # to be trained anyway


@pytest.mark.parametrize("name", ["metrics.csv", "predictions.npz", "evaluations/accuracy.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_what_was_cut_is_not_usable(trained, name, share):
    path = trained.path / name
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert trained.unusable() == [path]


def test_those_who_look_whether_a_run_is_locked_do_not_see_each_other(folder):
    with folder.locked():
        pass
    looks: list[bool] = []
    threads = [threading.Thread(target=lambda: looks.extend(folder.is_locked() for _ in range(300))) for _ in range(4)]
    for thread in threads:
        thread.start()
    with folder.locked(wait=False) as free:
        assert free  # though others look
        assert folder.is_locked()
    for thread in threads:
        thread.join()
    assert len(looks) == 1200 and not all(looks)
