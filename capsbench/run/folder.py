"""The folder of one run, from which everything else is made. A file under its final name is whole.

run.yaml                what was trained, on which data, with which code; status: running, ok, diverged or failed
metrics.csv             one row per epoch
model.pt                the weights (of the best validation epoch under early stopping, else of the last)
predictions.npz         scores on the test set
evaluations/*.json      one file per protocol
checkpoint.pt           where to continue after an interruption; of a finished run, enough to write the rest again
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from capsbench.errors import InputError

log = logging.getLogger(__name__)

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C parser, where PyYAML has it, is five times as fast


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a temporary file, then move it to its final name, so that readers see a whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, whole, one key per line."""
    write_whole(path, lambda aside: aside.write_text(json.dumps(value, indent=2) + "\n"))


class RunFolder:
    """Paths and files of one run, below results/STUDY/runs/."""

    def __init__(self, path: Path):
        self.path = path
        self.record_path = path / "run.yaml"
        self.metrics_path = path / "metrics.csv"
        self.model_path = path / "model.pt"
        self.predictions_path = path / "predictions.npz"
        self.checkpoint_path = path / "checkpoint.pt"

    @classmethod
    def of(cls, results: Path, study: str, key: str) -> "RunFolder":
        """Find the folder of run EXPERIMENT/VARIANT/seedN."""
        return cls(results / study / "runs" / key)

    def evaluation_path(self, protocol: str) -> Path:
        """Return the path of a protocol's result."""
        return self.path / "evaluations" / f"{protocol}.json"

    def forget_results(self) -> None:
        """Remove what an earlier training left, so that old and new results cannot be mixed."""
        for path in (self.model_path, self.predictions_path, *self.path.glob("evaluations/*.json")):
            path.unlink(missing_ok=True)
        for torn in self.path.glob(".*.part"):
            torn.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time train this run; wait for a trainer that outlived a killed Snakemake."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(blocking=False)
        except Timeout:
            log.info("%s: another process is training this run; waiting for it to end", self.path)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def is_locked(self) -> bool:
        """Tell whether a process trains this run now."""
        if not (self.path / ".lock").exists():
            return False
        try:
            with FileLock(self.path / ".lock", blocking=False):
                return False
        except (Timeout, OSError):
            return True

    def read_record(self) -> dict[str, Any] | None:
        """Return run.yaml, or None where there is none."""
        if not self.record_path.exists():
            return None
        try:
            record = yaml.load(self.record_path.read_text(encoding="utf-8"), Loader=_LOADER)
        except yaml.YAMLError:
            record = None
        if not isinstance(record, dict) or not {"status", "digest"} <= record.keys():
            raise InputError(f"{self.record_path}: damaged; delete the folder and train the run again")
        return record

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write run.yaml."""
        text = yaml.safe_dump(dict(record), sort_keys=False, allow_unicode=True, width=110)
        write_whole(self.record_path, lambda aside: aside.write_text(text, encoding="utf-8"))

    def write_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write metrics.csv: one row per epoch, floats in full."""
        columns = list(rows[0]) if rows else ["epoch"]
        lines = [",".join(columns)]
        lines += [",".join("" if row[c] is None else repr(row[c]) for c in columns) for row in rows]
        write_whole(self.metrics_path, lambda aside: aside.write_text("\n".join(lines) + "\n"))
