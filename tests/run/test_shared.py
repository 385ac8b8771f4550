"""A training that another study has made is taken from there."""

import json
import shutil
from pathlib import Path

import pytest
from small_runs import Stop, go, metrics, plan_of, stop_after

from capsbench.evaluation import evaluate
from capsbench.run import shared
from capsbench.run.cleaning import forget
from capsbench.run.folder import RunFolder, write_json
from capsbench.run.owner import claim
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
        plan = load_plan(tmp_path / "copy.yaml")
        claim(plan, tmp_path / "results")
        return plan.runs[0]

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


@pytest.mark.parametrize(
    "change",
    [
        {"code": "0" * 16},
        {"status": "failed"},
        {"versions": {"torch": "1.0"}},
        {"machine": {"device": "Apple M9, 12 cores"}},
    ],
)
def test_another_code_version_machine_or_end_is_trained(tmp_path, first, copy, change):
    first.write_record({**first.read_record(), **change})
    assert trained_here(go(copy(), tmp_path / "results")[1])


def test_a_damaged_training_is_not_taken(tmp_path, first, copy):
    first.model_path.write_bytes(first.model_path.read_bytes()[:-1] + b"?")
    assert trained_here(go(copy(), tmp_path / "results")[1])
    shutil.rmtree(tmp_path / "results/copy")
    first.record_path.write_text("status: ok")
    assert trained_here(go(copy(), tmp_path / "results")[1])


def test_a_training_that_is_going_on_there_is_not_taken(tmp_path, first, copy):
    with first.locked():
        assert trained_here(go(copy(), tmp_path / "results")[1])


def test_a_source_that_changes_while_it_is_copied_is_not_taken(tmp_path, first, copy, monkeypatch):
    copied = shutil.copyfile

    def changed(source, target):
        if source.name == "metrics.csv":
            source.write_text("epoch\n")
        return copied(source, target)

    monkeypatch.setattr(shared.shutil, "copyfile", changed)
    folder = go(copy(), tmp_path / "results")[1]
    assert trained_here(folder)
    assert len(metrics(folder)) == 1


def test_other_images_than_those_here_are_not_taken(tmp_path, copy):
    run = copy()
    prepared = {"name": "digits", "options": run.data.options.model_dump(mode="json")}
    manifest = RunFolder.of(tmp_path / "results", "copy", run.key).manifest_path
    write_json(manifest, {**prepared, "train": {"fingerprint": "f" * 64}})
    assert trained_here(go(run, tmp_path / "results")[1])


def test_another_device_is_another_training(tmp_path, copy):
    folder = go(copy(device="auto"), tmp_path / "results")[1]
    assert trained_here(folder)
    assert folder.read_record()["config"]["training"]["device"] == "auto"


def test_who_wants_it_afresh_gets_it(tmp_path, copy):
    run = copy()
    assert trained_here(go(run, tmp_path / "results", sharing=False)[1])
    assert trained_here(go(run, tmp_path / "results", again=True)[1])
    folder = RunFolder.of(tmp_path / "results", "copy", run.key)
    forget([folder.path])
    assert not folder.record_path.exists()
    assert trained_here(go(run, tmp_path / "results")[1])
    assert not folder.again_path.exists()


@pytest.mark.parametrize("how", ["redo", "again"])
def test_who_wants_it_afresh_gets_it_after_an_interruption_too(tmp_path, copy, how):
    run = copy()
    folder = go(run, tmp_path / "results")[1]
    if how == "redo":
        forget([folder.path])
    with pytest.raises(Stop):
        go(run, tmp_path / "results", again=how == "again", reached=stop_after(1))
    folder.checkpoint_path.unlink()
    assert trained_here(go(run, tmp_path / "results")[1])
    assert not folder.again_path.exists()
