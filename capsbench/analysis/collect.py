"""Run folders, or runs.csv -> one data frame with a row per planned run, whatever became of it."""

import ast
import csv
import logging
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from capsbench.analysis.stuck import diagnostics_in_words
from capsbench.errors import InputError
from capsbench.registry import flat_options
from capsbench.run.finished import finished
from capsbench.run.folder import Damaged, RunFolder, whole, write_whole
from capsbench.run.match import TOLERANCE
from capsbench.run.provenance import machines
from capsbench.study import Plan, Run

log = logging.getLogger(__name__)

NUMBERS = (
    "test_error", "test_images", "per_digit_error", "familiar_error", "squared_error", "parameters", "seconds",
    "epochs", "steps", "peak_memory_mb", "multiply_adds", "train_images", "images_per_second",
)  # fmt: skip
_OF_THE_STUDY = ("study", "experiment", "data_set", "variant", "label", "model", "seed")
_IN_FRONT = (*_OF_THE_STUDY, "status", "key", *NUMBERS, "unofficial", "commit")
_AT_THE_END = (
    "matched_to", "overshoot", "match_tolerance", "stuck_at_chance", "diagnostics", "code", "training_data",
    "machines", "measured_by",
)  # fmt: skip
_WHOLE, _DECIMAL = re.compile(r"[-+]?\d+"), re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?inf")
_NUMBERS_OF_A_ROW = {"seed", "overshoot", "match_tolerance", *NUMBERS}
_TEXTS = {*_IN_FRONT, *_AT_THE_END} - _NUMBERS_OF_A_ROW - {"stuck_at_chance"}
NEAR_CHANCE = 0.95  # share of the error of guessing from which a run that says nothing counts as stuck at chance


def collect(plan: Plan, results: Path) -> pd.DataFrame:
    """Return a row per run of a study, in the order of its file.

    status: ok, diverged, failed, running, interrupted (its process is gone), damaged (a message says which file), or
    missing (never started, trained under another configuration than the study has now, or not evaluated yet).
    Every column but those of options is there whatever has run; only rows with status `ok` have
    numbers: test_error in % (for pairs of digits the pair-exact error, with per_digit_error in a
    column of its own), familiar_error, squared_error per test image, parameters, seconds of training, epochs, steps,
    peak_memory_mb, multiply_adds, images_per_second. unofficial: the files that are not the official ones, empty where
    there are none. label: what tables and plots call the variant. Options of the network are columns `option.NAME`,
    with dotted names for groups: option.routing, option.routing.iterations. After them, matched_to: the run at whose
    familiar error this one stopped; overshoot: how far its own was below that when it stopped, in points;
    match_tolerance: up to which distance the two count as equal;
    stuck_at_chance, with the diagnostics in words. code, training_data: hashes of the code that trained and of the
    training set as read, machines: processor or GPU and versions of torch and Python; the same in all seeds of a
    variant unless something changed between them; measured_by: a hash of the code that measured the
    error, likewise. What is not there is NaN.
    """
    labels = _labels(plan)
    return _frame([_row(run, labels, RunFolder.of(results, run.study, run.key)) for run in plan.runs])


def read_runs(path: Path) -> pd.DataFrame:
    """Read runs.csv back into the frame that `collect` gave, with its columns, values and types.

    A file of an older version has the options under the names of that version; columns that it lacks hold NaN, the
    label the name of the variant. `runs_of_plan` gives its runs the options and labels of a study.

    Raises:
        InputError: the file is not there, or is no runs.csv; the message names the line.
    """
    if path.is_fifo():  # opening it would wait for somebody to write into it
        raise InputError(f"{path}: is no runs.csv: it is a FIFO")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.reader(file, strict=True))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is no runs.csv: {error}") from None
    names = lines[0] if lines else []
    needed = {*_OF_THE_STUDY, "status", "key", "test_error"} - {"label"}
    if missing := sorted(needed - set(names)):
        raise InputError(f"{path}: is no runs.csv: it has no column '{missing[0]}'")
    rows = []
    for number, cells in enumerate(lines[1:], 2):
        if len(cells) != len(names):
            raise InputError(f"{path}:{number}: has {len(cells)} values for {len(names)} columns")
        try:
            rows.append({name: _value(name, text) for name, text in zip(names, cells, strict=True) if text})
        except ValueError as error:
            raise InputError(f"{path}:{number}: {error}") from None
        if rows[-1].get("status") == "ok":
            rows[-1].setdefault("unofficial", "")
        rows[-1].setdefault("label", rows[-1].get("variant"))
    return _frame(rows, [name for name in names if name.startswith("option.")])


