import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
import yaml
from small_runs import Stop, go, metrics, run_of, same_weights, stop_after, weights

from capsbench.run import record
from capsbench.run.folder import RunFolder

# all that draws random numbers or keeps state: dropout, augmentation, batch norm, the optimizer, early stopping
STATEFUL = {
    "capsnet": {"options": {"decoder": {"dropout": 0.5}}, "weight_decay": 0.01, "early_stopping": 3,
                "augmentation": {"shift": 2, "rotation": 10, "scale": 0.1, "cutout": 4}},
    "cnn_matched": {"options": {"dropout": 0.5}, "warmup_steps": 5, "gradient_clip": 1.0, "l2": 1e-4},
}  # fmt: skip
LENGTHS = {"capsnet": {"steps": 11}, "cnn_matched": {"epochs": 4, "schedule": "scaled"}}  # 3 steps make an epoch


@pytest.fixture(autouse=True)
def messages(caplog) -> None:
    caplog.set_level(logging.INFO, "capsbench")


@pytest.mark.parametrize("model", list(STATEFUL))
@pytest.mark.parametrize("stop", [1, 3, 4])
def test_an_interrupted_run_ends_with_the_weights_of_one_that_was_not(tmp_path, caplog, model, stop):
    run = run_of(tmp_path, model, **LENGTHS[model], **STATEFUL[model])
    _, whole = go(run, tmp_path / "whole")
    with pytest.raises(Stop):
        go(run, tmp_path / "torn", reached=stop_after(stop))
    torn = RunFolder.of(tmp_path / "torn", run.study, run.key)
    assert torn.read_record()["status"] == "failed"
    assert torn.checkpoint_path.exists()
    caplog.clear()
    assert go(run, tmp_path / "torn")[0] == "ok"
    assert f"continues after epoch {stop}" in caplog.messages[0]
    assert metrics(torn) == metrics(whole)
    assert same_weights(weights(torn), weights(whole))


def test_where_checkpoints_are_rare_a_run_starts_where_the_last_one_was(tmp_path, monkeypatch):
    """As on a GPU: the second and third epoch end within half a minute of the first one's checkpoint."""
    run = run_of(tmp_path, "cnn_matched", epochs=4)
    _, whole = go(run, tmp_path / "whole")
    clock = iter([0.0, 31.0, 31.0, 40.0, 50.0])
    saver = SimpleNamespace(perf_counter=lambda: next(clock))
    monkeypatch.setattr("capsbench.run.checkpoint.SECONDS_BETWEEN", {"cpu": 30.0})
    monkeypatch.setattr("capsbench.run.checkpoint.time", saver)
    with pytest.raises(Stop):
        go(run, tmp_path / "torn", reached=stop_after(3))
    torn = RunFolder.of(tmp_path / "torn", run.study, run.key)
    assert torch.load(torn.checkpoint_path, weights_only=True)["progress"]["epoch"] == 1
    monkeypatch.setattr("capsbench.run.checkpoint.time", time)
    assert go(run, tmp_path / "torn")[0] == "ok"
    assert metrics(torn) == metrics(whole) and same_weights(weights(torn), weights(whole))


@pytest.mark.slow
def test_a_killed_process_continues_too(tmp_path):
    run = run_of(tmp_path, epochs=200)
    command = [sys.executable, "-m", "capsbench", "train", str(tmp_path / "study.yaml"), run.key]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen([*command, "--results", str(tmp_path / "r")], env=environment, stdout=subprocess.DEVNULL)
    folder = RunFolder.of(tmp_path / "r", run.study, run.key)
    deadline = time.monotonic() + 60
    while not folder.checkpoint_path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert folder.read_record()["status"] == "running"
    saved = torch.load(folder.checkpoint_path, weights_only=True)  # whole, whenever the kill came
    reached = saved["progress"]["epoch"]
    assert 1 <= reached < 200
    (tmp_path / "short").mkdir()
    short = run_of(tmp_path / "short", epochs=reached + 2)
    saved["identity"]["digest"] = short.digest  # a shorter run of the same protocol, to end the test early
    torch.save(saved, folder.checkpoint_path)
    status, _ = go(short, tmp_path / "r")
    _, whole = go(short, tmp_path / "whole")
    assert status == "ok"
    assert metrics(folder) == metrics(whole)
    assert same_weights(weights(folder), weights(whole))


