"""How far a study is, from its run folders alone: each run says so itself, whoever started it."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from capsbench.run.folder import RunFolder

_PLANNED: ContextVar[tuple[str, ...] | None] = ContextVar("keys of the planned runs", default=None)
COUNTED = "CAPSBENCH_COUNTED"  # environment: the keys of the runs to count, as the workflow was asked for them
_MOST_NAMED = 100_000  # characters; Linux takes 128 KiB in a variable
_STATUS = re.compile(r"^status: (\w+)$", re.M)
_SECONDS = re.compile(r"^seconds: ([\d.]+)$", re.M)


@dataclass(frozen=True)
class StudyProgress:
    """Runs of a study: planned, ended (ok or diverged), running, failed.

    seconds_left: until all are trained, if the others take as long as those that ended and as many run at once as now;
    None before the first has ended.
    """

    planned: int
    ended: int
    running: int
    failed: int
    seconds_left: float | None

    def __str__(self) -> str:
        """Return "12 of 38 runs, 2 running, 1 failed, about 6 min left", for a study of several runs."""
        parts = [f"{self.ended} of {self.planned} runs"]
        parts += [f"{self.running} running"] if self.running else []
        parts += [f"{self.failed} failed"] if self.failed else []
        if self.seconds_left is not None and self.running:
            parts.append(f"about {duration(self.seconds_left)} left")
        return ", ".join(parts)


@contextmanager
def planned_runs(keys: Iterable[str]) -> Iterator[None]:
    """Let `study_progress` count these runs alone: a folder may hold others, which the study had once."""
    token = _PLANNED.set(tuple(keys))
    try:
        yield
    finally:
        _PLANNED.reset(token)


def count_named(targets: Iterable[str], matched: Mapping[str, str | None], study: str) -> None:
    """Let this process and what it starts count these runs alone: those of which the workflow is asked for files.

    All runs are counted where it is asked for something else, or for more than an environment can name.

    Args:
        targets: what the workflow is asked for; nothing is the whole study.
        matched: for each planned run, by its key, the run that it is matched to and that is made with it.
        study: its folder, as the targets have it.
    """
    os.environ[COUNTED] = ""
    start = f"{study}/runs/"
    targets = list(targets)
    found = {"/".join(target.removeprefix(start).split("/")[:3]) for target in targets if target.startswith(start)}
    if all(target.startswith(start) for target in targets):
        while more := {other for key in found if (other := matched.get(key))} - found:
            found |= more
        text = " ".join(sorted(found & matched.keys()))
        os.environ[COUNTED] = text if len(text) < _MOST_NAMED else ""


def counted(keys: Sequence[str], key: str) -> list[str]:
    """Return those of the planned runs that progress counts: what the workflow was asked for, else all.

    key: of the run that says it, which is one of them.
    """
    named = set(os.environ.get(COUNTED, "").split())
    return [each for each in keys if each in named] if key in named else list(keys)


def study_progress(study: Path, planned: int) -> StudyProgress:
    """Read the progress of a study: of its planned runs where they are known (see `planned_runs`), else of all.

    Args:
        study: its folder, results/STUDY.
        planned: how many runs it has.
    """
    records = list(_records(study / "runs"))
    counts = {name: sum(status == name for status, _ in records) for name in ("ok", "diverged", "running", "failed")}
    ended = counts["ok"] + counts["diverged"]
    seconds = [spent for status, spent in records if status in ("ok", "diverged") and spent is not None]
    left = None
    if seconds:
        open_runs = max(0, planned - ended - counts["failed"])
        left = sum(seconds) / len(seconds) * open_runs / max(1, counts["running"])
    return StudyProgress(planned, min(ended, planned), counts["running"], counts["failed"], left)


def _records(runs: Path) -> Iterator[tuple[str, float | None]]:
    """Yield status and seconds of each run; read as text, since a study may have hundreds."""
    keys = _PLANNED.get()
    paths = runs.glob("*/*/*/run.yaml") if keys is None else (runs / key / "run.yaml" for key in keys)
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")  # a damaged one must not stop the others
        except OSError:  # not there yet, or gone since: the run starts again
            continue
        status, seconds = _STATUS.search(text), _SECONDS.search(text)
        found = status[1] if status else ""
        if found == "running" and not RunFolder(path.parent).is_locked():
            found = "interrupted"
        yield found, float(seconds[1]) if seconds else None


def duration(seconds: float) -> str:
    """Return a time for people: 40 s, 12 min, 3 h 5 min."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{round(seconds)} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
