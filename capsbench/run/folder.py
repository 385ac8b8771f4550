"""The folder of one run, from which everything else is made. A file under its final name is whole.

run.yaml                what was trained, on which data, with which code; status: running, ok, diverged or failed
metrics.csv             one row per epoch
model.pt                the weights (of the best validation epoch under early stopping, else of the last)
predictions.npz         scores on the test set
evaluations/*.json      one file per protocol
checkpoint.pt           where to continue after an interruption; of a finished run, enough to write the rest again

No number enters a table that is not as it was written: run.yaml and evaluations/*.json carry a checksum of themselves,
and run.yaml the sha256 of model.pt, metrics.csv and predictions.npz, once they are there. Each evaluation names the
weights that it measured, and has the sha256 of its arrays in evaluations/NAME.npz. Files from before this was so are
read without it.
"""

import fcntl
import hashlib
import json
import logging
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from capsbench.errors import InputError
from capsbench.run.interrupts import held_interrupts

log = logging.getLogger(__name__)

ABOUT = ("training_started", "commit", "weights", "code", "arrays")  # of an evaluation: of which run, by which code

SECONDS_UNTIL_LEFT = 60.0  # since a file was written to, until it counts as left by a process that is gone

_SECONDS_TO_LOOK = 0.1  # at a lock: others that only look at it hold it for less
_CHECKSUM = "checksum"
# what run.yaml of a finished run has had in every version; without it, and without a right checksum, it is damaged
_LASTING = (
    "started", "finished", "commit", "versions", "machine", "config", "parameters", "epochs", "seconds",
    "data.fingerprint", "data.train_images", "data.epoch_images", "data.unofficial",
)  # fmt: skip


def write_whole(path: Path, write: Callable[[Path], Any], *, lasting: bool = False) -> None:
    """Let `write` fill a temporary file, then move it to its final name, so that readers see a whole file or none.

    lasting: the content is on the disk before the name is, so that this holds after a power loss too. What a process
    that was killed left of an earlier attempt goes. A Ctrl-C comes once the file is there.

    Raises:
        OSError: the file cannot be written, with its final name, such as for a full disk.
    """
    with held_interrupts():
        _write_aside(path, write, lasting)


