"""Logging to the MLflow store while a run trains, and `capsbench track`, which makes the store agree with the folders.

The store is a view of the run folders. Everything live goes through one background thread, in batches, so that
training never waits for the store. A store that fails is reported once and tried again with each further batch; once it
answers, the run is logged anew and whole, so that nothing stands there twice.
"""

import hashlib
import json
import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from capsbench.run import store_contents as contents
from capsbench.run.folder import Damaged, RunFolder
from capsbench.run.store import Store, cell_key, load_mlflow, milliseconds, store_uri, without_passwords
from capsbench.run.store_contents import read_metrics
from capsbench.study import Plan, Run

__all__ = ["Store", "Tracker", "read_metrics", "store_uri", "study_page", "track_study"]

log = logging.getLogger(__name__)

SECONDS_BETWEEN_WRITES = 5.0
SECONDS_TO_CLOSE = 120.0  # a file that other runs are making or writing on a busy machine
SECONDS_TO_ANSWER = 1.0  # of a server that has not answered while the run trained
MOST_SECONDS_BETWEEN_TRIES = 300.0  # of a store that fails again and again; the wait doubles up to it


class Tracker:
    """Live logging of one run, in a separate thread; `seconds` is the time that the calls to MLflow took."""

    def __init__(self, on_failure: str | None = None) -> None:
        self.seconds = 0.0
        self._on_failure = on_failure  # what to say, once, with a place for the problem
        self._queue: queue.SimpleQueue[list[dict[str, Any]] | dict[str, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._imported = threading.Event()  # MLflow, which takes a second or more of a run's first
        # whether it is worth while to wait for the store: it has answered, or it is a file, which others may be making
        self._answers = False

    @classmethod
    def none(cls) -> "Tracker":
        """Return a tracker that logs nothing."""
        return cls()

    @classmethod
    def start(cls, run: Run, record: Mapping[str, Any], results: Path) -> "Tracker":
        """Open the store in the background and log what follows."""
        tracker = cls(
            f"the MLflow store {without_passwords(store_uri(results))} fails (%s); the run continues without it, and "
            f"'capsbench track {run.study}' brings the store up to date later"
        )
        tracker._answers = store_uri(results).startswith("sqlite:")
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
            self._imported.wait(SECONDS_TO_CLOSE)
            clock = time.monotonic()
            self._thread.join(SECONDS_TO_CLOSE if self._answers else SECONDS_TO_ANSWER)
            if self._thread.is_alive():
                self._complain(f"no answer for {time.monotonic() - clock:.2g} s")
            self._thread = None

    def _complain(self, problem: str) -> None:
        if self._on_failure is not None:
            log.warning(self._on_failure, problem)
            self._on_failure = None

    def _work(self, run: Run, record: dict[str, Any], results: Path) -> None:
        rows: list[dict[str, Any]] = []  # all so far
        outcome: dict[str, Any] | None = None
        store, run_id, written, patience = None, "", 0, SECONDS_BETWEEN_WRITES
        while True:
            clock = time.perf_counter()
            try:
                if store is None:
                    load_mlflow()
                    self._imported.set()
                    store = Store(results)
                    run_id, written = store.open_run(run, record), 0  # in the place of one that was begun
                    self._answers = True
                store.log_rows(run_id, rows[written:])
                written = len(rows)
                if outcome is not None:
                    store.close_run(run_id, run, outcome)
            except Exception as error:  # whatever a store does must not stop a training
                self._complain(_first_line(error))
                store = None
                patience = min(2 * patience, MOST_SECONDS_BETWEEN_TRIES)
            else:
                patience = SECONDS_BETWEEN_WRITES
            self.seconds += time.perf_counter() - clock
            if outcome is not None:
                return
            more, outcome = self._next_batch(patience)
            rows += more

    def _next_batch(self, seconds: float) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """Wait for so many seconds -> the rows that came meanwhile, and the outcome, which ends the wait."""
        rows: list[dict[str, Any]] = []
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                item = self._queue.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(item, dict):
                return rows, item
            rows += item
        return rows, None


def track_study(plan: Plan, results: Path, *, models: bool = False) -> dict[str, int]:
    """Bring the store up to date with all run folders of a study, and with the files that were made of them.

    Args:
        plan: the study.
        results: the folder of results.
        models: log the trained networks too, those that the store does not have yet.

    Returns:
        How many runs were absent, damaged, running, current or written, and how many entries were removed: those of
        runs that left the folder of results, where the store is in it. A store elsewhere may be shared with other
        folders, and keeps them.
    """
    (results / plan.study.name).mkdir(parents=True, exist_ok=True)
    with FileLock(results / plan.study.name / ".track.lock"):  # two at once would write each run twice
        return _track(plan, results, models)


def _track(plan: Plan, results: Path, models: bool) -> dict[str, int]:
    store = Store(results)
    found = store.all_runs(plan.study.name)
    by_key: dict[str, list[Any]] = {}
    for entry in found:
        by_key.setdefault(entry.data.tags.get("capsbench.key", ""), []).append(entry)
    counts: dict[str, int] = {}
    for entry in _left(found, results / plan.study.name) if store.is_in_results else ():
        store.delete(entry)
        counts["removed"] = counts.get("removed", 0) + 1
    for cell in _cells(plan):
        seeds = [_Seed(run, results) for run in cell]
        for seed in seeds:
            outcome = seed.bring_up_to_date(store, by_key.get(seed.run.key, []))
            if models and outcome in ("current", "written"):
                outcome = seed.add_model(store) or outcome
            counts[outcome] = counts.get(outcome, 0) + 1
        if any(seed.record for seed in seeds):
            _track_variant(store, plan, seeds)
    of_study = _track_files(store, plan, [entry for entry in found if entry.data.tags.get("kind") == "study"])
    store.describe_study(plan.study.name, contents.study_note(plan), contents.saved_views(plan), of_study)
    return counts


def study_page(study: str, results: Path) -> str:
    """Return the address of a study's runs: on its server, or where `make ui` serves a store that is none."""
    store = Store(results)
    server = store.uri if store.uri.startswith("http") else "http://127.0.0.1:5000"
    return f"{without_passwords(server).rstrip('/')}/{contents.runs_page(store.experiment(study))}"


def _left(found: Sequence[Any], here: Path) -> list[Any]:
    """Return the entries of runs, or of variants all of whose runs are gone, that have no folder any more."""
    gone = []
    for entry in found:
        tags = entry.data.tags
        key = tags.get("capsbench.key") or tags.get("capsbench.cell")
        if key is not None and not any((here / "runs" / key).rglob("run.yaml")):
            gone.append(entry)
    return gone


class _Seed:
    """One run folder, and the MLflow run that shows it."""

    def __init__(self, run: Run, results: Path):
        self.run = run
        self.folder = RunFolder.of(results, run.study, run.key)
        self.record: dict[str, Any] | None = None
        self._without = "absent"
        try:
            self.record = self.folder.read_record()
        except Damaged as error:  # one damaged run must not stop the others
            log.warning("%s", error)
            self._without = "damaged"
        self.evaluated: dict[str, dict[str, Any]] = {}
        try:
            self.evaluated = self.folder.read_evaluations(self.record) if self.record else {}
        except Damaged as error:
            log.warning("%s", error)
            self.record, self._without = None, "damaged"
        self.run_id: str | None = None
        self.tags: Mapping[str, str] = {}

    @property
    def status(self) -> str:
        """`absent`, `damaged`, or the status of run.yaml."""
        return str(self.record["status"]) if self.record else self._without

    @property
    def numbers(self) -> dict[str, float]:
        """The results of a run that ended ok."""
        if self.record is None or self.status != "ok":
            return {}
        size = {contents.PARAMETERS: float(self.record["parameters"])} if "parameters" in self.record else {}
        return contents.test_metrics(self.evaluated) | size

    def bring_up_to_date(self, store: Store, found: Sequence[Any]) -> str:
        """Make the store agree with the folder -> `absent`, `damaged`, `running`, `current` or `written`."""
        if len(found) == 1:
            self.run_id, self.tags = found[0].info.run_id, found[0].data.tags
        if self.record is None or self.status == "running":
            return self.status
        rows = read_metrics(self.folder)
        signature = _hash([contents.FORMAT, self.record["started"], self.status, rows, self.evaluated])
        if len(found) == 1 and self.tags.get("capsbench.contents") == signature:
            return "current"
        # one that was logged live and whole lacks only the evaluations
        if len(found) != 1 or not store.holds(found[0], self.record, len(rows)):
            self.run_id, self.tags = store.open_run(self.run, self.record), {}
            store.log_rows(self.run_id, rows, self.record["started"])
            store.close_run(self.run_id, self.run, self.record)
        assert self.run_id is not None
        tested = [
            entry for entry in contents.data_inputs(self.run, self.record, self.evaluated) if entry[0] != "training"
        ]
        store.log_inputs(self.run_id, tested)
        numbers = contents.test_metrics(self.evaluated)
        note = contents.seed_note(self.run, self.status, numbers.get("test_error"))
        store.log_numbers(self.run_id, numbers, {"mlflow.note.content": note, "capsbench.contents": signature})
        return "written"

    def add_model(self, store: Store) -> str | None:
        """Log the trained network if the store does not have it -> `written`, or None where nothing was to be done."""
        if self.run_id is None or self.status != "ok" or "capsbench.model" in self.tags:
            return None
        from capsbench.run.store_model import log_model

        log_model(store, self.run_id, self.folder)
        return "written"


def _track_variant(store: Store, plan: Plan, seeds: Sequence[_Seed]) -> None:
    """Make the run of an experiment and variant agree with its seeds: means, outcome, description, children."""
    first = seeds[0].run
    found = store.find(first.study, "capsbench.cell", cell_key(first))
    numbers = contents.variant_metrics([seed.numbers for seed in seeds if seed.numbers])
    outcomes = [(seed.status, seed.numbers.get("test_error")) for seed in seeds]
    note = contents.variant_note(plan.study.description, [seed.run for seed in seeds], outcomes)
    records = [seed.record for seed in seeds if seed.record]
    starts = [record["started"] for record in records]
    signature = _hash([contents.FORMAT, first.digest, first.label, starts, numbers, note])
    if [entry.data.tags.get("capsbench.contents") for entry in found] == [signature]:
        return
    run_id = _open_variant(store, first, min(starts), found)
    tested = next((seed for seed in seeds if seed.numbers), None)
    if tested is not None and tested.record is not None:
        store.log_inputs(run_id, contents.data_inputs(tested.run, tested.record, tested.evaluated))
    commits = {str(record.get("commit")) for record in records}
    source = contents.commit_tags(commits.pop()) if len(commits) == 1 else {}
    store.log_numbers(run_id, numbers, {"mlflow.note.content": note, "capsbench.contents": signature, **source})
    _end_variant(store, run_id, seeds)
    for seed in seeds:
        if seed.run_id is not None:
            store.client.set_tag(seed.run_id, "mlflow.parentRunId", run_id)


def _open_variant(store: Store, run: Run, started: str, found: Sequence[Any]) -> str:
    """Return an empty run of an experiment and variant: that of a live training, or one in place of an older one."""
    wanted = {key: str(value) for key, value in contents.flat_parameters(run).items() if key != "seed"}
    if len(found) == 1 and "capsbench.contents" not in found[0].data.tags and found[0].data.params == wanted:
        return str(found[0].info.run_id)
    for entry in found:  # metrics cannot be taken back
        store.delete(entry)
    return store.open_variant(run, started)


def _end_variant(store: Store, run_id: str, seeds: Sequence[_Seed]) -> None:
    """Say whether the seeds of a variant are done: FINISHED, FAILED, RUNNING or, where some are absent, SCHEDULED."""
    statuses = {seed.status for seed in seeds}
    if "running" in statuses:
        return  # a new run is RUNNING
    if statuses & {"absent", "damaged"}:
        store.client.update_run(run_id, "SCHEDULED")
        return
    ended = [seed.record for seed in seeds if seed.record and "finished" in seed.record]
    status = "FAILED" if "failed" in statuses else "FINISHED"
    end = None
    # MLflow shows start and duration; the seeds may be hours apart, so the duration is that of their trainings together
    if ended:
        seconds = sum(record.get("seconds", 0.0) for record in ended)
        end = milliseconds(min(record["started"] for record in ended)) + round(1000 * seconds)
    store.client.set_terminated(run_id, status, end)


def _track_files(store: Store, plan: Plan, found: Sequence[Any]) -> str | None:
    """Put tables, plots and report into one run of the study, if there are any -> its id."""
    name, folder = plan.study.name, store.results / plan.study.name
    files = contents.study_files(folder)
    about = contents.study_note(plan)
    note = f"{contents.answers_note(folder, contents.MOST_LETTERS - len(about))}\n\n{about}".strip()
    signature = _hash([contents.FORMAT, files, note])
    if not files or [entry.data.tags.get("capsbench.contents") for entry in found] == [signature]:
        return str(found[0].info.run_id) if found else None
    newest = round(1000 * max((folder / path).stat().st_mtime for path in files))
    if len(found) == 1 and store.artifacts(found[0].info.run_id) <= files.keys():
        run_id = str(found[0].info.run_id)
    else:  # artifacts cannot be taken back
        for entry in found:
            store.delete(entry)
        tags = {"kind": "study", **contents.source_tags(f"capsbench report {name}")}
        run_id = store.create(name, f"study {name}", tags, newest)
    for path in files:
        below = Path(path).parent.as_posix()
        store.client.log_artifact(run_id, str(folder / path), None if below == "." else below)
    store.log_numbers(run_id, {}, {"mlflow.note.content": note, "capsbench.contents": signature})
    store.client.set_terminated(run_id, end_time=newest)
    return run_id


def _cells(plan: Plan) -> list[list[Run]]:
    cells: dict[str, list[Run]] = {}
    for run in plan.runs:
        cells.setdefault(cell_key(run), []).append(run)
    return list(cells.values())


def _hash(values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {without_passwords(lines[0])[:160]}" if lines else type(error).__name__
