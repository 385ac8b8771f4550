"""What run.yaml says of a training that went on elsewhere, or with other versions, after an interruption."""

import pytest
import torch
from small_runs import Stop, go, run_of, same_weights, stop_after, weights

from capsbench.run import provenance
from capsbench.run.checkpoint import load_tensors, save_tensors
from capsbench.run.folder import RunFolder


@pytest.fixture
def world(monkeypatch):
    """The time, torch and processor that a training finds, to be changed between two calls."""
    found = {"now": "2026-01-01T00:00:00Z", "torch": "2.14.1", "device": "one processor"}
    monkeypatch.setattr(provenance, "now", lambda: found["now"])
    monkeypatch.setattr(provenance, "versions", lambda: {"python": "3.11.2", "torch": found["torch"]})
    monkeypatch.setattr("capsbench.run.train.describe", lambda device: found["device"])
    return found


def interrupted(tmp_path, epochs: int = 3):
    run = run_of(tmp_path, epochs=epochs)
    with pytest.raises(Stop):
        go(run, tmp_path / "r", reached=stop_after(2))
    return run, RunFolder.of(tmp_path / "r", run.study, run.key)


def test_a_training_that_went_on_elsewhere_names_its_parts(tmp_path, world):
    run, folder = interrupted(tmp_path)
    world |= {"now": "2026-01-02T00:00:00Z", "torch": "2.11.0", "device": "another"}
    assert go(run, tmp_path / "r")[0] == "ok"
    record = folder.read_record()
    parts = [
        (s["after_epoch"], s["started"], s["versions"]["torch"], s["machine"]["device"]) for s in record["segments"]
    ]
    first, second = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    assert parts == [(0, first, "2.14.1", "one processor"), (2, second, "2.11.0", "another")]
    assert (record["started"], record["finished"]) == (first, second)
    assert record["versions"]["torch"] == "2.14.1"
    assert (
        provenance.machines(record)
        == "one processor, torch 2.14.1, python 3.11.2, then another, torch 2.11.0, python 3.11.2"
    )


def test_a_training_that_went_on_as_before_is_one(tmp_path, world):
    run, folder = interrupted(tmp_path)
    world["now"] = "2026-01-02T00:00:00Z"
    go(run, tmp_path / "r")
    record = folder.read_record()
    assert "segments" not in record
    assert record["started"] == "2026-01-01T00:00:00Z"  # when it began, not when it was taken up again
    assert "&id" not in folder.record_path.read_text()  # YAML's anchors are for programs


def test_a_run_that_is_written_again_from_its_checkpoint_says_what_it_was_trained_with(tmp_path, world):
    run = run_of(tmp_path)
    folder = go(run, tmp_path / "r")[1]
    before, trained = folder.read_record(), weights(folder)
    folder.record_path.unlink()
    folder.model_path.unlink()
    world |= {"now": "2026-01-02T00:00:00Z", "torch": "2.11.0", "device": "another"}
    assert go(run, tmp_path / "r")[0] == "ok"
    after = folder.read_record()
    assert same_weights(weights(folder), trained)
    assert "segments" not in after
    same = ("started", "commit", "versions", "machine", "seconds", "files")
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


def test_what_a_checkpoint_of_an_older_version_does_not_say_is_not_made_up(tmp_path, world):
    run, folder = interrupted(tmp_path)
    saved = load_tensors(folder.checkpoint_path)
    del saved["progress"]["segments"]
    save_tensors(folder.checkpoint_path, saved)
    world |= {"now": "2026-01-02T00:00:00Z", "torch": "2.11.0"}
    assert go(run, tmp_path / "r")[0] == "ok"
    record = folder.read_record()
    assert (record["started"], record["versions"]["torch"]) == ("2026-01-02T00:00:00Z", "2.11.0")
    assert torch.load(folder.checkpoint_path, weights_only=True)["progress"]["segments"][0]["after_epoch"] == 2
