"""The MLflow store, a view of the run folders: written while a run trains, brought up to date by `capsbench track`.

The only module that imports mlflow. Everything goes through one background thread, in batches, so that training never
waits for the store. A store that fails is reported once and then left alone. No telemetry leaves the machine.
"""

import csv
import hashlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from capsbench.registry import MODELS, flat_options
from capsbench.run.folder import RunFolder, write_whole
from capsbench.study import Plan, Run

log = logging.getLogger(__name__)

SECONDS_BETWEEN_WRITES = 5.0
SECONDS_TO_CLOSE = 30.0
_LARGEST_BATCH = 1000  # metrics, the limit of MLflow's API
_NOT_METRICS = {"epoch", "step"}

# before mlflow is imported
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# a server that is down must not hold a run up for the many minutes of the default
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")


def store_uri(results: Path) -> str:
    """Return the store: MLFLOW_TRACKING_URI, else an SQLite file in the results folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(results / "mlflow.db")


def sqlite_uri(file: Path) -> str:
    """Return the address of an SQLite store."""
    return f"sqlite:///{file.resolve()}"


class Tracker:
    """Live logging of one run, in a separate thread; `seconds` is the time that the calls to MLflow took."""

    def __init__(self, on_failure: str | None = None) -> None:
        self.seconds = 0.0
        self._on_failure = on_failure  # what to say, once, with a place for the problem
        self._queue: queue.SimpleQueue[list[dict[str, Any]] | dict[str, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @classmethod
    def none(cls) -> "Tracker":
        """Return a tracker that logs nothing."""
        return cls()

    @classmethod
    def start(cls, run: Run, record: Mapping[str, Any], results: Path) -> "Tracker":
        """Open the store in the background and log what follows."""
        tracker = cls(
            f"the MLflow store {store_uri(results)} fails (%s); the run continues without it, and "
            f"'capsbench track {run.study}' brings the store up to date later"
        )
        tracker._thread = threading.Thread(target=tracker._work, args=(run, dict(record), results), daemon=True)
        tracker._thread.start()
        return tracker

    def log(self, rows: list[dict[str, Any]]) -> None:
        """Hand over rows of metrics, one per epoch; returns at once."""
        if self._thread and rows:
            self._queue.put([dict(row) for row in rows])

    def close(self, record: Mapping[str, Any]) -> None:
        """Write what is left and the outcome; waits for a slow store only so long."""
        if self._thread:
            self._queue.put(dict(record))
            self._thread.join(SECONDS_TO_CLOSE)
            if self._thread.is_alive():
                self._complain(f"no answer for {SECONDS_TO_CLOSE:g} s")
            self._thread = None

    def _complain(self, problem: str) -> None:
        if self._on_failure is not None:
            log.warning(self._on_failure, problem)
            self._on_failure = None

    def _work(self, run: Run, record: dict[str, Any], results: Path) -> None:
        try:
            store = Store(results)
            clock = time.perf_counter()
            run_id = store.open_run(run, record)
            self.seconds += time.perf_counter() - clock
            outcome: dict[str, Any] | None = None
            while outcome is None:
                rows: list[dict[str, Any]] = []
                deadline = time.monotonic() + SECONDS_BETWEEN_WRITES
                while outcome is None and (left := deadline - time.monotonic()) > 0:
                    try:
                        item = self._queue.get(timeout=left)
                    except queue.Empty:
                        break
                    if isinstance(item, dict):
                        outcome = item
                    else:
                        rows += item
                clock = time.perf_counter()
                store.log_rows(run_id, rows)
                if outcome is not None:
                    store.close_run(run_id, outcome)
                self.seconds += time.perf_counter() - clock
        except Exception as error:  # whatever a store does must not stop a training
            self._complain(_first_line(error))


class Store:
    """The MLflow store, opened (and an SQLite one made) by one process at a time. Raises mlflow's errors."""

    def __init__(self, results: Path):
        from mlflow import MlflowClient

        for name in ("mlflow", "mlflow.store.db.utils", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self.results = results
        self.uri = store_uri(results)
        with self._lock():  # opening a store makes or migrates its tables, which two processes must not do at once
            file = results / "mlflow.db"
            if self.uri == sqlite_uri(file) and not file.exists():
                # made aside: a process that is killed half-way must not leave half a store under the final name
                write_whole(file, lambda aside: MlflowClient(sqlite_uri(aside)).search_experiments(max_results=1))
            self._client = MlflowClient(self.uri)
            self._client.search_experiments(max_results=1)

    def open_run(self, run: Run, record: Mapping[str, Any]) -> str:
        """Start the MLflow run of a training and log its parameters; an older one of the same key goes."""
        experiment_id = self._experiment(run.study)
        for old in self._find(experiment_id, run.key):
            self._client.delete_run(old.info.run_id)
        from mlflow.entities import Param

        created = self._client.create_run(
            experiment_id,
            start_time=_milliseconds(record["started"]),
            run_name=run.key,
            tags={
                "capsbench.key": run.key, "capsbench.digest": run.digest,
                "capsbench.started": record["started"], "commit": record["commit"],
            },
        )  # fmt: skip
        parameters = [Param(k, str(v)) for k, v in flat_parameters(run).items()]
        self._client.log_batch(created.info.run_id, params=parameters)
        return str(created.info.run_id)

    def log_rows(self, run_id: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Log rows of metrics, the epoch as MLflow's step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(name, float(value), now, int(row["epoch"]))
            for row in rows
            for name, value in row.items()
            if name not in _NOT_METRICS and value is not None
        ]
        for start in range(0, len(metrics), _LARGEST_BATCH):
            self._client.log_batch(run_id, metrics=metrics[start : start + _LARGEST_BATCH])

    def close_run(self, run_id: str, record: Mapping[str, Any]) -> None:
        """Log the outcome and end the run: FINISHED (with tag `status` ok or diverged) or FAILED."""
        from mlflow.entities import Metric, RunTag

        now = int(time.time() * 1000)
        metrics = [Metric("parameters", record["parameters"], now, 0)] if "parameters" in record else []
        tags = [RunTag("status", record["status"])]
        if problem := record.get("problem") or record.get("divergence"):
            tags.append(RunTag("problem", str(problem)))
        self._client.log_batch(run_id, metrics=metrics, tags=tags)
        ended = {"running": "KILLED", "failed": "FAILED"}.get(record["status"], "FINISHED")
        self._client.set_terminated(run_id, ended)

    def bring_up_to_date(self, run: Run) -> str:
        """Make the store agree with one run folder -> `absent`, `running`, `current` or `written`."""
        folder = RunFolder.of(self.results, run.study, run.key)
        record = folder.read_record()
        if record is None:
            return "absent"
        if record["status"] == "running":
            return "running"
        rows = read_metrics(folder)
        evaluated = {p.stem: json.loads(p.read_text()) for p in sorted(folder.path.glob("evaluations/*.json"))}
        evaluated = {k: v for k, v in evaluated.items() if v.get("training_started") == record["started"]}
        contents = json.dumps([record["started"], record["status"], rows, evaluated])
        signature = hashlib.sha256(contents.encode()).hexdigest()[:16]
        found = self._find(self._experiment(run.study), run.key)
        if [r.data.tags.get("capsbench.contents") for r in found] == [signature]:
            return "current"
        run_id = None
        if len(found) == 1 and self._holds(found[0], record, len(rows)):
            run_id = found[0].info.run_id  # logged live and whole; only the evaluations are new
        else:
            run_id = self.open_run(run, record)
            self.log_rows(run_id, rows)
            self.close_run(run_id, record)
        for protocol, result in evaluated.items():
            self.log_rows(run_id, [{"epoch": record.get("kept_epoch", 0), **_numbers(protocol, result)}])
        self._client.set_tag(run_id, "capsbench.contents", signature)
        return "written"

    def _holds(self, found: Any, record: Mapping[str, Any], rows: int) -> bool:
        if found.data.tags.get("capsbench.started") != record["started"] or "status" not in found.data.tags:
            return False
        if "capsbench.contents" in found.data.tags:  # evaluations of another time are in it
            return False
        logged = self._client.get_metric_history(found.info.run_id, "train_loss")
        return len(logged) == rows

    def _experiment(self, study: str) -> str:
        with self._lock():
            found = self._client.get_experiment_by_name(study)
            return found.experiment_id if found else self._client.create_experiment(study)

    def _find(self, experiment_id: str, key: str) -> list[Any]:
        return list(self._client.search_runs([experiment_id], f"tags.`capsbench.key` = '{key}'"))

    def _lock(self) -> Any:
        if not self.uri.startswith("sqlite:///"):
            return nullcontext()
        self.results.mkdir(parents=True, exist_ok=True)
        return FileLock(self.results / ".mlflow.lock")


def track_study(plan: Plan, results: Path) -> dict[str, int]:
    """Bring the store up to date with all run folders of a study -> how many runs were absent, written, ..."""
    store = Store(results)
    counts: dict[str, int] = {}
    for run in plan.runs:
        outcome = store.bring_up_to_date(run)
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


def read_metrics(folder: RunFolder) -> list[dict[str, Any]]:
    """Read metrics.csv: one row per epoch, numbers or None."""
    if not folder.metrics_path.exists():
        return []
    with folder.metrics_path.open(newline="") as file:
        return [{k: float(v) if v else None for k, v in row.items()} for row in csv.DictReader(file)]


def flat_parameters(run: Run) -> dict[str, Any]:
    """Return what runs are filtered and compared by: study, data set, variant, seed, routing, options, protocol."""
    flat: dict[str, Any] = {
        "study": run.study, "experiment": run.experiment, "data_set": run.data.name,
        "variant": run.variant, "label": run.label, "seed": run.seed, "model": run.model,
        "routing": MODELS[run.model].facts.get("routing", "none"), "routing.iterations": "none", "decoder": "none",
    }  # fmt: skip
    flat.update({name: "none" if value is None else value for name, value in flat_options(run.options).items()})
    for section in ("data", "training"):
        for key, value in getattr(run, section).model_dump(mode="json").items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            flat.update({f"{section}.{key}" + (f".{k}" if k else ""): v for k, v in inner})
    return flat


def _numbers(protocol: str, result: Mapping[str, Any]) -> dict[str, float]:
    numbers = {k: v for k, v in result.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {f"test_{k}" if protocol == "accuracy" else f"test_{protocol}_{k}": v for k, v in numbers.items()}


def _milliseconds(time_utc: str) -> int:
    return int(datetime.fromisoformat(time_utc).timestamp() * 1000)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__
