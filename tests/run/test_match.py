"""Runs that stop where they match another one on the familiar test."""

import json
from pathlib import Path

import pytest
from small_runs import Stop, go, leave_evaluated, matched_pair, metrics, same_weights, stop_after, weights

from capsbench.data import read_split
from capsbench.errors import InputError, RunError
from capsbench.evaluation import evaluate
from capsbench.run import train as module
from capsbench.run.folder import RunFolder
from capsbench.run.match import matched_run, tolerance
from capsbench.run.train import train

NOWHERE = Path("nowhere")
LEARNING = {"epochs": 3, "learning_rate": 0.003}  # of 40 steps each; a look every 5


@pytest.fixture
def splits_read(monkeypatch) -> list[str]:
    """The splits that a training reads, in order."""
    splits = []
    read = module.read_split
    monkeypatch.setattr(module, "read_split", lambda data, root, split: splits.append(split) or read(data, root, split))
    return splits


def test_a_run_stops_at_the_first_look_that_matches_and_never_sees_the_novel_test(tmp_path, splits_read):
    caps, cnn = matched_pair(tmp_path, **LEARNING)
    whole, looks = [], []
    with pytest.MonkeyPatch.context() as patch:
        look = module.Goal.look
        patch.setattr(
            module.Goal, "look", lambda *arguments: look(*arguments) or looks.append(arguments[2].familiar_error)
        )
        leave_evaluated(cnn, tmp_path / "whole", 0.0)
        go(caps, tmp_path / "whole")
        whole, looks = looks, []
        goal = whole[10]
        leave_evaluated(cnn, tmp_path / "r", goal)
        splits_read.clear()
        status, folder = go(caps, tmp_path / "r")
    assert status == "ok"
    assert splits_read == ["train", "familiar"]
    record, rows = folder.read_record(), metrics(folder)
    allowed = tolerance(len(read_split(caps.data, NOWHERE, "familiar").labels), goal)
    first = next(number for number, error in enumerate(whole) if abs(error - goal) <= allowed)
    assert looks == whole[: first + 1]
    assert record["steps"] == 5 * len(looks) < 120
    assert record["match"] == {
        "run": cnn.key, "familiar_error": goal, "reached": True, "familiar_error_here": looks[-1],
        "overshoot": goal - looks[-1], "tolerance": allowed,
    }  # fmt: skip
    assert float(rows[-1]["familiar_error"]) == looks[-1]
    assert int(rows[-1]["step"]) == record["steps"]
    evaluated = evaluate(caps, tmp_path / "r", NOWHERE, ["accuracy", "familiar"])
    assert evaluated["familiar"]["error"] == record["match"]["familiar_error_here"]


@pytest.mark.parametrize(("every", "looks"), [(10, 5), (25, 2), (50, 1)])
def test_match_every_is_the_number_of_steps_between_looks_and_the_last_step_is_one(tmp_path, monkeypatch, every, looks):
    caps, cnn = matched_pair(tmp_path, steps=45, epochs=None, match_every=every)
    leave_evaluated(cnn, tmp_path / "r", 0.0)
    seen = []
    monkeypatch.setattr(module.Goal, "look", lambda self, model, progress: seen.append(1))
    go(caps, tmp_path / "r")
    assert len(seen) == looks


def test_an_error_that_is_never_reached_is_said(tmp_path):
    caps, cnn = matched_pair(tmp_path, steps=10, match_every=100)
    leave_evaluated(cnn, tmp_path / "r", 0.0)
    status, folder = go(caps, tmp_path / "r")
    found = folder.read_record()["match"]
    assert (status, found["reached"]) == ("ok", False)
    assert found["familiar_error_here"] == -found["overshoot"] > 0


def test_an_interrupted_run_stops_where_one_that_was_not_does(tmp_path):
    caps, cnn = matched_pair(tmp_path, **LEARNING)
    for name in ("whole", "torn"):
        leave_evaluated(cnn, tmp_path / name, 46.0)
    _, whole = go(caps, tmp_path / "whole")
    with pytest.raises(Stop):
        go(caps, tmp_path / "torn", reached=stop_after(1))
    _, torn = go(caps, tmp_path / "torn")
    assert len(metrics(whole)) > 1
    assert metrics(torn) == metrics(whole)
    assert same_weights(weights(torn), weights(whole))
    assert torn.read_record()["match"] == whole.read_record()["match"]
    torn.model_path.unlink()  # restored from the checkpoint, and not trained on
    assert go(caps, tmp_path / "torn", reached=stop_after(1))[0] == "ok"
    assert torn.read_record()["match"] == whole.read_record()["match"]


