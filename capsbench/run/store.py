"""The MLflow store: where it is, and how runs are written to it. No telemetry leaves the machine.

One of the two modules that import mlflow, and that only when a store is opened; the other is
capsbench.run.store_model.
"""

import functools
import getpass
import json
import logging
import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from capsbench.errors import InputError
from capsbench.run import store_contents as contents
from capsbench.run.folder import sweep, write_whole
from capsbench.study import Run

_LARGEST_BATCH = 900  # of metrics; MLflow's API takes 1000 metrics, parameters and tags together
_MOST_PARAMETERS = 100
_PAGE = 1000

# before mlflow is imported
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
# a server that is down must not hold a run up for the many minutes of the default
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")


def load_mlflow() -> None:
    """Import MLflow, which takes a second or more, before anything is asked of a store."""
    import mlflow  # noqa: F401


def store_uri(results: Path) -> str:
    """Return the store: MLFLOW_TRACKING_URI, else an SQLite file in the results folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_uri(results / "mlflow.db")


def without_passwords(text: str) -> str:
    """Return a text, such as the address of a store or a message that has it, with passwords as ***."""
    hidden = re.sub(r"://([^\s@:/]*):[^\s]*@", r"://\1:***@", text)
    return re.sub(r"((?:password|passwd|pwd|token|secret)=)[^&\s]+", r"\1***", hidden, flags=re.IGNORECASE)


def sqlite_uri(file: Path) -> str:
    """Return the address of an SQLite store."""
    return f"sqlite:///{file.resolve()}"


class Store:
    """The MLflow store, opened (and an SQLite one made) by one process at a time. Raises mlflow's errors."""

    def __init__(self, results: Path):
        from mlflow import MlflowClient
        from mlflow.store.db import utils

        utils.MAX_RETRY_COUNT = 1  # a damaged file or a server that is not there is tried for two minutes otherwise
        for name in ("mlflow", "mlflow.store.db.utils", "alembic"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self.results = results
        self.uri = store_uri(results)
        self._experiments: dict[str, str] = {}
        self._file_lock = FileLock(results / ".mlflow.lock") if self.uri.startswith("sqlite:///") else None
        with self._lock():  # opening a store makes or migrates its tables, which two processes must not do at once
            file = results / "mlflow.db"
            sweep(results, f".{file.name}.*.part")  # once there is a store, none is made aside that would do it
            if self.is_in_results and not file.exists():
                # made aside: a process that is killed half-way must not leave half a store under the final name
                write_whole(file, lambda aside: MlflowClient(sqlite_uri(aside)).search_experiments(max_results=1))
            self.client: Any = MlflowClient(self.uri)
            self.client.search_experiments(max_results=1)
        if self._file_lock is not None:
            self.client = _OneAtATime(self.client, self._file_lock)

    @property
    def is_in_results(self) -> bool:
        """Tell whether it is the file in the folder of results, which no other folder logs to."""
        return self.uri == sqlite_uri(self.results / "mlflow.db")

    # Experiments and what is in them

    def experiment(self, study: str) -> str:
        """Return the id of a study's experiment, made if there is none."""
        if study not in self._experiments:
            with self._lock():
                found = self.client.get_experiment_by_name(study)
                if found is not None and found.lifecycle_stage == "deleted":
                    store = without_passwords(self.uri)
                    raise InputError(
                        f"the experiment '{study}' was deleted in {store}; 'MLFLOW_TRACKING_URI={store} mlflow "
                        f"experiments restore -x {found.experiment_id}' brings it back, 'mlflow gc --backend-store-uri "
                        f"{store}' removes it for good"
                    )
                self._experiments[study] = found.experiment_id if found else self._new_experiment(study)
        return self._experiments[study]

    def find(self, study: str, tag: str, value: str) -> list[Any]:
        """Return the runs of a study with a tag."""
        return list(self.client.search_runs([self.experiment(study)], f"tags.`{tag}` = '{value}'"))

    def all_runs(self, study: str) -> list[Any]:
        """Return all runs of a study."""
        found: list[Any] = []
        token = None
        while True:
            page = self.client.search_runs([self.experiment(study)], max_results=_PAGE, page_token=token)
            found += page
            if not (token := page.token):
                return found

    def describe_study(self, study: str, note: str, views: Mapping[str, str], run_id: str | None = None) -> None:
        """Give the experiment its description and its saved views; views of an older plan go.

        run_id: of the run of the study, which has tables, plots and report; None where there is none.
        """
        identity = self.experiment(study)
        tags = self.client.get_experiment(identity).tags
        shows = [contents.study_link(identity, run_id)] if run_id else []
        links = ", ".join(filter(None, [*shows, contents.view_links(identity, views)]))
        wanted = {"mlflow.note.content": f"{links}\n\n{note}".strip(), **views}
        for key, value in wanted.items():
            if tags.get(key) != value:
                self.client.set_experiment_tag(identity, key, value)
        for key in tags:
            if contents.is_view(key) and key not in wanted:
                self.client.delete_experiment_tag(identity, key)

    # Runs

    def open_run(self, run: Run, record: Mapping[str, Any]) -> str:
        """Start the MLflow run of a training and log its parameters; an older one of the same key goes.

        Its first metric is the test error, NaN until the run is evaluated.
        """
        for old in self.find(run.study, "capsbench.key", run.key):
            self.delete(old)
        tags = {**contents.run_tags(run, record), "mlflow.parentRunId": self._variant(run, record["started"])}
        started = milliseconds(record["started"])
        run_id = self.create(run.study, run.key, tags, started)
        self.client.log_metric(run_id, contents.FIRST, math.nan, started, 0)
        self._log_parameters(run_id, contents.flat_parameters(run))
        return run_id

    def open_variant(self, run: Run, started: str) -> str:
        """Start the MLflow run of an experiment and variant, of which `run` is a seed."""
        name = cell_key(run)
        tags = {**contents.variant_tags(run), "capsbench.cell": name}
        run_id = self.create(run.study, name, tags, milliseconds(started))
        parameters = contents.flat_parameters(run)
        del parameters["seed"]
        self._log_parameters(run_id, parameters)
        return run_id

    def create(self, study: str, name: str, tags: Mapping[str, str], start: int) -> str:
        """Make an MLflow run -> its id; `start` in milliseconds."""
        created = self.client.create_run(
            self.experiment(study), start_time=start, run_name=name, tags={"mlflow.user": _user(), **tags}
        )
        return str(created.info.run_id)

    def delete(self, run: Any) -> None:
        """Delete an MLflow run and the model that it has."""
        if model := run.data.tags.get("capsbench.model"):
            self.client.delete_logged_model(model)
        self.client.delete_run(run.info.run_id)

    def log_rows(self, run_id: str, rows: Iterable[Mapping[str, Any]], started: str | None = None) -> None:
        """Log rows of metrics, the epoch as MLflow's step, at the time now or after the start of the training."""
        from mlflow.entities import Metric

        now = _now()
        metrics = [
            Metric(name, value, now if started is None else milliseconds(started) + round(1000 * seconds), epoch)
            for name, value, epoch, seconds in contents.epoch_metrics(rows)
        ]
        for start in range(0, len(metrics), _LARGEST_BATCH):
            self.client.log_batch(run_id, metrics=metrics[start : start + _LARGEST_BATCH])

    def log_numbers(self, run_id: str, numbers: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Log metrics that are no curves, and tags."""
        from mlflow.entities import Metric, RunTag

        now = _now()
        metrics = [Metric(name, value, now, 0) for name, value in numbers.items()]
        self.client.log_batch(run_id, metrics=metrics, tags=[RunTag(*tag) for tag in tags.items()])

    def log_inputs(self, run_id: str, inputs: Iterable[tuple[str, str, str, dict[str, Any]]]) -> None:
        """Log what a run was trained and tested on, as capsbench.run.store_contents.data_inputs gives it."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        datasets = [
            DatasetInput(
                Dataset(name, digest, "local", json.dumps({"uri": facts["source"]}), None, json.dumps(facts)),
                [InputTag("mlflow.data.context", context)],
            )
            for context, name, digest, facts in inputs
        ]
        if datasets:
            self.client.log_inputs(run_id, datasets)

    def close_run(self, run_id: str, run: Run, record: Mapping[str, Any]) -> None:
        """Log the outcome and end the run: FINISHED (with tag `status` ok or diverged) or FAILED."""
        tags = {"status": record["status"]}
        if problem := record.get("problem") or record.get("divergence"):
            tags["problem"] = str(problem)
        numbers = {contents.PARAMETERS: float(record["parameters"])} if "parameters" in record else {}
        self.log_numbers(run_id, numbers, tags)
        self.log_inputs(run_id, contents.data_inputs(run, record, {}))
        ended = {"running": "KILLED", "failed": "FAILED"}.get(record["status"], "FINISHED")
        finished = record.get("finished")
        self.client.set_terminated(run_id, ended, milliseconds(finished) if finished else None)

    def holds(self, found: Any, record: Mapping[str, Any], rows: int) -> bool:
        """Tell whether a run was logged live and whole, and has no evaluations yet."""
        tags = found.data.tags
        if tags.get("capsbench.started") != record["started"] or not {"status", "mlflow.parentRunId"} <= tags.keys():
            return False
        if "capsbench.contents" in tags:  # evaluations of another time are in it
            return False
        logged = self.client.get_metric_history(found.info.run_id, contents.TRAINING + "train_loss")
        return len(logged) == rows

    def artifacts(self, run_id: str, below: str | None = None) -> set[str]:
        """Return the paths of all artifacts of a run."""
        found: set[str] = set()
        for item in self.client.list_artifacts(run_id, below):
            found |= self.artifacts(run_id, item.path) if item.is_dir else {item.path}
        return found

    def _variant(self, run: Run, started: str) -> str:
        """Return the run of an experiment and variant, made if there is none."""
        with self._lock():  # two seeds that start at once share it
            found = self.find(run.study, "capsbench.cell", cell_key(run))
            return str(found[0].info.run_id) if found else self.open_variant(run, started)

    def _log_parameters(self, run_id: str, parameters: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(key, str(value)) for key, value in parameters.items()]
        for start in range(0, len(params), _MOST_PARAMETERS):
            self.client.log_batch(run_id, params=params[start : start + _MOST_PARAMETERS])

    def _new_experiment(self, study: str) -> str:
        from mlflow.exceptions import MlflowException

        tags = {
            "mlflow.experimentKind": "custom_model_development",  # else MLflow 3 opens it as one of language models
            "mlflow.experiment.primaryMetric.name": "test_error",
            "mlflow.experiment.primaryMetric.greaterIsBetter": "False",
        }
        location = None  # a server has its own place
        if self._file_lock is not None:
            file = Path(self.uri.removeprefix("sqlite:///")).resolve()
            location = (file.parent / "mlflow-artifacts" / study).as_uri()
        try:
            return str(self.client.create_experiment(study, location, tags))
        except MlflowException:  # on a server another run may have been first
            found = self.client.get_experiment_by_name(study)
            if found is None:
                raise
            return str(found.experiment_id)

    def _lock(self) -> Any:
        if self._file_lock is None:
            return nullcontext()
        self.results.mkdir(parents=True, exist_ok=True)
        return self._file_lock  # which its holder may take again


class _OneAtATime:
    """MLflow's client of an SQLite store, each of whose calls holds the lock that opening the store holds.

    Opening gives up ("database is locked") where another process holds SQLite's own lock for 5 s, as a commit does on a
    busy machine.
    """

    def __init__(self, client: Any, lock: FileLock):
        self._client, self._lock = client, lock

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        @functools.wraps(method)
        def alone(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                return method(*args, **kwargs)

        return alone


def cell_key(run: Run) -> str:
    """EXPERIMENT/VARIANT of a run."""
    return f"{run.experiment}/{run.variant}"


def milliseconds(time_utc: str) -> int:
    """Return an ISO time as MLflow has it."""
    return int(datetime.fromisoformat(time_utc).timestamp() * 1000)


def _now() -> int:
    return int(time.time() * 1000)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a user of that number
        return "unknown"
