"""What became of each run of a study, why it would be made again, and how long that takes: from the run folders."""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from capsbench.errors import InputError
from capsbench.registry import PROTOCOLS
from capsbench.run import provenance
from capsbench.run.code_version import evaluation_version, training_version
from capsbench.run.folder import RunFolder
from capsbench.run.match import matched_run
from capsbench.run.record import changed_sources, has_other_data
from capsbench.study import Plan, Run

State = Literal[
    "done", "diverged", "running", "not evaluated", "stale", "interrupted", "failed", "damaged", "missing"
]  # fmt: skip
_MOST_NAMED = 3  # options or files that changed, in one line


@dataclass(frozen=True)
class RunState:
    """What became of one run.

    Attributes:
        key: EXPERIMENT/VARIANT/seedN.
        state: done; diverged, which is a result too; running, by a process that is alive; not evaluated: trained, and
            `protocols` are to be measured; stale: trained with another configuration, code or data than it would be
            now; interrupted; failed; damaged; missing: never started.
        why: the reason, for people; empty where there is none to give.
        trains: whether the next call of the workflow trains it.
        protocols: what the next call measures it by.
        seconds: of training that are left, estimated; None where no run of its kind has ended.
    """

    key: str
    state: State
    why: str = ""
    trains: bool = False
    protocols: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether the next call of the workflow has something to do for this run."""
        return self.trains or bool(self.protocols)

    def plain(self) -> dict[str, Any]:
        """Return the state as JSON has it."""
        return asdict(self)


def run_states(plan: Plan, results: Path) -> list[RunState]:
    """Return the state of each run of a study, in the order of its file.

    Files are looked for and not read again: training, evaluation and tables compare them with their checksums.

    Args:
        plan: the study.
        results: the folder of results.
    """
    found: dict[str, RunState] = {}
    spent: dict[str, float] = {}  # seconds of training, of runs that ended
    open_seconds: dict[str, float] = {}  # of runs that did not
    for run in sorted(plan.runs, key=lambda run: len(plan.before(run))):  # what others are matched to comes first
        folder = RunFolder.of(results, run.study, run.key)
        record, state = _state(plan, run, folder, results, found)
        found[run.key] = state
        if record.get("status") == "ok" and isinstance(record.get("seconds"), int | float):
            spent[run.key] = record["seconds"]
        elif state.state in ("running", "interrupted", "failed"):
            open_seconds[run.key] = _seconds_so_far(folder)
    estimate = _estimates(plan.runs, spent)
    return [_with_seconds(found[run.key], estimate(run), open_seconds.get(run.key, 0.0)) for run in plan.runs]


def _state(
    plan: Plan, run: Run, folder: RunFolder, results: Path, found: Mapping[str, RunState]
) -> tuple[Mapping[str, Any], RunState]:
    """Return run.yaml, empty where there is none, and what became of a run."""
    every = tuple(protocol.name for protocol in plan.study.evaluations_of(run.experiment))

    def to_train(state: State, why: str = "") -> RunState:
        return RunState(run.key, state, why, trains=True, protocols=every)

    try:
        record = folder.read_record()
    except InputError as error:
        return {}, to_train("damaged", str(error))
    if record is None and not folder.model_path.exists():
        return {}, to_train("missing")
    if record is None:
        return {}, to_train("damaged", "run.yaml is lost; the next call makes the run again, from its checkpoint")
    if record["status"] == "running" and folder.is_locked():
        return record, to_train("running", _epoch(folder, run))
    if why := _changed(run, folder, record) or _waits(run, record, found.get(run.matched_key or ""), results):
        return record, to_train("stale", why)
    match record["status"]:
        case "failed":
            return record, to_train("failed", str(record.get("problem", "")).split("\n")[0])
        case "ok" | "diverged":
            measured, why = _to_measure(plan, run, folder, record)
            ended: State = "diverged" if record["status"] == "diverged" else "done"
            return record, RunState(run.key, "not evaluated" if measured else ended, why, protocols=measured)
    return record, to_train("interrupted", _epoch(folder, run))


def _changed(run: Run, folder: RunFolder, record: Mapping[str, Any]) -> str:
    """Say in what a run differs from what it would be now: options, code, data or files; empty where in nothing."""
    if record.get("digest") != run.digest:
        kept = {"data": {"split"}, "training": {"device"}}  # decide nothing, so that the digest leaves them out
        now = run.model_dump(mode="json", include={"data", "model", "options", "training"}, exclude=kept)
        before = {key: value for key, value in record.get("config", {}).items() if key in now}
        before |= {group: {k: v for k, v in before.get(group, {}).items() if k in now[group]} for group in kept}
        changes = list(_differences(before, now))
        return f"option {_named(changes)}" if changes else "the run that it is matched to has other options"
    if record.get("code") != training_version(run):
        files = changed_sources(record, run)
        since = f"trained at commit {provenance.short(record.get('commit'))}"
        return f"code {_named(files)}, {since}" if files else f"code, {since}"
    if has_other_data(folder, record):
        return f"data of {run.experiment}: other training images than when it was trained"
    ended = record["status"] in ("ok", "diverged")
    lost = [path.name for path in (folder.model_path, folder.metrics_path) if ended and not path.exists()]
    return f"lost: {', '.join(lost)}" if lost else ""


def _waits(run: Run, record: Mapping[str, Any], matched: RunState | None, results: Path) -> str:
    """Say that the run which a run is matched to comes first, or is not as good as it was; empty where it is."""
    if matched is None:
        return ""
    if matched.trains or "familiar" in matched.protocols:
        return f"matched to {matched.key}, which comes first"
    try:
        now = (matched_run(run, results) or {}).get("familiar_error")
    except InputError as error:
        return str(error)
    then = (record.get("match") or {}).get("familiar_error")
    return "" if now == then else f"the familiar error of {matched.key}, {then} % when it was matched, is {now} %"


def _differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield "options.routing.iterations 3, now 5" for each value that differs."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            yield from _differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    elif before != now:
        yield f"{path} {json.dumps(before)}, now {json.dumps(now)}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return "; ".join(names[:_MOST_NAMED]) + more


def _to_measure(plan: Plan, run: Run, folder: RunFolder, record: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the protocols that a trained run is to be measured by, and why."""
    missing, changed, damaged = [], [], []
    scores = folder.predictions_path.exists() or record["status"] == "diverged"
    for protocol in plan.study.evaluations_of(run.experiment):
        try:
            found = folder.read_evaluation(protocol.name, record)
        except InputError as error:
            found = {}
            damaged.append(str(error))
        needs_scores = PROTOCOLS[protocol.name].facts.get("scores_alone")
        if not found or (needs_scores and not scores):
            missing.append(protocol.name)
        elif found.get("code") not in (None, evaluation_version(run, [protocol])):
            changed.append(protocol.name)
    if damaged:
        return (*missing, *changed), "; ".join(damaged)
    parts = [f"not measured: {', '.join(missing)}" if missing else ""]
    parts += [f"options or code of the measurement changed: {', '.join(changed)}" if changed else ""]
    return (*missing, *changed), "; ".join(filter(None, parts))


