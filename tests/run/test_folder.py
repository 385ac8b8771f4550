import csv
import json
import logging
import multiprocessing
import os
import queue
from pathlib import Path

import pytest
import torch

from capsbench.run.checkpoint import save_tensors
from capsbench.run.folder import RunFolder, write_json, write_whole


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