def test_a_run_is_finished_as_long_as_the_matched_error_is_the_same(tmp_path):
    caps, cnn = matched_pair(tmp_path, steps=10)
    leave_evaluated(cnn, tmp_path / "r", 1.0)
    trained = []
    go(caps, tmp_path / "r", reached=trained.append)
    folder = RunFolder.of(tmp_path / "r", caps.study, caps.key)
    assert folder.read_record()["steps"] == 10
    go(caps, tmp_path / "r", reached=trained.append)
    assert trained == [1]
    leave_evaluated(cnn, tmp_path / "r", 0.0)
    go(caps, tmp_path / "r", reached=trained.append)
    assert trained == [1, 1]  # afresh, not from the checkpoint of the other goal
    assert folder.read_record()["steps"] == 10


def problem(error: type[Exception], run, results) -> str:
    with pytest.raises(error) as caught:
        go(run, results)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_command_to_run_first_is_named(tmp_path):
    caps, cnn = matched_pair(tmp_path)
    found = problem(InputError, caps, tmp_path / "r")
    assert f"capsbench train STUDY {cnn.key}" in found and f"capsbench evaluate STUDY {cnn.key}" in found
    assert RunFolder.of(tmp_path / "r", caps.study, caps.key).read_record() is None  # as it was
    folder = leave_evaluated(cnn, tmp_path / "r", 50.0)
    folder.evaluation_path("familiar").unlink()
    found = problem(InputError, caps, tmp_path / "r")
    assert f"capsbench evaluate STUDY {cnn.key}" in found and "capsbench train" not in found


def test_what_another_training_of_the_matched_run_left_does_not_count(tmp_path):
    caps, cnn = matched_pair(tmp_path)
    folder = leave_evaluated(cnn, tmp_path / "r", 50.0)
    assert matched_run(caps, tmp_path / "r") == {"run": cnn.key, "familiar_error": 50.0}
    record = folder.read_record()
    folder.write_record(record | {"started": "2026-02-02T00:00:00Z"})
    assert "not evaluated" in problem(InputError, caps, tmp_path / "r")
    folder.write_record(record | {"digest": "of another configuration"})
    assert "not trained" in problem(InputError, caps, tmp_path / "r")
    folder.write_record(record | {"status": "failed"})
    assert "not trained" in problem(InputError, caps, tmp_path / "r")
    folder.write_record(record)
    folder.evaluation_path("familiar").write_text("{")
    assert "familiar.json: damaged" in problem(InputError, caps, tmp_path / "r")


def test_the_tolerance_is_a_tenth_of_a_point_but_for_small_tests_and_large_errors():
    assert [tolerance(images, 3.7) for images in (10_000, 1_000, 50)] == [0.1, 0.1, 2.0]
    assert tolerance(10_000, 40.0) == 1.0


def test_an_error_within_the_tolerance_is_reached_from_both_sides(tmp_path):
    caps, cnn = matched_pair(tmp_path, steps=10, match_every=100)
    results = tmp_path / "r"
    leave_evaluated(cnn, results, 0.0)
    here = go(caps, results)[1].read_record()["match"]["familiar_error_here"]
    images = len(read_split(caps.data, NOWHERE, "familiar").labels)
    for share, reached in ((0.9, True), (1.2, False), (-0.9, True), (-1.2, False)):
        apart = share * tolerance(images, here)
        leave_evaluated(cnn, results, here - apart)
        found = go(caps, results)[1].read_record()["match"]
        assert (found["reached"], found["overshoot"]) == (reached, pytest.approx(-apart))


def test_a_run_matched_to_one_that_never_left_chance_fails(tmp_path):
    caps, cnn = matched_pair(tmp_path)
    folder = leave_evaluated(cnn, tmp_path / "r", 50.0)
    folder.write_record(folder.read_record() | {"stuck_at_chance": True})
    assert "never left chance" in problem(RunError, caps, tmp_path / "r")


def test_a_run_matched_to_one_that_diverged_fails(tmp_path):
    caps, cnn = matched_pair(tmp_path)
    leave_evaluated(cnn, tmp_path / "r", 50.0, status="diverged")
    found = problem(RunError, caps, tmp_path / "r")
    assert caps.key in found and cnn.key in found and "diverged" in found
    record = RunFolder.of(tmp_path / "r", caps.study, caps.key).read_record()
    assert record["status"] == "failed"
    assert "diverged" in record["problem"]


def test_a_run_can_be_matched_to_one_that_is_really_trained(tmp_path):
    caps, cnn = matched_pair(tmp_path, cnn_epochs=6, steps=10)
    train(cnn, tmp_path / "r", NOWHERE, tracking=False)
    error = evaluate(cnn, tmp_path / "r", NOWHERE, ["accuracy", "familiar"])["familiar"]["error"]
    _, folder = go(caps, tmp_path / "r")
    assert folder.read_record()["match"]["familiar_error"] == error
    path = RunFolder.of(tmp_path / "r", cnn.study, cnn.key).evaluation_path("familiar")
    assert json.loads(path.read_text())["error"] == error
