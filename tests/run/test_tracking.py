import json
import logging
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from capsbench.errors import InputError
from capsbench.run import tracking
from capsbench.run.folder import RunFolder, write_json
from capsbench.run.store import without_passwords
from capsbench.run.tracking import Store, Tracker, read_metrics, store_uri, track_study
from capsbench.run.train import train
from capsbench.study import load_plan

NOWHERE = Path("nowhere")  # the digits are embedded


@pytest.fixture
def plan(tmp_path):
    study = {
        "name": "tracked",
        "seeds": [0, 1, 2, 3],
        "training": {"epochs": 3, "batch_size": 32, "device": "cpu"},
        "experiments": {"digits": {"data": {"name": "digits", "train_images": 64, "validation_images": 50}}},
        "variants": {"caps": {"model": "capsnet", "options": {"conv_channels": 4, "primary_types": 1}}},
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    return load_plan(tmp_path / "study.yaml")


@pytest.fixture(scope="module")
def new_store(tmp_path_factory) -> Path:
    """Return an empty store: to make one takes seconds, to copy it none."""
    folder = tmp_path_factory.mktemp("store")
    Store(folder)
    return folder / "mlflow.db"


@pytest.fixture
def results(tmp_path, new_store) -> Path:
    """Return a folder of results with an empty store."""
    (tmp_path / "r").mkdir()
    shutil.copy(new_store, tmp_path / "r/mlflow.db")
    return tmp_path / "r"


@pytest.fixture(autouse=True)
def messages(caplog) -> None:
    caplog.set_level(logging.INFO, "capsbench")


def complaints(caplog) -> list[str]:
    """Return what this package, rather than MLflow itself, reported of the store."""
    entries = [entry for entry in caplog.records if entry.name.startswith("capsbench")]
    return [entry.getMessage() for entry in entries if "MLflow" in entry.getMessage()]


def logged(results, plan):
    from mlflow import MlflowClient

    client = MlflowClient(store_uri(results))
    experiment = client.get_experiment_by_name(plan.study.name)
    if experiment is None:
        return {}, client
    runs = client.search_runs([experiment.experiment_id], "tags.kind = 'seed'")
    keys = [r.data.tags["capsbench.key"] for r in runs]
    assert len(keys) == len(set(keys))
    return dict(zip(keys, runs, strict=True)), client


def curve(client, run, name):
    return [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]


def test_a_run_is_logged_whole_while_it_trains(plan, results, caplog):
    run = plan.runs[0]
    train(run, results, NOWHERE)
    assert caplog.messages
    assert complaints(caplog) == []
    runs, client = logged(results, plan)
    found = runs[run.key]
    rows = read_metrics(RunFolder.of(results, run.study, run.key))
    assert curve(client, found, "training/train_loss") == [(row["epoch"], row["train_loss"]) for row in rows]
    assert found.info.status == "FINISHED"
    assert found.data.tags["status"] == "ok"
    wanted = {
        "study": "tracked", "data_set": "digits", "variant": "caps", "seed": "0", "model": "capsnet",
        "routing": "dynamic", "routing.iterations": "3", "decoder": "fully_connected", "training.epochs": "3",
        "training.augmentation.shift": "2", "label": "caps",
    }  # fmt: skip
    assert wanted.items() <= found.data.params.items()


def test_metrics_arrive_before_the_run_ends(plan, results, monkeypatch):
    monkeypatch.setattr(tracking, "SECONDS_BETWEEN_WRITES", 0.05)
    run, seen = plan.runs[0], []

    def look(epoch):
        if epoch == 2:
            deadline = time.monotonic() + 30
            while not seen and time.monotonic() < deadline:
                runs, client = logged(results, plan)
                if run.key in runs:
                    seen.extend(curve(client, runs[run.key], "training/train_loss"))
                time.sleep(0.1)

    train(run, results, NOWHERE, reached=look)
    assert seen[0][0] == 1


@pytest.mark.slow
def test_four_at_once_on_a_fresh_store_lose_nothing(plan, tmp_path):
    command = [sys.executable, "-m", "capsbench", "train", str(plan.path)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    running = [
        subprocess.Popen(
            [*command, run.key, "--results", str(tmp_path / "r")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for run in plan.runs
    ]
    output = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4, output
    assert not [line for text in output for line in text.splitlines() if "MLflow" in line]
    runs, client = logged(tmp_path / "r", plan)
    assert set(runs) == {run.key for run in plan.runs}
    assert all(len(curve(client, run, "training/train_loss")) == 3 for run in runs.values())


def test_a_store_that_fails_is_reported_once_and_stops_nothing(plan, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert train(plan.runs[0], tmp_path / "r", NOWHERE) == "ok"
    (complaint,) = complaints(caplog)
    assert "'capsbench track tracked' brings the store up to date" in complaint
    assert "\n" not in complaint


@pytest.mark.slow
def test_a_store_that_disappears_stops_nothing_and_can_be_brought_up_to_date(plan, results, monkeypatch, caplog):
    monkeypatch.setattr(tracking, "SECONDS_BETWEEN_WRITES", 0.05)
    run = plan.runs[0]

    def vanish(epoch):
        time.sleep(0.5)
        if epoch == 2:
            (results / "mlflow.db").write_bytes(b"not a database any more")

    assert train(run, results, NOWHERE, reached=vanish) == "ok"
    assert len(complaints(caplog)) == 1
    (results / "mlflow.db").unlink()
    # in another process, as a person would: this one still holds the file that is gone
    command = [sys.executable, "-m", "capsbench", "track", str(plan.path), "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "3 absent, 1 written" in done.stdout
    with closing(sqlite3.connect(results / "mlflow.db")) as store:
        assert store.execute("select count(*) from metrics where key = 'training/train_loss'").fetchone() == (3,)


def test_track_adds_evaluations_once_and_then_has_nothing_to_do(plan, results):
    run = plan.runs[0]
    train(run, results, NOWHERE)
    live = logged(results, plan)[0][run.key].info.run_id
    folder = RunFolder.of(results, run.study, run.key)
    found = {"status": "ok", "error": 12.5, "images": 539, "training_started": folder.read_record()["started"]}
    write_json(folder.evaluation_path("accuracy"), found)
    assert track_study(plan, results)["written"] == 1
    assert track_study(plan, results)["current"] == 1
    runs, client = logged(results, plan)
    assert runs[run.key].info.run_id == live  # the run that was logged live is kept
    assert runs[run.key].data.metrics["test_error"] == 12.5
    assert next(iter(runs[run.key].data.metrics)) == "test_error"  # the compare page draws the first
    assert len(curve(client, runs[run.key], "training/train_loss")) == 3


def test_track_sees_that_an_evaluation_has_changed(plan, results):
    run = plan.runs[0]
    train(run, results, NOWHERE)
    folder = RunFolder.of(results, run.study, run.key)
    for error in (66.0, 4.0):
        found = {"status": "ok", "error": error, "training_started": folder.read_record()["started"]}
        write_json(folder.evaluation_path("accuracy"), found)
        assert track_study(plan, results)["written"] == 1
    runs, client = logged(results, plan)
    unknown, known = curve(client, runs[run.key], "test_error")
    assert (unknown[0], math.isnan(unknown[1]), known) == (0, True, (0, 4.0))


def test_a_store_that_does_not_answer_is_reported_and_waited_for_only_so_long(plan, results, monkeypatch, caplog):
    monkeypatch.setattr(tracking, "SECONDS_TO_CLOSE", 0.2)
    monkeypatch.setattr(Store, "open_run", lambda *arguments: time.sleep(60))
    record = {"started": "2026-01-01T00:00:00Z", "commit": "x"}
    tracker = Tracker.start(plan.runs[0], record, results)
    clock = time.perf_counter()
    tracker.close({"status": "ok"})
    assert time.perf_counter() - clock < 30
    (complaint,) = complaints(caplog)
    assert re.search(r"no answer for [\d.]+ s", complaint)  # 0.2 s, and more where the processor is busy


def test_a_server_that_never_answered_is_waited_for_a_second(plan, results, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(Store, "__init__", lambda *arguments: time.sleep(60))
    tracker = Tracker.start(plan.runs[0], {"started": "2026-01-01T00:00:00Z", "commit": "x"}, results)
    clock = time.perf_counter()
    tracker.close({"status": "ok"})
    assert 0.9 < time.perf_counter() - clock < 30


def test_a_damaged_store_costs_no_minutes(plan, results, caplog):
    (results / "mlflow.db").write_bytes(b"no database" * 1000)
    clock = time.perf_counter()
    assert train(plan.runs[0], results, NOWHERE) == "ok"
    assert time.perf_counter() - clock < 60  # 8 s on a busy machine; with MLflow's own retries 100 s
    assert len(complaints(caplog)) == 1


def test_after_an_outage_the_run_is_in_the_store_whole_and_once(plan, results, monkeypatch, caplog):
    monkeypatch.setattr(tracking, "SECONDS_BETWEEN_WRITES", 0.05)
    log_rows, asked = Store.log_rows, []

    def fail_for_a_while(store, run_id, rows, started=None):
        asked.append(len(rows))
        log_rows(store, run_id, rows, started)  # what was written before the answer was lost
        if len(asked) in (2, 3):
            raise ConnectionError("the server is away")

    monkeypatch.setattr(Store, "log_rows", fail_for_a_while)
    run = plan.runs[0]
    assert train(run, results, NOWHERE, reached=lambda epoch: time.sleep(0.5)) == "ok"
    assert len(complaints(caplog)) == 1
    runs, client = logged(results, plan)  # one run per key
    assert runs[run.key].info.status == "FINISHED"
    assert [step for step, _ in curve(client, runs[run.key], "training/train_loss")] == [1, 2, 3]


def test_passwords_are_not_shown():
    masked = "postgresql://ada:***@host/db"
    assert without_passwords("postgresql://ada:s3:cr@t@host/db") == masked
    assert without_passwords("(psycopg2) could not connect to postgresql://ada:secret@host/db now").endswith(
        f"to {masked} now"
    )
    assert without_passwords("http://ada:pa/ss@h/db") == "http://ada:***@h/db"
    assert without_passwords("postgresql://h/db?user=ada&password=secret&ssl=1") == (
        "postgresql://h/db?user=ada&password=***&ssl=1"
    )
    for plain in ("sqlite:////work/a@b/mlflow.db", "http://host:5000", "http://ada@host"):
        assert without_passwords(plain) == plain


def test_no_message_has_the_password(plan, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ada:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    train(plan.runs[0], tmp_path / "r", NOWHERE)
    (complaint,) = complaints(caplog)
    assert "http://ada:***@127.0.0.1:9" in complaint
    assert "secret" not in caplog.text


def test_an_experiment_that_was_deleted_is_named_with_what_to_do(plan, results):
    store = Store(results)
    identity = store.experiment(plan.study.name)
    store.client.delete_experiment(identity)
    with pytest.raises(InputError, match="the experiment 'tracked' was deleted in sqlite:") as caught:
        Store(results).experiment(plan.study.name)
    advice = re.search(r"'(MLFLOW_TRACKING_URI=\S+ mlflow [^']+)' brings it back", str(caught.value))[1]
    here = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(advice, shell=True, check=True, env=here, capture_output=True)
    assert Store(results).experiment(plan.study.name) == identity


def test_an_experiment_that_another_run_made_meanwhile_is_taken(plan, results):
    first, second = Store(results), Store(results)
    find, looked = second.client.get_experiment_by_name, []  # the first look is before the other one made it
    second.client.get_experiment_by_name = lambda name: looked.append(name) if not looked else find(name)
    made = first.experiment(plan.study.name)
    assert second.experiment(plan.study.name) == made
    assert looked == [plan.study.name]


def test_a_store_that_was_being_made_when_its_process_died_is_made_anew(plan, tmp_path):
    (tmp_path / "r").mkdir()
    half = tmp_path / f"r/.mlflow.db.{2**22 + 1}.part"  # above the largest number that Linux gives a process
    half.write_bytes(b"half a store")
    Store(tmp_path / "r")
    assert half.exists()  # its process may be another machine's
    os.utime(half, (time.time() - 100, time.time() - 100))
    Store(tmp_path / "r")
    assert not half.exists()
    train(plan.runs[0], tmp_path / "r", NOWHERE)
    assert set(logged(tmp_path / "r", plan)[0]) == {plan.runs[0].key}


def test_training_again_replaces_the_run(plan, results):
    run = plan.runs[0]
    for _ in range(2):
        train(run, results, NOWHERE, again=True)
    runs, client = logged(results, plan)
    assert len(runs) == 1
    assert len(curve(client, runs[run.key], "training/train_loss")) == 3


def test_failed_and_diverged_runs_are_told_apart(plan, results):
    for run, status in zip(plan.runs, ("failed", "diverged"), strict=False):
        RunFolder.of(results, run.study, run.key).write_record(
            {"status": status, "digest": run.digest, "started": "2026-01-01T00:00:00Z", "commit": "x"}
        )
    track_study(plan, results)
    runs, _ = logged(results, plan)
    assert [runs[r.key].info.status for r in plan.runs[:2]] == ["FAILED", "FINISHED"]
    assert [runs[r.key].data.tags["status"] for r in plan.runs[:2]] == ["failed", "diverged"]


def test_no_telemetry():
    code = "import capsbench.run.tracking, mlflow.telemetry.utils as u; print(u.is_telemetry_disabled())"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "True"


def test_logging_waits_for_nothing(plan, results, monkeypatch):
    logged_all, opened, open_run = threading.Event(), [], Store.open_run

    def late(*arguments):
        opened.append(logged_all.wait(60))
        return open_run(*arguments)

    monkeypatch.setattr(Store, "open_run", late)
    record = {"started": "2026-01-01T00:00:00Z", "commit": "x"}
    tracker = Tracker.start(plan.runs[0], record, results)
    for epoch in range(100):
        tracker.log([{"epoch": epoch, "loss": 1.0}])
    logged_all.set()
    tracker.close({"status": "ok"})
    runs, client = logged(results, plan)
    assert len(curve(client, runs[plan.runs[0].key], "training/loss")) == 100
    assert opened == [True]  # the store was opened after all points, not after a minute


def test_the_tracker_that_does_nothing_makes_no_store(plan, tmp_path):
    train(plan.runs[0], tmp_path / "r", NOWHERE, tracking=False)
    assert not (tmp_path / "r/mlflow.db").exists()


def test_one_damaged_run_is_said_and_the_others_are_tracked(plan, results, caplog):
    for run in plan.runs[:2]:
        record = {"status": "failed", "digest": run.digest, "started": "2026-01-01T00:00:00Z", "commit": "x"}
        RunFolder.of(results, run.study, run.key).write_record(record)
    path = RunFolder.of(results, plan.study.name, plan.runs[0].key).record_path
    path.write_bytes(b"\xff\xfe")
    assert track_study(plan, results) == {"absent": 2, "damaged": 1, "written": 1}
    assert f"{path}: damaged; delete the folder and train the run again" in caplog.messages
    assert set(logged(results, plan)[0]) == {plan.runs[1].key}


def test_two_at_once_write_each_run_once(plan, results):
    for run in plan.runs[:2]:
        train(run, results, NOWHERE, tracking=False)
    counts: list[dict[str, int]] = []
    threads = [threading.Thread(target=lambda: counts.append(track_study(plan, results))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found.get("written", 0) for found in counts) == [0, 2]
    keys = [
        run.data.tags["capsbench.key"]
        for run in Store(results).all_runs(plan.study.name)
        if "capsbench.key" in run.data.tags
    ]
    assert sorted(keys) == sorted(run.key for run in plan.runs[:2])
