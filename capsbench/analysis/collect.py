"""Run folders -> one data frame with a row per planned run, whatever became of it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from capsbench.analysis.stuck import diagnostics_in_words
from capsbench.errors import InputError
from capsbench.registry import flat_options
from capsbench.run.folder import RunFolder, write_whole
from capsbench.study import Plan, Run


def collect(plan: Plan, results: Path) -> pd.DataFrame:
    """Return a row per run of a study, in the order of its file.

    status: ok, diverged, failed, running, or missing (never started, trained under another configuration than the
    study has now, or not evaluated yet). Only rows with status `ok` have numbers: test_error in % (for pairs of digits
    the pair-exact error, with per_digit_error in a column of its own), familiar_error, squared_error per test image,
    parameters, seconds of training, images_per_second. unofficial: the files that are not the official ones.
    label: what tables and plots call the variant. Options of the network are columns `option.NAME`, with dotted names
    for groups: option.routing, option.routing.iterations. After them, matched_to: the run at whose familiar error this
    one stopped; overshoot: how far its own was below that when it stopped, in points; stuck_at_chance, with the
    diagnostics in words.
    """
    labels = _labels(plan)
    frame = pd.DataFrame([_row(run, labels, RunFolder.of(results, run.study, run.key)) for run in plan.runs])
    last = list(_end_of_training({}))
    return frame[[*frame.columns.drop(last), *last]]


def learning_curves(plan: Plan, results: Path) -> pd.DataFrame:
    """Return metrics.csv of all runs with status `ok`, concatenated, with experiment, variant, label and seed."""
    labels = _labels(plan)
    frames = []
    for run in plan.runs:
        folder = RunFolder.of(results, run.study, run.key)
        record = folder.read_record()
        ended = record and record["status"] == "ok" and record["digest"] == run.digest
        if ended and folder.metrics_path.exists():
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


def _row(run: Run, labels: dict[tuple[str, str], str], folder: RunFolder) -> dict[str, Any]:
    record = folder.read_record() or {}
    status = record.get("status", "missing")
    if record and record["digest"] != run.digest:
        status = "missing"
    row: dict[str, Any] = {
        "study": run.study, "experiment": run.experiment, "data_set": run.data.name, "variant": run.variant,
        "label": labels[run.experiment, run.variant], "model": run.model, "seed": run.seed, "status": status,
        "key": run.key,
    }  # fmt: skip
    if status == "ok":
        accuracy = _evaluation(folder, "accuracy", record["started"])
        if accuracy.get("status") == "ok":
            row |= _numbers(folder, record, accuracy)
        else:
            row["status"] = "missing"
    options = {f"option.{name}": value for name, value in flat_options(run.options).items()}
    return row | options | _end_of_training(record if row["status"] == "ok" else {})


def _numbers(folder: RunFolder, record: dict[str, Any], accuracy: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a run that was trained and evaluated."""
    data = record["data"]
    images = record.get("images", data["epoch_images"] * record["epochs"])  # the last epoch may be a part of one
    return {
        "test_error": accuracy["error"],
        "test_images": accuracy["images"],
        "per_digit_error": accuracy.get("per_digit_error"),
        "familiar_error": _evaluation(folder, "familiar", record["started"]).get("error"),
        "unofficial": "; ".join(dict.fromkeys(data["unofficial"] + accuracy["unofficial"])),
        "squared_error": _evaluation(folder, "reconstruction", record["started"]).get("squared_error"),
        **{name: record[name] for name in ("parameters", "seconds", "epochs", "commit")},
        "train_images": data["train_images"],
        "images_per_second": images / max(record["seconds"], 1e-9),
    }


def _end_of_training(record: dict[str, Any]) -> dict[str, Any]:
    """Return where training stopped, and whether it led anywhere; None for a run without numbers."""
    match, stuck = record.get("match") or {}, record.get("stuck_at_chance", False if record else None)
    return {
        "matched_to": match.get("run"),
        "overshoot": match.get("overshoot"),
        "stuck_at_chance": stuck,
        "diagnostics": diagnostics_in_words(record.get("diagnostics")) or None if stuck else None,
    }


def _evaluation(folder: RunFolder, protocol: str, training_started: str) -> dict[str, Any]:
    """Read the result of a protocol; empty if there is none, or if it belongs to an earlier training of the run."""
    path = folder.evaluation_path(protocol)
    try:
        found = json.loads(path.read_text()) if path.exists() else {}
    except ValueError:
        raise InputError(f"{path}: damaged; delete it and evaluate the run again") from None
    return found if found.get("training_started") == training_started else {}
