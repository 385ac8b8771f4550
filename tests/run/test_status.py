"""What became of each run, and why it would be made again."""

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from small_runs import Stop, go, leave_evaluated, matched_pair, plan_of, stop_after

from capsbench.evaluation import evaluate
from capsbench.run import code_version
from capsbench.run.folder import RunFolder, write_json
from capsbench.run.record import finished_record
from capsbench.run.status import RunState, run_states
from capsbench.study import Plan, load_plan

OTHER = "digits/v/seed1"
train_module = importlib.import_module("capsbench.run.train")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A study of two seeds of which the first is trained and evaluated."""
    path = tmp_path_factory.mktemp("made")
    plan = plan_of(path, epochs=2)
    go(plan.runs[0], path / "results")
    evaluate(plan.runs[0], path / "results", Path("data"), plan.study.protocols)
    return path


@pytest.fixture
def here(made, tmp_path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def plan_in(here: Path, **training) -> Plan:
    path = here / "study.yaml"
    study = json.loads(path.read_text())
    study["training"].update(training)
    path.write_text(json.dumps(study))
    return load_plan(path)


def states(here: Path, plan: Plan | None = None) -> list[RunState]:
    return run_states(plan or plan_in(here), here / "results")


def first(here: Path, plan: Plan | None = None) -> RunState:
    return states(here, plan)[0]


def folder_of(here: Path, seed: int = 0) -> RunFolder:
    return RunFolder(here / f"results/study/runs/digits/v/seed{seed}")


def edit(folder: RunFolder, **changes) -> None:
    folder.write_record({**folder.read_record(), **changes})


def test_one_run_is_done_and_one_was_never_started(here):
    done, missing = states(here)
    assert (done.state, done.why, done.is_open, done.seconds) == ("done", "", False, None)
    assert (missing.key, missing.state, missing.trains) == (OTHER, "missing", True)
    assert missing.protocols == ("accuracy", "familiar", "reconstruction")


def test_a_missing_run_takes_as_long_as_the_finished_one_of_its_cell(here):
    assert states(here)[1].seconds == folder_of(here).read_record()["seconds"]


def test_an_option_that_changed_is_named_with_both_values(here):
    found = first(here, plan_in(here, learning_rate=0.01))
    assert (found.state, found.trains) == ("stale", True)
    assert found.why == "option training.learning_rate 0.001, now 0.01"


def test_many_changes_are_counted(here):
    found = first(here, plan_in(here, learning_rate=0.01, batch_size=16, l2=0.1, lr_decay=0.5, lr_floor=0.0))
    assert found.why.endswith(" and 2 more")


def test_a_changed_file_of_the_code_is_named(here):
    folder = folder_of(here)
    record = folder.read_record()
    assert record["sources"]["models/capsnet.py"]
    sources = {**record["sources"], "models/capsnet.py": "0" * 8, "losses.py": "1" * 8}
    edit(folder, code="0" * 16, sources=sources, commit="abcdef0123456789+changes")
    assert first(here).why == "code losses.py; models/capsnet.py, trained at commit abcdef012345+changes"


def test_a_run_of_a_version_that_noted_no_files_says_at_which_commit_it_was_trained(here):
    folder = folder_of(here)
    record = {**folder.read_record(), "code": "0" * 16, "commit": "abcdef0123456789"}
    del record["sources"]
    folder.write_record(record)
    assert first(here).why == "code, trained at commit abcdef012345"


def test_other_training_images_are_noticed_by_status_and_by_training(here):
    record, run = folder_of(here).read_record(), plan_in(here).runs[0]
    fingerprint, options = record["data"]["fingerprint"], run.data.options.model_dump(mode="json")
    manifest, prepared = folder_of(here).manifest_path, {"name": "digits", "options": options}
    write_json(manifest, {**prepared, "train": {"fingerprint": fingerprint}})
    assert first(here).state == "done"
    write_json(manifest, {**prepared, "options": {"other": 1}, "train": {"fingerprint": "f" * 64}})
    assert first(here).state == "done"  # prepared before an option of the data changed
    write_json(manifest, {**prepared, "train": {"fingerprint": "f" * 64}})
    assert first(here).why == "data of digits: other training images than when it was trained"
    assert finished_record(folder_of(here), record) is None


def test_a_training_on_other_images_does_not_go_on_from_the_checkpoint(here, monkeypatch):
    run, before = plan_in(here).runs[0], folder_of(here).model_path.read_bytes()
    then = folder_of(here).read_record()["data"]["fingerprint"]
    folder_of(here).model_path.unlink()
    read = train_module.read_split

    def inverted(*arguments):
        raw = read(*arguments)
        return replace(raw, images=255 - raw.images)

    monkeypatch.setattr(train_module, "read_split", inverted)
    go(run, here / "results")
    assert folder_of(here).model_path.read_bytes() != before
    assert folder_of(here).read_record()["data"]["fingerprint"] != then


def test_a_lost_file_is_named(here):
    folder_of(here).model_path.unlink()
    assert (first(here).state, first(here).why) == ("stale", "lost: model.pt")


def test_a_protocol_that_was_not_measured_is_to_be_measured_without_training(here):
    folder_of(here).evaluation_path("reconstruction").unlink()
    found = first(here)
    assert (found.state, found.why) == ("not evaluated", "not measured: reconstruction")
    assert (found.trains, found.protocols, found.is_open) == (False, ("reconstruction",), True)


def test_a_measurement_of_other_code_is_to_be_made_again(here):
    folder, record = folder_of(here), folder_of(here).read_record()
    found = folder.read_evaluation("accuracy", record)
    assert found["code"] == code_version.evaluation_version(*_accuracy(here))
    folder.write_evaluation("accuracy", {**found, "code": "0" * 16})
    assert first(here).why == "options or code of the measurement changed: accuracy"


def _accuracy(here):
    plan = plan_in(here)
    return plan.runs[0], [plan.study.evaluations[0]]


def test_a_run_in_training_is_running_and_says_how_far_it_is(here):
    edit(folder_of(here), status="running")
    with folder_of(here).locked():
        found = first(here)
    assert (found.state, found.why) == ("running", "after epoch 2 of 2")


def test_an_interrupted_run_needs_the_rest_of_its_time(here):
    run = plan_in(here).runs[1]
    with pytest.raises(Stop):
        go(run, here / "results", reached=stop_after(1))
    folder = folder_of(here, seed=1)
    edit(folder, status="running")
    edit(folder_of(here), seconds=1000.0)
    found = states(here)[1]
    assert (found.state, found.why) == ("interrupted", "after epoch 1 of 2")
    assert 900 < found.seconds < 1000


def test_a_failed_run_says_what_failed(here):
    edit(folder_of(here), status="failed", problem="OSError: no space left\nand more")
    assert (first(here).state, first(here).why) == ("failed", "OSError: no space left")


def test_a_damaged_run_names_its_file_and_stops_nothing(here):
    folder_of(here).record_path.write_bytes(b"\xff\xfe")
    damaged, other = states(here)
    assert (damaged.state, damaged.trains) == ("damaged", True)
    assert "run.yaml: damaged" in damaged.why
    assert other.state == "missing"


def test_a_run_that_diverged_is_a_result(here):
    edit(folder_of(here), status="diverged")
    assert (first(here).state, first(here).is_open) == ("diverged", False)


def test_a_run_waits_for_the_one_that_it_is_matched_to(tmp_path):
    caps, cnn = matched_pair(tmp_path)
    leave_evaluated(cnn, tmp_path / "results", familiar_error=50.0)
    go(caps, tmp_path / "results")
    plan = load_plan(tmp_path / "study.yaml")
    found = {state.key: state for state in run_states(plan, tmp_path / "results")}
    assert found[cnn.key].trains  # by hand, so of no code
    assert (found[caps.key].state, found[caps.key].why) == ("stale", f"matched to {cnn.key}, which comes first")


def test_a_run_waits_for_the_one_before_in_a_chain_of_matches(tmp_path):
    matched_pair(tmp_path)
    path = tmp_path / "study.yaml"
    study = json.loads(path.read_text())
    cnn = study["variants"]["cnn"]
    study["variants"] = {"last": {**cnn, "training": {**cnn["training"], "match": "caps"}}, **study["variants"]}
    path.write_text(json.dumps(study))
    last, caps, _ = load_plan(path).runs
    leave_evaluated(caps, tmp_path / "results", familiar_error=50.0)
    go(last, tmp_path / "results")
    found = {state.key: state for state in run_states(load_plan(path), tmp_path / "results")}
    assert (found[last.key].state, found[last.key].why) == ("stale", f"matched to {caps.key}, which comes first")


def test_a_run_is_stale_when_the_one_that_it_is_matched_to_is_another(tmp_path):
    caps, cnn = matched_pair(tmp_path, cnn_epochs=3)
    results, plan = tmp_path / "results", load_plan(tmp_path / "study.yaml")

    def state() -> RunState:
        return next(each for each in run_states(plan, results) if each.key == caps.key)

    folder = go(cnn, results)[1]
    evaluate(cnn, results, Path("data"), ["accuracy", "familiar"])
    go(caps, results)
    assert "reconstruction" in next(each for each in run_states(plan, results) if each.key == cnn.key).protocols
    assert state().state == "not evaluated"  # what else is to be measured of the other run does not matter
    found = folder.read_evaluation("familiar", folder.read_record())
    folder.write_evaluation("familiar", {**found, "error": 99.0})
    assert state().why.endswith("% when it was matched, is 99.0 %")
    folder.evaluation_path("familiar").unlink()
    assert state().why == f"matched to {cnn.key}, which comes first"


def test_states_are_in_the_order_of_the_study(tmp_path):
    caps, cnn = matched_pair(tmp_path)
    plan = load_plan(tmp_path / "study.yaml")
    assert [state.key for state in run_states(plan, tmp_path / "results")] == [caps.key, cnn.key]


def test_the_files_behind_a_training_are_those_that_it_uses(tmp_path):
    em = code_version.training_sources(plan_of(tmp_path, options={"routing": "em", "loss": "spread"}).runs[0])
    dynamic = code_version.training_sources(plan_of(tmp_path).runs[0])
    assert "routing/em.py" in em and "routing/em.py" not in dynamic
    assert "routing/dynamic.py" in dynamic and "run/train.py" in dynamic
    assert not [file for file in dynamic if file.startswith(("analysis", "cli", "evaluation"))]
    assert dynamic["run/train.py"] == em["run/train.py"]


def test_a_damaged_evaluation_is_to_be_made_again(here):
    folder_of(here).evaluation_path("accuracy").write_text("{")
    assert first(here).protocols == ("accuracy",)
    assert "accuracy.json: damaged; delete it" in first(here).why


def test_lost_scores_are_to_be_measured_again(here):
    folder_of(here).predictions_path.unlink()
    assert (first(here).state, first(here).protocols) == ("not evaluated", ("accuracy", "familiar", "reconstruction"))


def test_a_run_without_run_yaml_says_how_to_make_it_again(here):
    folder_of(here).record_path.unlink()
    assert first(here).state == "damaged"
    assert first(here).why == "run.yaml is lost; the next call makes the run again, from its checkpoint"


def test_the_device_is_no_option_that_changed(here):
    assert first(here, plan_in(here, device="auto", threads=2)).why == "option training.threads 1, now 2"


def test_status_needs_no_readable_metrics(here):
    edit(folder_of(here), status="running")
    folder_of(here).metrics_path.write_text("")
    assert first(here).why == "before the end of its first epoch"
