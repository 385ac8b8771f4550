"""Runs, trained and evaluated again from their run.yaml, and compared number by number with what they came to."""

import csv
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsbench.analysis.kept_runs import NAME as KEPT
from capsbench.analysis.kept_runs import unpack_runs
from capsbench.errors import InputError
from capsbench.evaluation import evaluate
from capsbench.registry import PROTOCOLS, Options
from capsbench.run import provenance
from capsbench.run.device import describe, device_for
from capsbench.run.finished import FINISHED
from capsbench.run.folder import ABOUT, RunFolder
from capsbench.run.load import configuration
from capsbench.run.record import changed_sources
from capsbench.run.train import train
from capsbench.study import Plan, Run, load_plan
from capsbench.study.shipped import find_study

TIMES = ("seconds", "images_per_second")  # columns of metrics.csv that no two trainings have in common
_MOST_NAMED = 3


@dataclass(frozen=True)
class Reproduction:
    """What came of a run that was made again.

    Attributes:
        numbers: how many values were compared.
        differences: in words, one per file that differs; empty where every number is the same.
        causes: what else differs: versions, machine, code, data.
        left_out: protocols that were not measured again, with the reason.
        trained: when it was made again, in UTC.
    """

    numbers: int
    differences: tuple[str, ...]
    causes: tuple[str, ...]
    left_out: tuple[str, ...]
    trained: str

    def lines(self, key: str) -> list[str]:
        """Return the result as lines for people."""
        aside = [f"  not repeated: {each}" for each in self.left_out]
        if not self.differences:
            same = f"{key}: the same, {self.numbers} values, trained again {self.trained}"
            return [same + (f", with another {'; '.join(self.causes)}" if self.causes else ""), *aside]
        causes = "; ".join(self.causes) or "nothing: versions, processor, code and data are those of before"
        found = [f"  {line}" for line in self.differences]
        return [f"{key}: differs", *found, f"  what else differs: {causes}", *aside]


def found_runs(where: str, keys: Sequence[str], results: Path, aside: Path) -> dict[str, RunFolder]:
    """Return the finished runs that a person means, by key.

    Args:
        where: a run folder, a study, or a reference.
        keys: those of these runs; none for all of them.
        results: the folder of results, for a study.
        aside: a folder into which those of a reference may be unpacked.

    Raises:
        InputError: there is no such thing, or none of its runs is finished.
    """
    path = Path(where)
    if (path / "run.yaml").exists():
        folders = {"/".join(path.resolve().parts[-3:]): RunFolder(path)}
    elif (path / KEPT).exists():  # all runs of a reference; those with weights are below runs/ as well
        folders = _kept(path, aside)
    elif (path / "runs").is_dir():
        records = sorted(path.glob("runs/*/*/*/run.yaml"))
        folders = {"/".join(record.parts[-4:-1]): RunFolder(record.parent) for record in records}
    elif (path / "runs.csv").exists():
        raise InputError(f"{where}: has no {KEPT}, as references of before had none: no run of it can be made again")
    else:
        plan = load_plan(find_study(where))
        folders = {run.key: RunFolder.of(results, run.study, run.key) for run in plan.runs}
    for key in keys:
        if key not in folders:
            raise InputError(f"{where}: no run '{key}'")
    chosen = {key: folder for key, folder in folders.items() if not keys or key in keys}
    finished = {key: f for key, f in chosen.items() if (f.sound_record() or {}).get("status") in FINISHED}
    if not finished or (keys and len(finished) < len(chosen)):
        missing = next((key for key in chosen if key not in finished), "no run")
        raise InputError(f"{where}: {missing} is not finished, so there is nothing to compare with")
    return finished


def _kept(reference: Path, aside: Path) -> dict[str, RunFolder]:
    """Unpack the run folders that a reference kept."""
    plan: Plan = load_plan(reference / "study.yaml")
    unpacked = aside / ".kept" / plan.study.name
    shutil.rmtree(unpacked, ignore_errors=True)
    keys = unpack_runs(plan, reference / KEPT, unpacked)
    return {run.key: RunFolder.of(unpacked, plan.study.name, run.key) for run in plan.runs if run.key in keys}