def _write_aside(path: Path, write: Callable[[Path], Any], lasting: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            write(aside)
            if lasting:
                _sync(aside)
        except (OSError, RuntimeError) as error:
            if (cause := _fault_of_the_disk(error)) is None:
                raise
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        aside.replace(path)
        sweep(path.parent, f".{path.name}.*.part")
        if lasting:
            with suppress(OSError):  # some network file systems know no such thing
                _sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def _fault_of_the_disk(error: BaseException) -> OSError | None:
    """Return the error of the operating system behind another one: torch raises its own for a full disk."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno is not None:
            return found
        found = found.__cause__ or found.__context__
    return None


def sweep(folder: Path, pattern: str = ".*.part") -> None:
    """Remove what processes that were killed left of files that they were writing, see `write_whole`.

    A file stays where a process of its number lives, or if it was written to within a minute: on a shared disk the
    process may be another machine's.
    """
    for left in folder.glob(pattern):
        number = left.name.split(".")[-2]
        with suppress(OSError):  # another process was faster
            if time.time() - left.stat().st_mtime > SECONDS_UNTIL_LEFT and not _lives(number):
                left.unlink()


def _lives(number: str) -> bool:
    """Tell whether a process of this number runs on this machine."""
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


@contextmanager
def whole(path: Path, again: str = "train") -> Iterator[None]:
    """Make InputError, which names the file, of what a parser raises for a torn one; `again`: what writes it anew."""
    try:
        yield
    except (ValueError, LookupError, EOFError, RuntimeError, zipfile.BadZipFile):
        raise InputError(f"{path}: damaged; {again} the run again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}; {again} the run again") from None


def _sync(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file, whole, one key per line."""
    write_whole(path, lambda aside: aside.write_text(json.dumps(value, indent=2) + "\n"))


def parse_yaml(text: str) -> Any:
    """Return what YAML holds, by libyaml where there is one; raises yaml.YAMLError, or ValueError for an odd date."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def sha256(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Damaged(InputError):
    """run.yaml, or the result of a protocol, is cut, is no text, or lacks what each has."""


class RunFolder:
    """Paths and files of one run, below results/STUDY/runs/."""

    def __init__(self, path: Path):
        self.path = path
        self.record_path = path / "run.yaml"
        self.metrics_path = path / "metrics.csv"
        self.model_path = path / "model.pt"
        self.predictions_path = path / "predictions.npz"
        self.checkpoint_path = path / "checkpoint.pt"
        self.again_path = path / ".again"  # the run is to be trained afresh, whatever other studies have

    @property
    def manifest_path(self) -> Path:
        """What preparing the data of the run's experiment found, see capsbench.data.prepare."""
        runs = self.path.parents[2]
        return runs.parent / "data" / f"{self.path.parts[-3]}.json"

    @classmethod
    def of(cls, results: Path, study: str, key: str) -> "RunFolder":
        """Find the folder of run EXPERIMENT/VARIANT/seedN."""
        return cls(results / study / "runs" / key)

    def evaluation_path(self, protocol: str) -> Path:
        """Return the path of a protocol's result."""
        return self.path / "evaluations" / f"{protocol}.json"

    def write_evaluation(self, protocol: str, result: Mapping[str, Any]) -> None:
        """Write the result of a protocol, with its checksum."""
        write_json(self.evaluation_path(protocol), {**result, _CHECKSUM: _checksum(result)})

    def read_evaluation(self, protocol: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a protocol; empty if there is none of this training and these weights.

        Args:
            protocol: its name.
            record: run.yaml of the run.

        Raises:
            Damaged: the file is cut or no text.
            InputError: it was changed since it was written, or cannot be read.
        """
        path = self.evaluation_path(protocol)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            checksum = found.pop(_CHECKSUM, None)
            started, weights = found.get("training_started"), found.get("weights")
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError):
            raise Damaged(f"{path}: damaged; delete it and evaluate the run again") from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
        if checksum is not None and checksum != _checksum(found):
            raise InputError(f"{path}: was changed since it was written; delete it and evaluate the run again")
        measured = record.get("files", {}).get(self.model_path.name, weights)
        return dict(found) if started == record.get("started") and weights in (None, measured) else {}

    @contextmanager
    def arrays(self, protocol: str) -> Iterator[Mapping[str, Any]]:
        """Open evaluations/NAME.npz, the arrays of a protocol.

        Raises:
            InputError: it is damaged, or not the file that the protocol wrote.
        """
        import numpy as np

        path = self.evaluation_path(protocol).with_suffix(".npz")
        known = self.read_evaluation(protocol, self.read_record() or {}).get("arrays")
        if known is not None and path.exists() and sha256(path) != known:
            raise InputError(f"{path}: is not the file that this run wrote; evaluate the run again")
        with whole(path, "evaluate"), np.load(path, allow_pickle=False) as arrays:
            yield arrays

    def read_evaluations(self, record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the results of all protocols that belong to this training of the run, see `read_evaluation`."""
        names = sorted(path.stem for path in self.path.glob("evaluations/*.json"))
        return {name: found for name in names if (found := self.read_evaluation(name, record))}

    def check(self, path: Path, record: Mapping[str, Any]) -> None:
        """Raise InputError if a file of this folder is not that of which run.yaml has the sha256."""
        known = record.get("files", {}).get(path.name)
        if known is None or not path.exists() or sha256(path) == known:
            return
        now = (self.read_record() or {}).get("files", {}).get(path.name)  # another process may have just written both
        if now == known or sha256(path) != now:
            again = "evaluate" if path == self.predictions_path else "train"
            raise InputError(f"{path}: is not the file that this run wrote; {again} the run again")

    def forget_results(self) -> None:
        """Remove what an earlier training left, so that old and new results cannot be mixed."""
        for path in (self.model_path, self.predictions_path, *self.path.glob("evaluations/*.json")):
            path.unlink(missing_ok=True)
        for torn in (*self.path.glob(".*.part"), *self.path.glob("evaluations/.*.part")):
            torn.unlink(missing_ok=True)

    @contextmanager
    def locked(self, wait: bool = True) -> Iterator[bool]:
        """Let one process at a time train this run; wait for a trainer that outlived a killed Snakemake.

        Yields:
            Whether the run is locked now; without `wait` it is not where another process trains it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=_SECONDS_TO_LOOK)
        except Timeout:
            if not wait:
                yield False
                return
            log.info("%s: another process is training this run; waiting for it to end", self.path)
            lock.acquire()
        for folder in (self.path, self.path / "evaluations"):
            sweep(folder)
        try:
            yield True
        finally:
            lock.release()

    def is_locked(self) -> bool:
        """Tell whether a process trains this run now; looking does not keep others from seeing the same."""
        try:
            with (self.path / ".lock").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def read_record(self) -> dict[str, Any] | None:
        """Return run.yaml, or None where there is none. Raises InputError for one that is damaged or was changed."""
        if not self.record_path.exists():
            return None
        if not self.record_path.is_file():  # opening a FIFO would wait for somebody to write into it
            raise Damaged(f"{self.record_path}: is no regular file; delete the folder and train the run again")
        try:
            text = self.record_path.read_text(encoding="utf-8")
            record = parse_yaml(text)
        except (yaml.YAMLError, ValueError, RecursionError):  # an odd date is a ValueError
            record = None
        except OSError as error:
            raise Damaged(f"{self.record_path}: cannot be read: {error.strerror or error}") from None
        if not isinstance(record, dict) or not {"status", "digest"} <= record.keys():
            raise self._damaged()
        checksum = record.pop(_CHECKSUM, None)
        changed = checksum is not None and checksum != _checksum(text.rpartition(f"{_CHECKSUM}:")[0])
        cut = checksum is None and "files" in record  # which came with the checksum, and stands before it
        if cut or ((changed or checksum is None) and _lacks_something(record)):
            raise self._damaged()
        if changed:
            raise InputError(
                f"{self.record_path}: was changed since it was written; delete it and train the run again, which takes "
                "what is finished from the checkpoint"
            )
        return record

    def sound_record(self) -> dict[str, Any] | None:
        """Return run.yaml, or None also where it is damaged: one damaged run must not stop the tables of all others.

        Raises:
            InputError: it was changed since it was written.
        """
        try:
            return self.read_record()
        except Damaged:
            return None

    def unusable(self) -> list[Path]:
        """Return the files of a trained run that are not as they were written, and what rests on them.

        Weights and what was measured are of no use where run.yaml is lost, cut, changed, or of a training that did not
        end. Of model.pt no byte is read here: those who use the weights compare them with their sha256.
        """
        measured = [path for path in (self.predictions_path, *self.path.glob("evaluations/*.json")) if path.exists()]
        if not self.model_path.exists():
            return []
        if not self._has_sound_record():
            return [self.model_path, *measured]
        return [path for path in (self.metrics_path, *measured) if path.exists() and not self._is_sound(path)]

    def _has_sound_record(self) -> bool:
        """Tell whether run.yaml is there, as it was written, and of a training that ended."""
        try:
            text = self.record_path.read_text(encoding="utf-8") if self.record_path.is_file() else ""
        except (OSError, ValueError):
            return False
        content, mark, checksum = text.rpartition(f"{_CHECKSUM}: ")
        if mark and text.startswith("status: "):  # without YAML, which takes milliseconds a run
            ended = text.startswith(("status: ok\n", "status: diverged\n"))
            return ended and checksum.strip().strip("'") == _checksum(content)
        try:
            return (self.read_record() or {}).get("status") in ("ok", "diverged")
        except InputError:
            return False

    def _is_sound(self, path: Path) -> bool:
        """Tell whether metrics.csv and predictions.npz end as whole ones do, and a result has its checksum."""
        try:
            if path == self.metrics_path:
                return path.read_bytes().endswith(b"\n")
            if path == self.predictions_path:
                return zipfile.is_zipfile(path)
            self.read_evaluation(path.stem, {})
        except (InputError, OSError):
            return False
        return True

    def _damaged(self) -> Damaged:
        return Damaged(f"{self.record_path}: damaged; delete the folder and train the run again")

    def write_record(self, record: Mapping[str, Any]) -> None:
        """Write run.yaml, whose last line is a checksum of the others."""
        text = yaml.safe_dump(dict(record), sort_keys=False, allow_unicode=True, width=110)
        text += f"{_CHECKSUM}: '{_checksum(text)}'\n"
        write_whole(self.record_path, lambda aside: aside.write_text(text, encoding="utf-8"), lasting=True)

    def write_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write metrics.csv: one row per epoch, floats in full."""
        columns = list(rows[0]) if rows else ["epoch"]
        lines = [",".join(columns)]
        lines += [",".join("" if row[c] is None else repr(row[c]) for c in columns) for row in rows]
        write_whole(self.metrics_path, lambda aside: aside.write_text("\n".join(lines) + "\n"))


def _lacks_something(record: Mapping[str, Any]) -> bool:
    """Tell whether the record of a finished run lacks what each has."""
    if record["status"] not in ("ok", "diverged"):
        return False
    for key in _LASTING:
        node: Any = record
        for part in key.split("."):
            if not isinstance(node, Mapping) or node.get(part) is None:
                return True
            node = node[part]
    return False


def _checksum(content: str | Mapping[str, Any]) -> str:
    """Return a checksum of a text, or of what a mapping holds once it is JSON."""
    text = content if isinstance(content, str) else json.dumps(json.loads(json.dumps(content)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
