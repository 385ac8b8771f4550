"""An MLflow server in front of PostgreSQL, as several machines share it: what is written is in it, point for point."""

import json
import multiprocessing
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from capsbench.run import tracking
from capsbench.run.folder import RunFolder
from capsbench.run.tracking import Store, Tracker, read_metrics, track_study
from capsbench.study import Plan, load_plan

WRITERS, POINTS, EPOCHS = 8, 2000, 250
COLUMNS = ["train_loss", *(f"column_{number}" for number in range(1, POINTS // EPOCHS))]
BINARIES = max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), default=None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARIES is None, reason="no PostgreSQL in /usr/lib/postgresql"),
    pytest.mark.skipif(find_spec("psycopg2") is None, reason="no psycopg2, MLflow's driver of PostgreSQL"),
]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Cluster:
    """A PostgreSQL of its own on loopback. It refuses to run as root, so that root runs it as `postgres`."""

    def __init__(self, folder: Path):
        assert BINARIES is not None
        self.folder, self.port, self.binaries = folder, free_port(), BINARIES.parent
        self.user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.getuid() == 0 else {}
        if self.user:
            shutil.chown(folder, "postgres", "postgres")
        self.run("initdb", "-D", "data", "-U", "mlflow", "--auth=trust", "--no-sync")
        self.start()
        self.run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "mlflow", "mlflow")

    @property
    def address(self) -> str:
        return f"postgresql://mlflow@127.0.0.1:{self.port}/mlflow"

    def run(self, name: str, *arguments: str) -> None:
        command = [self.binaries / name, *arguments]
        subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.DEVNULL, timeout=60, **self.user)

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        self.run("pg_ctl", "-D", "data", "-w", "-l", "log", "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        self.run("pg_ctl", "-D", "data", "-w", "-m", mode, "stop")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    if os.getuid() == 0 and "postgres" not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip("root runs no PostgreSQL, and there is no user postgres")
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:  # tmp_path is closed to other users
        made = Cluster(Path(folder))
        yield made
        made.stop("immediate")


@pytest.fixture
def server(cluster, tmp_path) -> Iterator[str]:
    """The address of `mlflow server`, as docs/mlflow.md starts it."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", cluster.address, "--artifacts-destination", str(tmp_path / "artifacts")]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not answers(address):
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "server.log").read_text()[-2000:]
            time.sleep(0.2)
        yield address
    finally:
        os.killpg(
            process.pid, signal.SIGKILL
        )  # the server and its workers, which take half a minute to end by themselves
        process.wait(20)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as response:
            return response.status == 200
    except OSError:
        return False


@pytest.fixture
def plan(tmp_path) -> Plan:
    study = {
        "name": "shared",
        "seeds": list(range(WRITERS)),
        "experiments": {"digits": {"data": {"name": "digits"}}},
        "variants": {"cnn": {"model": "cnn_matched"}},
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    return load_plan(tmp_path / "study.yaml")


def write_run(path: Path, number: int, begun, go_on) -> None:
    """Log one run of the study live, as a training does: half before the database goes, half after."""
    tracking.SECONDS_BETWEEN_WRITES = 0.2
    if number % 2:  # MLflow's own retries bridge a short outage; every second writer has to by itself
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    plan = load_plan(path)
    run, results = plan.runs[number], path.parent / "results"
    folder = RunFolder.of(results, run.study, run.key)
    record = {"status": "running", "digest": run.digest, "started": "2026-01-01T00:00:00Z", "commit": "x"}
    rows = [
        {"epoch": epoch, **{name: number + epoch / 7 + place / 3 for place, name in enumerate(COLUMNS)}}
        for epoch in range(1, EPOCHS + 1)
    ]
    folder.write_record(record)
    tracker = Tracker.start(run, record, results)
    for epoch, row in enumerate(rows, 1):
        tracker.log([row])
        time.sleep(0.01)
        if epoch == EPOCHS // 2:
            deadline = time.monotonic() + 60
            while not tracker._answers and time.monotonic() < deadline:  # the run is open and has points
                time.sleep(0.05)
            begun.release()
            go_on.wait(60)
    record |= {"status": "ok", "finished": "2026-01-01T00:10:00Z"}
    folder.write_metrics(rows)
    folder.write_record(record)
    tracker.close(record)


def points(store: Store, run_id: str) -> dict[str, list[tuple[int, float]]]:
    """What the store has of the curves of a run."""
    found = {}
    for name in COLUMNS:
        history = store.client.get_metric_history(run_id, f"training/{name}")
        found[name] = [(point.step, point.value) for point in history]
    return found


def test_eight_writers_and_a_restart_of_the_database_lose_no_point(cluster, server, plan, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mlflow", "capsbench.run.tracking"])  # imported once for all writers
    begun, go_on = context.Semaphore(0), context.Event()
    writers = [
        context.Process(target=write_run, args=(tmp_path / "study.yaml", number, begun, go_on))
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    assert all(begun.acquire(timeout=60) for _ in writers)
    cluster.stop("immediate")  # as after a power loss
    go_on.set()
    time.sleep(1)  # the writers meet a database that is away
    cluster.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0] * WRITERS

    results = tmp_path / "results"
    counts = track_study(plan, results)
    assert counts.keys() <= {"written", "current"} and sum(counts.values()) == WRITERS
    assert track_study(plan, results) == {"current": WRITERS}
    store = Store(results)
    seeds = [run for run in store.all_runs(plan.study.name) if run.data.tags["kind"] == "seed"]
    assert {run.data.tags["capsbench.key"] for run in seeds} == {run.key for run in plan.runs}
    assert len(seeds) == WRITERS
    for found in seeds:
        rows = read_metrics(RunFolder.of(results, plan.study.name, found.data.tags["capsbench.key"]))
        expected = {name: [(row["epoch"], row[name]) for row in rows] for name in COLUMNS}
        assert sum(map(len, expected.values())) == POINTS
        assert points(store, found.info.run_id) == expected
        assert found.info.status == "FINISHED"