def runs_of_plan(plan: Plan, runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs that were read from a file with what the study says of them: order, labels, options by today's names.

    Where a run does not say whether it stayed at chance, as those of older versions, its test error decides: it did if
    that is not below 95 % of the error of guessing.

    Raises:
        InputError: the runs are not those of the study.
    """
    found = {str(row["key"]): row for row in runs.to_dict("records")}
    planned = [run.key for run in plan.runs]
    if odd := [key for key in planned if key not in found] or [key for key in found if key not in set(planned)]:
        where = "is not among the runs" if odd[0] in set(planned) else f"is no run of {plan.path}"
        raise InputError(f"{plan.study.name}: the runs are not those of {plan.path}: {odd[0]} {where}")
    labels = _labels(plan)
    kept = [name for name in (*_IN_FRONT, *_AT_THE_END) if name not in _OF_THE_STUDY]
    frame = _frame(
        [
            _of_the_study(run, labels) | {name: found[run.key][name] for name in kept} | _options(run)
            for run in plan.runs
        ]
    )
    chance = pd.Series([run.data.facts.chance_error for run in plan.runs], index=frame.index)
    unknown = frame["stuck_at_chance"].isna() & (frame["status"] == "ok")  # runs of a version that did not note it
    at_chance = frame["test_error"] >= NEAR_CHANCE * chance
    return frame.assign(stuck_at_chance=frame["stuck_at_chance"].where(~unknown, at_chance))


def learning_curves(plan: Plan, results: Path) -> pd.DataFrame:
    """Return metrics.csv of all runs with status `ok`, concatenated, with experiment, variant, label and seed."""
    labels = _labels(plan)
    frames = []
    for run, folder, record in finished(plan, results):
        if folder.metrics_path.exists():
            folder.check(folder.metrics_path, record)
            with whole(folder.metrics_path):
                frame = pd.read_csv(folder.metrics_path)
            label = labels[run.experiment, run.variant]
            frames.append(frame.assign(experiment=run.experiment, variant=run.variant, label=label, seed=run.seed))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def write_runs(frame: pd.DataFrame, path: Path) -> None:
    """Write runs.csv."""
    write_whole(path, lambda aside: frame.to_csv(aside, index=False))


def _labels(plan: Plan) -> dict[tuple[str, str], str]:
    """Return the label of each (experiment, variant); labels that an experiment has twice also name the variant."""
    labels = {(run.experiment, run.variant): run.label for run in plan.runs}
    counts = Counter((experiment, label) for (experiment, _), label in labels.items())
    return {
        (experiment, variant): label if counts[experiment, label] == 1 else f"{label} ({variant})"
        for (experiment, variant), label in labels.items()
    }


def _of_the_study(run: Run, labels: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    return {
        "study": run.study, "experiment": run.experiment, "data_set": run.data.name, "variant": run.variant,
        "label": labels[run.experiment, run.variant], "model": run.model, "seed": run.seed,
    }  # fmt: skip


def _options(run: Run) -> dict[str, Any]:
    return {f"option.{name}": value for name, value in flat_options(run.options).items()}


def _row(run: Run, labels: dict[tuple[str, str], str], folder: RunFolder) -> dict[str, Any]:
    record, status = {}, "missing"
    try:
        record = folder.read_record() or {}
        status = record.get("status", "missing")
    except Damaged as error:
        log.warning("%s", error)
        status = "damaged"
    if status == "running" and not folder.is_locked():
        status = "interrupted"
    if record and record["digest"] != run.digest:
        status = "missing"
    numbers: dict[str, Any] = {}
    if status == "ok":
        try:
            numbers = _numbers(folder, record)
        except Damaged as error:
            log.warning("%s", error)
            status = "damaged"
        else:
            status = "ok" if numbers else "missing"
    return _of_the_study(run, labels) | {"status": status, "key": run.key} | numbers | _options(run)


def _numbers(folder: RunFolder, record: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a run that was trained; none where it is not evaluated. Raises Damaged."""
    data, accuracy = record["data"], folder.read_evaluation("accuracy", record)
    if accuracy.get("status") != "ok":
        return {}
    images = record.get("images", data["epoch_images"] * record["epochs"])  # the last epoch may be a part of one
    return {
        "test_error": accuracy["error"],
        "test_images": accuracy["images"],
        "per_digit_error": accuracy.get("per_digit_error"),
        "familiar_error": folder.read_evaluation("familiar", record).get("error"),
        "squared_error": folder.read_evaluation("reconstruction", record).get("squared_error"),
        **{name: record[name] for name in ("parameters", "seconds", "epochs")},
        **{name: record.get(name) for name in ("steps", "peak_memory_mb", "multiply_adds")},
        "train_images": data["train_images"],
        "images_per_second": images / max(record["seconds"], 1e-9),
        "unofficial": "; ".join(dict.fromkeys(data["unofficial"] + accuracy["unofficial"])),
        "commit": record["commit"],
        "code": record.get("code"),
        "training_data": data["fingerprint"][:16],
        "machines": machines(record),
        "measured_by": accuracy.get("code"),
        **_end_of_training(record),
    }


def _end_of_training(record: dict[str, Any]) -> dict[str, Any]:
    """Return where training stopped, and whether it led anywhere.

    A run that reached the familiar error of a run that left chance has left it too, also where it stopped after a few
    steps, in which it had not yet been better than guessing on its training images.
    """
    match, stuck = record.get("match") or {}, record.get("stuck_at_chance", False)
    if match.get("reached"):
        stuck = False
    return {
        "matched_to": match.get("run"),
        "overshoot": match.get("overshoot"),
        "match_tolerance": match.get("tolerance", TOLERANCE if match else None),
        "stuck_at_chance": stuck,
        "diagnostics": diagnostics_in_words(record.get("diagnostics")) or None if stuck else None,
    }


def _frame(rows: list[dict[str, Any]], options: Iterable[str] = ()) -> pd.DataFrame:
    """Put rows into a frame whose types depend on the values alone: the same from run folders and from a file."""
    options = dict.fromkeys([*options, *(name for row in rows for name in row if name.startswith("option."))])
    names = [*_IN_FRONT, *options, *_AT_THE_END]
    return pd.DataFrame({name: _column([row.get(name) for row in rows]) for name in names})


def _column(values: list[Any]) -> pd.Series:
    missing = [value is None or (isinstance(value, float) and math.isnan(value)) for value in values]
    if all(missing):
        return pd.Series([math.nan] * len(values), dtype=float)
    return pd.Series([math.nan if gone else value for gone, value in zip(missing, values, strict=True)])


def _value(name: str, text: str) -> Any:
    """Read a cell of runs.csv. Raises ValueError for a number that is none."""
    if name in _TEXTS:
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if name in _NUMBERS_OF_A_ROW:
        raise ValueError(f"{name} is {text[:30]!r}, which is no number")
    if text in ("True", "False"):
        return text == "True"
    if name == "stuck_at_chance":
        raise ValueError(f"{name} is {text[:30]!r}, neither True nor False")
    return ast.literal_eval(text) if text.startswith("[") else text
