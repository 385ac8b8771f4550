"""Whether a committed reference is what its runs and its study say, down to the last digit.

What is rebuilt or compared: runs.csv with provenance.yaml (hashes, and what the record of each run holds), with what
was kept of the run folders and with the study; correct.npz with the errors in runs.csv; the digests of the study's
runs; the tables, byte for byte; the commits, where there is a git history; the generated blocks of README.md and docs/,
where there is a checkout. Plots are not compared: fonts differ between machines.
"""

import csv
import logging
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd

from capsbench.analysis.collect import collect, read_runs, runs_of_plan
from capsbench.analysis.correct_bits import NAME as CORRECT
from capsbench.analysis.correct_bits import Correct, unlike
from capsbench.analysis.kept_runs import NAME as KEPT
from capsbench.analysis.kept_runs import WITH_WEIGHTS, unpack_runs
from capsbench.analysis.measures import NAME as MEASURES
from capsbench.analysis.measures import read_measures
from capsbench.analysis.reference import (
    AS_RUN,
    PROVENANCE,
    RUNS,
    STUDY,
    correct_of,
    is_commit,
    key_of,
    measures_of,
    read_provenance,
    row_hashes,
)
from capsbench.analysis.tables import write_tables
from capsbench.errors import InputError
from capsbench.registry import flat_options
from capsbench.run.code_version import training_version
from capsbench.run.finished import FINISHED
from capsbench.run.folder import RunFolder, sha256
from capsbench.run.provenance import git
from capsbench.study import Plan, Run, load_plan

log = logging.getLogger(__name__)

_BLOCK = re.compile(r"<!-- begin (\w+)([^\n]*?) -->")
_IN_BOTH = ("status", "test_error", "familiar_error", "seconds", "parameters", "epochs", "peak_memory_mb", "commit")
_MOST = 10  # problems of one kind that are listed one by one
_AROUND = 30  # characters shown on either side of a difference


@dataclass
class Findings:
    """problems: what is wrong, one line each, with its place. notes: what was not compared, and why.

    code: how many runs of each reference were trained by the code of this checkout.
    """

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    def add(self, found: Iterable[str]) -> bool:
        """Add problems, at most ten one by one; tell whether there were any."""
        found = list(found)
        rest = [f"... and {len(found) - _MOST} more like the last"] if found[_MOST:] else []
        self.problems += found[:_MOST] + rest
        return bool(found)


def references(results: Path) -> list[Path]:
    """Return the folders of all references below a folder of results."""
    return sorted(path.parent for path in (results / "reference").glob(f"*/{RUNS}"))


def verify(folders: Sequence[Path]) -> Findings:
    """Compare references with what they are made of.

    Args:
        folders: of references, each with runs.csv, study.yaml, provenance.yaml and tables/.

    Returns:
        Problems, none where all is as it should be, and notes.
    """
    findings = Findings()
    of_checkouts: dict[Path | None, list[str]] = {}
    for folder in folders:
        of_checkouts.setdefault(_checkout(folder), []).append(folder.name)
    with ThreadPoolExecutor() as beside:  # pages are filled by another process
        blocks = [beside.submit(_blocks, root, names) for root, names in of_checkouts.items() if root is not None]
        for folder in folders:
            try:
                _verify_folder(folder, findings)
            except InputError as error:
                findings.problems.append(str(error))
        for found in blocks:
            findings.add(found.result())
    if None in of_checkouts:
        names = ", ".join(of_checkouts[None])
        findings.notes.append(f"{names}: not in a checkout, so README.md and docs were not compared")
    return findings