def reproduce_run(folder: RunFolder, aside: Path, root: Path) -> Reproduction:
    """Train and evaluate a run again and compare what it comes to.

    Args:
        folder: of the finished run; it needs no weights.
        aside: where it is made now, below STUDY/RUN; what an interrupted call left there goes on.
        root: the folder of raw data.

    Raises:
        InputError: run.yaml or an evaluation is damaged, or of another version of the package, or the run is in
            `aside` itself.
        RunError: a fault of the machine.
    """
    before = folder.read_record() or {}
    run = configuration(folder, before)
    protocols, left_out = _protocols(folder, before)
    aside = aside / run.study / run.key.replace("/", "-")  # a folder of results of its own
    again = RunFolder.of(aside, run.study, run.key)
    if aside.resolve() in folder.path.resolve().parents:
        raise InputError(f"{folder.path}: is a run that was made again itself; take another folder with --into")
    _leave_matched(run, before, aside)
    train(run, aside, root, tracking=False, sharing=False, again=_is_of_another_machine(again, run))
    evaluate(run, aside, root, protocols)
    now = again.read_record() or {}

    differences, numbers = [], 0
    pairs = [(folder.metrics_path.name, _metrics(folder), _metrics(again))]
    for options in protocols:
        then, found = (dict(_numbers(f.read_evaluation(options.name, r))) for f, r in ((folder, before), (again, now)))
        known = {name: value for name, value in found.items() if name in then}  # a protocol may measure more by now
        pairs.append((f"{options.name}.json", then, known))
    for name, then, found in pairs:
        numbers += len(then)
        differences += [f"{name}: {text}" for text in [_differing(then, found)] if text]
    weights = [record.get("files", {}).get(folder.model_path.name) for record in (before, now)]
    if None not in weights and weights[0] != weights[1]:
        differences.append("model.pt: other weights")
    if before["status"] != now["status"]:
        differences.insert(0, f"status: {before['status']}, now {now['status']}")
    causes = tuple(_causes(run, before, now))
    return Reproduction(numbers, tuple(differences), causes, tuple(left_out), str(now["started"]))


def _protocols(folder: RunFolder, record: Mapping[str, Any]) -> tuple[list[Options], list[str]]:
    """Return the protocols that a run was measured by, with their options then, and those that cannot be repeated."""
    chosen, left_out = [], []
    for name, found in folder.read_evaluations(record).items():
        if name not in PROTOCOLS.names():
            left_out.append(f"{name}, which this version does not have")
        elif PROTOCOLS[name].facts.get("alone"):
            left_out.append(f"{name}, which measures time")
        elif PROTOCOLS[name].facts.get("beside"):
            left_out.append(f"{name}, which takes the network of another run")
        else:
            chosen.append(PROTOCOLS.options(name)(**found.get("options", {})))
    return chosen, left_out


def _leave_matched(run: Run, record: Mapping[str, Any], aside: Path) -> None:
    """Leave what a training that stops at another run's familiar error needs of that run: the error, as it was."""
    match = record.get("match")
    if not match:
        return
    other = RunFolder.of(aside, run.study, match["run"])
    started = record["started"]
    other.write_record({"status": "ok", "digest": run.matched_digest, "started": started, "seed": run.seed})
    found = {"status": "ok", "error": match["familiar_error"], "training_started": started}
    other.write_evaluation("familiar", found)


def _is_of_another_machine(again: RunFolder, run: Run) -> bool:
    """Tell whether what an earlier call left was made with other versions, or elsewhere, than would be used now."""
    found = again.sound_record()
    if found is None or found["status"] not in FINISHED:
        return False
    here = describe(device_for(run.training.device))
    return bool(found["versions"] != provenance.versions() or found["machine"]["device"] != here)


def _metrics(folder: RunFolder) -> dict[str, Any]:
    """Return the values of metrics.csv, by epoch and column, times aside."""
    with folder.metrics_path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        f"{name} of epoch {row['epoch']}": text
        for row in rows
        for name, text in row.items()
        if name not in (*TIMES, "epoch") and text
    }


def _numbers(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of an evaluation by their dotted names."""
    if isinstance(found, Mapping):
        for key, value in found.items():
            if path or key not in ABOUT:
                yield from _numbers(value, f"{path}.{key}" if path else key)
    elif isinstance(found, list):
        for place, value in enumerate(found):
            yield from _numbers(value, f"{path}[{place}]")
    else:
        yield path, found


def _differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say how many values differ, and name the first."""
    names = [name for name in dict.fromkeys([*then, *now]) if repr(then.get(name)) != repr(now.get(name))]  # of NaN too
    if not names:
        return ""
    shown = [f"{name} {then.get(name, 'nothing')}, now {now.get(name, 'nothing')}" for name in names[:_MOST_NAMED]]
    more = f"; and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{len(names)} of {len(then.keys() | now.keys())} values differ: {'; '.join(shown)}{more}"


def _causes(run: Run, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs between two trainings beside their numbers."""
    for group in ("versions", "machine", "precision"):
        then, today = before.get(group) or {}, now.get(group) or {}
        for name in dict.fromkeys([*then, *today]):
            if name != "memory_kept" and then.get(name) != today.get(name):
                yield f"{name} ({then.get(name, 'none')}, now {today.get(name, 'none')})"
    if before.get("code") != now.get("code"):
        files = changed_sources(before, run)
        named = f"{', '.join(files)}: " if files else ""
        yield f"code ({named}{provenance.short(before.get('commit'))}, now {provenance.short(now.get('commit'))})"
    if run.digest != before["digest"]:
        yield "the configuration, which this version reads otherwise"
    images = [record.get("data", {}).get("fingerprint") for record in (before, now)]
    if images[0] != images[1]:
        yield "training images"