def _epoch(folder: RunFolder, run: Run) -> str:
    """Say how far an unfinished training is."""
    done = len(_seconds_by_epoch(folder))
    whole = f" of {run.training.epochs}" if run.training.epochs else ""
    return f"after epoch {done}{whole}" if done else "before the end of its first epoch"


def _seconds_so_far(folder: RunFolder) -> float:
    return sum(_seconds_by_epoch(folder))


def _seconds_by_epoch(folder: RunFolder) -> list[float]:
    """Return the seconds of each epoch of metrics.csv; none where it is not there, or damaged."""
    try:
        head, *rows = folder.metrics_path.read_text(encoding="utf-8").splitlines()
        column = head.split(",").index("seconds")
        return [float(row.split(",")[column]) for row in rows]
    except (OSError, ValueError, IndexError):
        return []


def _estimates(runs: Sequence[Run], spent: Mapping[str, float]) -> Callable[[Run], float | None]:
    """Return what estimates the seconds of a run: the median of its cell, else of its experiment, else of the study."""

    def kinds(run: Run) -> tuple[str, str, str]:
        return f"{run.experiment}/{run.variant}", run.experiment, ""

    known: dict[str, list[float]] = {}
    for run in runs:
        if run.key in spent:
            for kind in kinds(run):
                known.setdefault(kind, []).append(spent[run.key])

    def estimate(run: Run) -> float | None:
        return next((statistics.median(known[kind]) for kind in kinds(run) if kind in known), None)

    return estimate


def _with_seconds(state: RunState, whole: float | None, so_far: float) -> RunState:
    if not state.trains or whole is None:
        return state
    return replace(state, seconds=max(0.0, whole - so_far))