@pytest.mark.parametrize("damage", ["torn", "another run's", "other code's", "a model's"])
def test_a_checkpoint_that_is_torn_or_of_another_run_or_code_is_not_used(tmp_path, damage, monkeypatch, caplog):
    run = run_of(tmp_path)
    folder = RunFolder.of(tmp_path / "r", run.study, run.key)
    first = run_of(tmp_path, learning_rate=0.01) if damage == "another run's" else run
    with pytest.raises(Stop):
        go(first, tmp_path / "r", reached=stop_after(1))
    if damage == "torn":
        content = folder.checkpoint_path.read_bytes()
        folder.checkpoint_path.write_bytes(content[: len(content) // 2])
    if damage == "a model's":
        torch.save({"weight": torch.zeros(3)}, folder.checkpoint_path)
    if damage == "other code's":
        monkeypatch.setattr(record, "training_version", lambda run: "another version")
    caplog.clear()
    go(run, tmp_path / "r")
    assert "starts afresh" in caplog.messages[0]
    _, whole = go(run, tmp_path / "whole")
    assert same_weights(weights(folder), weights(whole))


def test_a_second_trainer_waits_and_finds_the_run_done(tmp_path, caplog):
    run = run_of(tmp_path)
    statuses, trained = [], []
    second = threading.Thread(
        target=lambda: statuses.append(go(run, tmp_path / "r", reached=trained.append)[0]), name="second"
    )

    def of_the_second() -> list[str]:
        return [entry.getMessage() for entry in caplog.records if entry.threadName == "second"]

    def meet(epoch):
        if epoch == 1:
            second.start()
            deadline = time.monotonic() + 30
            while not of_the_second() and time.monotonic() < deadline:
                time.sleep(0.01)

    _, folder = go(run, tmp_path / "r", reached=meet)
    second.join(30)
    waiting, finished = of_the_second()
    assert "another process" in waiting and "waiting" in waiting
    assert "already finished (ok)" in finished
    assert trained == []
    assert statuses == ["ok"]
    assert same_weights(weights(folder), weights(go(run, tmp_path / "whole")[1]))


def test_a_finished_run_whose_files_were_taken_away_is_restored_and_not_trained_again(tmp_path):
    run = run_of(tmp_path, early_stopping=1, epochs=5)
    _, folder = go(run, tmp_path / "r")
    before = weights(folder), metrics(folder), folder.read_record()["kept_epoch"]
    folder.model_path.unlink()  # as Snakemake does before it runs a job again
    folder.metrics_path.unlink()
    trained = []
    assert go(run, tmp_path / "r", reached=trained.append)[0] == "ok"
    assert trained == []
    assert same_weights(weights(folder), before[0])
    assert (metrics(folder), folder.read_record()["kept_epoch"]) == before[1:]


def test_a_new_training_leaves_no_results_of_an_old_one(tmp_path):
    old = run_of(tmp_path, learning_rate=0.01)
    _, folder = go(old, tmp_path / "r")
    folder.predictions_path.write_bytes(b"old")
    folder.evaluation_path("accuracy").parent.mkdir()
    folder.evaluation_path("accuracy").write_text("{}")
    go(run_of(tmp_path), tmp_path / "r")
    assert not folder.predictions_path.exists()
    assert not folder.evaluation_path("accuracy").exists()


def test_run_yaml_is_readable_yaml_with_a_status_at_every_moment(tmp_path):
    run = run_of(tmp_path)
    seen = []

    def look(epoch):
        seen.append(
            yaml.safe_load((RunFolder.of(tmp_path / "r", run.study, run.key).record_path).read_text())["status"]
        )

    go(run, tmp_path / "r", reached=look)
    assert seen == ["running"] * 3


KILLS = 6


@pytest.mark.slow
def test_a_series_of_kills_changes_nothing(tmp_path):
    """At moments drawn from a fixed seed, from before the first checkpoint to the middle of a write."""
    run, rng = run_of(tmp_path, "cnn_matched", epochs=60), random.Random(0)
    study = tmp_path / "study.yaml"
    study.write_text(study.read_text()[:-1] + ', "tracking": false}')
    folder = RunFolder.of(tmp_path / "r", run.study, run.key)
    command = [sys.executable, "-m", "capsbench", "train", str(study), run.key]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    reached = 0
    for number in range(KILLS):
        before = written(folder.checkpoint_path)
        process = subprocess.Popen(
            [*command, "--results", str(tmp_path / "r")], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        if reached:
            assert f"continues after epoch {reached}" in process.stdout.readline()
        watched = folder.checkpoint_path if number else folder.record_path
        deadline = time.monotonic() + 60
        while written(watched) in (0, before) and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
        process.kill()
        process.communicate()
        record = folder.read_record()  # whole, whenever the kill came
        assert record is not None and record["status"] in ("running", "ok")
        if folder.checkpoint_path.exists():
            saved = torch.load(folder.checkpoint_path, weights_only=True)["progress"]
            assert saved["epoch"] >= reached
            reached = saved["epoch"]
            assert len(saved["rows"]) == reached
        if folder.metrics_path.exists():
            assert 0 <= reached - len(metrics(folder)) <= 1  # written after the checkpoint
        if record["status"] == "ok":
            break
    assert reached
    assert go(run, tmp_path / "r")[0] == "ok"
    _, whole = go(run, tmp_path / "whole")
    assert metrics(folder) == metrics(whole)
    assert same_weights(weights(folder), weights(whole))
    assert not list((tmp_path / "r").rglob(".*.part"))


def written(path) -> int:
    """When a file was written to; 0 where there is none."""
    return path.stat().st_mtime_ns if path.exists() else 0