def _verify_folder(folder: Path, findings: Findings) -> None:
    about = read_provenance(folder)
    if not (folder / STUDY).exists():
        raise InputError(f"{folder / STUDY}: is not there; it says which runs these are")
    plan = load_plan(folder / STUDY)
    files = about.get("files") or {}
    runs = read_runs(folder / RUNS)
    there = findings.add(_keys(folder, plan, runs, about["runs"]))
    rows = findings.add(_rows(folder, plan, runs, about))
    for name, expected in files.items():
        path = folder / name
        found = sha256(path) if path.exists() else "missing"
        if found != expected and not (name == RUNS and (rows or there)):
            what = "is not there" if found == "missing" else f"was changed: its sha256 is not that of {PROVENANCE}"
            findings.problems.append(f"{path}: {what}")
    if RUNS not in files:
        findings.notes.append(
            f"{folder}: {PROVENANCE} has no sha256 of {RUNS}; what only {RUNS} has was compared with the tables alone"
        )
    if "study_schema" in about:
        findings.notes.append(
            f"{folder}: the digests of {PROVENANCE} are those of a study of schema {about['study_schema']} ({AS_RUN}) "
            "and were not compared"
        )
    else:
        changed = findings.add(_digests(folder, plan, about["runs"]))
        if not (there or rows or changed):
            findings.add(_kept(folder, plan, runs))
    if not there:
        correct = correct_of(plan, folder)
        findings.add(f"{folder / CORRECT}: {key}: {what}" for key, what in unlike(correct, runs).items())
        findings.add(_tables(folder, plan, runs, correct))
        findings.code.append(f"{folder}: {_trained_by(plan, runs)}")
    _commits(folder, about, findings)


def _trained_by(plan: Plan, runs: pd.DataFrame) -> str:
    """Say how many finished runs were trained by the code that this checkout would train them with."""
    there = runs[runs["status"].isin(FINISHED)]
    without = int(there["code"].isna().sum())
    unknown = f"; of {without} it is not on record" if without else ""
    return (
        f"{trained_by_this_code(plan, runs)} of {len(there)} runs were trained by the code that this checkout has for "
        f"them{unknown}"
    )


def trained_by_this_code(plan: Plan, runs: pd.DataFrame) -> int:
    """Count the finished runs that were trained by the code that this checkout would train them with.

    runs: as runs.csv has them; one without a column `code` counts none.
    """
    there = runs[runs["status"].isin(FINISHED)].reindex(columns=["key", "code"])
    codes = dict(there.dropna().itertuples(index=False))
    return sum(codes.get(run.key) == training_version(run) for run in plan.runs)


