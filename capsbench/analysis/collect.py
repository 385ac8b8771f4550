"""Run folders -> one data frame, a row for each planned run, whatever became of it."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from capsbench.config import Plan, Run
from capsbench.errors import InputError
from capsbench.options import flat_options
from capsbench.run_folder import RunFolder, write_whole

FINISHED = ("ok", "diverged", "failed")


def collect(plan: Plan, results: Path) -> pd.DataFrame:
    """Return a row for each run of a study, in the order of its file.

    status: ok, diverged, failed; running; missing (never started, or trained under another configuration than the
    study now has, or not evaluated yet). Numbers are there for `ok` alone: test_error in % (of pairs the pair-exact
    error, beside it per_digit_error), familiar_error, squared_error a test image, parameters, seconds of training,
    images_per_second. unofficial: files that are not the official ones. Options of the model are columns `option.NAME`.
    """
    return pd.DataFrame([_row(run, RunFolder.of(results, run.study, run.key)) for run in plan.runs])


def learning_curves(plan: Plan, results: Path) -> pd.DataFrame:
    """Return metrics.csv of all runs that ended well, one below the other, with experiment, variant and seed."""
    frames = []
    for run in plan.runs:
        folder = RunFolder.of(results, run.study, run.key)
        record = folder.read_record()
        ended = record and record["status"] == "ok" and record["digest"] == run.digest
        if ended and folder.metrics_path.exists():
            frame = pd.read_csv(folder.metrics_path)
            frames.append(frame.assign(experiment=run.experiment, variant=run.variant, seed=run.seed))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def write_runs(frame: pd.DataFrame, path: Path) -> None:
    """Write runs.csv."""
    write_whole(path, lambda aside: frame.to_csv(aside, index=False))


def _row(run: Run, folder: RunFolder) -> dict[str, Any]:
    record = folder.read_record() or {}
    status = record.get("status", "missing")
    if record and record["digest"] != run.digest:
        status = "missing"
    row: dict[str, Any] = {
        "study": run.study, "experiment": run.experiment, "data_set": run.data.name, "variant": run.variant,
        "model": run.model, "seed": run.seed, "status": status, "key": run.key,
    }  # fmt: skip
    if status == "ok":
        accuracy = _evaluation(folder, "accuracy", record["started"])
        if accuracy.get("status") != "ok":
            row["status"] = "missing"
        else:
            row |= {"test_error": accuracy["error"], "test_images": accuracy["images"]}
            row["per_digit_error"] = accuracy.get("per_digit_error")
            row["familiar_error"] = _evaluation(folder, "familiar", record["started"]).get("error")
            row["unofficial"] = "; ".join(dict.fromkeys(record["data"]["unofficial"] + accuracy["unofficial"]))
            row["squared_error"] = _evaluation(folder, "reconstruction", record["started"]).get("squared_error")
            row |= {k: record[k] for k in ("parameters", "seconds", "epochs", "commit")}
            row["train_images"] = record["data"]["train_images"]
            row["images_per_second"] = record["data"]["epoch_images"] * row["epochs"] / max(row["seconds"], 1e-9)
    row |= {f"option.{name}": value for name, value in flat_options(run.options).items()}
    return row


def _evaluation(folder: RunFolder, protocol: str, training_started: str) -> dict[str, Any]:
    """Read a protocol's result; nothing if it is not there or of another training than the one that run.yaml tells."""
    path = folder.evaluation_path(protocol)
    try:
        found = json.loads(path.read_text()) if path.exists() else {}
    except ValueError:
        raise InputError(f"{path}: damaged; delete it and evaluate the run again") from None
    return found if found.get("training_started") == training_started else {}
