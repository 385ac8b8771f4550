"""A training that another study has made is taken from there."""

import json
from pathlib import Path

import pytest
from small_runs import go, metrics, plan_of

from capsbench.evaluation import evaluate
from capsbench.run.cleaning import forget
from capsbench.run.folder import RunFolder
from capsbench.study import load_plan


@pytest.fixture
def first(tmp_path):
    """A run of the study `study` that is trained and evaluated."""
    run = plan_of(tmp_path, epochs=1).runs[0]
    folder = go(run, tmp_path / "results")[1]
    evaluate(run, tmp_path / "results", Path("data"), ["accuracy"])
    return folder


@pytest.fixture
def copy(tmp_path, first):
    """The same run in a study of another name, with another label."""

    def make(**training):
        study = json.loads((tmp_path / "study.yaml").read_text())
        study["name"] = "copy"
        study["training"].update(training)
        study["variants"]["v"]["label"] = "ours"
        (tmp_path / "copy.yaml").write_text(json.dumps(study))
        return load_plan(tmp_path / "copy.yaml").runs[0]

    return make


def test_the_training_is_taken_with_its_provenance_and_is_measured_anew(tmp_path, first, copy):
    run = copy()
    status, folder = go(run, tmp_path / "results")
    record, then = folder.read_record(), first.read_record()
    assert (status, record["study"], record["label"]) == ("ok", "copy", "ours")
    assert record["shared_from"] == str(first.path)
    assert {key: record[key] for key in ("started", "seconds", "commit", "machine", "digest")} == {
        key: then[key] for key in ("started", "seconds", "commit", "machine", "digest")
    }
    assert folder.model_path.read_bytes() == first.model_path.read_bytes()
    assert metrics(folder) == metrics(first)
    assert "predictions.npz" in then["files"] and "predictions.npz" not in record["files"]
    assert not folder.evaluation_path("accuracy").exists()
    found = evaluate(run, tmp_path / "results", Path("data"), ["accuracy"])["accuracy"]
    assert found["error"] == first.read_evaluation("accuracy", then)["error"]


def trained_here(folder: RunFolder) -> bool:
    return "shared_from" not in folder.read_record()


def test_the_files_are_copies(tmp_path, first, copy):
    folder = go(copy(), tmp_path / "results")[1]
    folder.model_path.write_bytes(b"")
    assert first.model_path.stat().st_size > 0


def test_another_configuration_is_trained(tmp_path, copy):
    assert trained_here(go(copy(learning_rate=0.01), tmp_path / "results")[1])


@pytest.mark.parametrize("change", [{"code": "0" * 16}, {"status": "failed"}, {"versions": {"torch": "1.0"}}])
def test_another_code_version_or_end_is_trained(tmp_path, first, copy, change):
    first.write_record({**first.read_record(), **change})
    assert trained_here(go(copy(), tmp_path / "results")[1])


def test_a_damaged_training_is_not_taken(tmp_path, first, copy):
    first.model_path.write_bytes(first.model_path.read_bytes()[:-1] + b"?")
    assert trained_here(go(copy(), tmp_path / "results")[1])
    first.record_path.write_text("status: ok")
    forget([RunFolder.of(tmp_path / "results", "copy", "digits/v/seed0").path])
    assert trained_here(go(copy(), tmp_path / "results")[1])


def test_who_wants_it_afresh_gets_it(tmp_path, copy):
    run = copy()
    assert trained_here(go(run, tmp_path / "results", sharing=False)[1])
    assert trained_here(go(run, tmp_path / "results", again=True)[1])
    folder = RunFolder.of(tmp_path / "results", "copy", run.key)
    forget([folder.path])
    assert not folder.record_path.exists()
    assert trained_here(go(run, tmp_path / "results")[1])
    forget([folder.path])
    go(run, tmp_path / "results")
    assert not folder.again_path.exists()