def _keys(folder: Path, plan: Plan, runs: pd.DataFrame, records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Compare which runs there are."""
    planned = [run.key for run in plan.runs]
    finished = list(runs.loc[runs["status"].isin(FINISHED), "key"])
    sides = {RUNS: (list(runs["key"]), planned, STUDY), PROVENANCE: ([key_of(run) for run in records], finished, RUNS)}
    for name, (keys, wanted, source) in sides.items():
        for key in dict.fromkeys(wanted):
            if keys.count(key) != 1:
                yield f"{folder / name}: {key} of {source} is {'not there' if key not in keys else 'there twice'}"
        for key in dict.fromkeys(keys):
            if key not in wanted:
                yield f"{folder / name}: {key} is no {'' if name == RUNS else 'finished '}run of {source}"


def _kept(folder: Path, plan: Plan, runs: pd.DataFrame) -> Iterator[str]:
    """Compare the rows with what the reference kept of the run folders; columns that came later are not there."""
    if not (folder / KEPT).exists():
        return
    with (folder / RUNS).open(encoding="utf-8", newline="") as file:
        later = {name for name in runs.columns if not name.startswith("option.")} - set(next(csv.reader(file)))
    with tempfile.TemporaryDirectory() as place:
        unpack_runs(plan, folder / KEPT, Path(place))
        frame = runs_of_plan(plan, collect(plan, Path(place)))
        if read_measures(plan, Path(place)) != measures_of(plan, folder):
            yield f"{folder / MEASURES}: is not what the evaluations in {KEPT} say"
        for record in sorted((folder / WITH_WEIGHTS).glob("*/*/*/run.yaml")):
            yield from _weights(record, Path(place) / plan.study.name)
    again = {row["key"]: row for row in frame.to_dict("records")}
    for row in runs_of_plan(plan, runs).to_dict("records"):
        kept = again[row["key"]]
        told = [
            f"{name} is {_shown(value)}, not {_shown(kept.get(name))}"
            for name, value in row.items()
            if name not in later and not _same(value, kept.get(name))
        ]
        if told:
            yield f"{folder / RUNS}: {row['key']}: {'; '.join(told[:3])}, which {KEPT} has"


def _weights(path: Path, results: Path) -> Iterator[str]:
    """Compare a run folder that was kept with its weights with what was kept of all runs."""
    kept = RunFolder(path.parent)
    record = kept.read_record() or {}
    if path.read_bytes() != (results / WITH_WEIGHTS / Path(*path.parts[-4:])).read_bytes():
        yield f"{path}: is not what {KEPT} has"
    elif not kept.model_path.exists() or sha256(kept.model_path) != record["files"][kept.model_path.name]:
        yield f"{kept.model_path}: is not what this run wrote"


def _rows(folder: Path, plan: Plan, runs: pd.DataFrame, about: Mapping[str, Any]) -> Iterator[str]:
    """Compare rows of runs.csv with the numbers and hashes in provenance.yaml, and with the study."""
    hashes = row_hashes(folder / RUNS)
    by_key = {row["key"]: row for row in runs.to_dict("records")}
    planned = _planned(plan, runs, today="study_schema" not in about)
    for record in about["runs"]:
        key = key_of(record)
        if key not in by_key:
            continue
        (line, found), row = hashes[key], by_key[key]
        measured = [name for name in _IN_BOTH if name in record and (row["status"] == "ok" or name == "status")]
        expected = {name: (record[name], PROVENANCE) for name in measured}
        expected |= {name: (value, STUDY) for name, value in planned.get(key, {}).items()}
        told = [
            f"{name} is {_shown(row.get(name))}, not {_shown(value)}, which {source} has"
            for name, (value, source) in expected.items()
            if not _same(row.get(name), value)
        ]
        if told:
            yield f"{folder / RUNS}:{line}: {'; '.join(told[:3])} ({key})"
        elif record.get("row", found) != found:
            yield f"{folder / RUNS}:{line}: was changed: it is not the row that {PROVENANCE} has the hash of ({key})"


def _planned(plan: Plan, runs: pd.DataFrame, today: bool) -> dict[str, dict[str, Any]]:
    """Return what the study says of each run, by its key; options only where they have today's names."""
    if set(runs["key"]) != {run.key for run in plan.runs}:
        return {}
    columns = ["study", "experiment", "data_set", "variant", "model", "seed"]
    frame = runs_of_plan(plan, runs)
    if today:
        columns += ["label", *(name for name in frame if name.startswith("option."))]
    later = {run.key: _came_later(run) - set(runs) for run in plan.runs}
    rows = {str(row["key"]): row for row in frame.to_dict("records")}
    return {key: {name: row[name] for name in columns if name not in later[key]} for key, row in rows.items()}


def _came_later(run: Run) -> set[str]:
    """Return the columns of options that a reference may be older than."""
    return {f"option.{name}" for name in flat_options(run.options).keys() - flat_options(run.lasting_options).keys()}


def _digests(folder: Path, plan: Plan, records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Compare the digests of the study's runs with those that were trained."""
    trained = {key_of(record): record["digest"] for record in records}
    for run in plan.runs:
        if trained.get(run.key, run.digest) != run.digest:
            yield (
                f"{folder / PROVENANCE}: {run.key} was trained with digest {trained[run.key]}; {STUDY} gives "
                f"{run.digest}, so one of the two was changed"
            )


def _tables(folder: Path, plan: Plan, runs: pd.DataFrame, correct: Correct | None) -> Iterator[str]:
    """Rebuild the tables and compare them byte for byte; name the first line that differs."""
    committed = folder / "tables"
    with tempfile.TemporaryDirectory() as place:
        rebuilt = Path(place) / "tables"
        write_tables(plan, runs_of_plan(plan, runs), rebuilt, correct, measures_of(plan, folder))
        names = {path.name for path in rebuilt.iterdir()} if rebuilt.exists() else set()
        there = {path.name for path in committed.iterdir()} if committed.exists() else set()
        for name in sorted(names | there):
            if name not in names:
                yield f"{committed / name}: no table of {STUDY} has this file"
            elif name not in there:
                yield f"{committed / name}: is not there; 'capsbench tables --runs {folder / RUNS}' writes it"
            elif (committed / name).read_bytes() != (rebuilt / name).read_bytes():
                yield _first_difference(committed / name, rebuilt / name)


def _first_difference(committed: Path, rebuilt: Path) -> str:
    lines = [path.read_text(encoding="utf-8", errors="replace").split("\n") for path in (committed, rebuilt)]
    for number, (ours, theirs) in enumerate(zip_longest(*lines, fillvalue=""), 1):
        if ours != theirs:
            return f"{committed}:{number}: says {_differing(ours, theirs)}, which {RUNS} gives"
    return f"{committed}: line ends differ from those that are written today"


def _differing(ours: str, theirs: str) -> str:
    """Show the first place where two lines differ."""
    same = next((at for at, pair in enumerate(zip_longest(ours, theirs)) if pair[0] != pair[1]), 0)
    start = max(0, same - _AROUND)
    cut = [("..." if start else "") + text[start : same + _AROUND].strip() for text in (ours, theirs)]
    return f"'{cut[0]}', not '{cut[1]}'"


def _commits(folder: Path, about: Mapping[str, Any], findings: Findings) -> None:
    """Look whether the commits that provenance.yaml names are in the git history."""
    named: dict[str, list[str]] = {}
    for name in ("analysis", "study"):
        if about.get(f"{name}_commit"):
            named.setdefault(str(about[f"{name}_commit"]), []).append(f"the {name}")
    for run in about["runs"]:
        for name in ("commit", "evaluation_commit", "study_commit"):
            if run.get(name):
                named.setdefault(str(run[name]), []).append(key_of(run))
    whole = {text.removesuffix("+changes"): users for text, users in named.items() if text != "unknown"}
    findings.add(
        f"{folder / PROVENANCE}: {text[:50]} is no commit ({_users(users)})"
        for text, users in whole.items()
        if not is_commit(text)
    )
    shallow = git(folder, "rev-parse", "--is-shallow-repository")
    if shallow != "false":
        why = "this is a shallow clone" if shallow == "true" else "there is no git history here"
        findings.notes.append(f"{folder}: {why}, so the commits of {PROVENANCE} were not looked up")
        return
    findings.add(
        f"{folder / PROVENANCE}: commit {text} is not in the git history ({_users(users)})"
        for text, users in whole.items()
        if is_commit(text) and git(folder, "cat-file", "-e", f"{text}^{{commit}}") is None
    )


def _users(users: Sequence[str]) -> str:
    return users[0] + (f" and {len(users) - 1} more" if users[1:] else "")


def _checkout(folder: Path) -> Path | None:
    """Return the checkout that a reference belongs to, whose pages take numbers from it; None outside one."""
    parents = folder.resolve().parents
    root = parents[2] if len(parents) > 2 else None
    return root if root is not None and (root / "docs" / "generate.py").is_file() else None


def _blocks(root: Path, names: Sequence[str]) -> list[str]:
    """Fill the blocks of README.md and docs/ anew in a copy and compare those that come from the references."""
    problems = []
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        shutil.copytree(root / "docs", copy / "docs", ignore=lambda _, found: [n for n in found if n.startswith(".")])
        shutil.copy(root / "README.md", copy)
        (copy / "results").symlink_to((root / "results").resolve(), target_is_directory=True)
        command = [sys.executable, str(root / "docs" / "generate.py"), "--root", str(copy)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            return [f"{root / 'docs' / 'generate.py'}: failed: {said}"]
        for page in sorted([copy / "README.md", *(copy / "docs").rglob("*.md")]):
            ours = root / page.relative_to(copy)
            for line, text in _stale(ours.read_text(encoding="utf-8"), page.read_text(encoding="utf-8"), names):
                problems.append(f"{ours}:{line}: {text}")
    return problems


def _stale(ours: str, fresh: str, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Compare the blocks of a page that name a reference; yield the line and what differs."""
    blocks = [_split(text) for text in (ours, fresh)]
    for (start, head, body), (_, _, wanted) in zip(*blocks, strict=True):
        if body == wanted or not set(head.split()) & set(names):
            continue
        for offset, (found, right) in enumerate(zip_longest(body.split("\n"), wanted.split("\n"), fillvalue="")):
            if found != right:
                yield start + offset, f"says {_differing(found, right)} (block '{head}'; run python docs/generate.py)"
                break


def _split(text: str) -> list[tuple[int, str, str]]:
    """Return line, name with arguments, and what stands in each block of a page."""
    found = []
    for match in _BLOCK.finditer(text):
        end = text.index(f"<!-- end {match[1]} -->", match.end())
        found.append((text[: match.end()].count("\n") + 1, match[1] + match[2], text[match.end() : end]))
    return found


def _same(one: Any, other: Any) -> bool:
    absent = [value is None or (isinstance(value, float) and math.isnan(value)) for value in (one, other)]
    return all(absent) or (not any(absent) and (one == other or str(one) == str(other)))


def _shown(value: Any) -> str:
    return "nothing" if value is None or (isinstance(value, float) and math.isnan(value)) else str(value)[:60]
