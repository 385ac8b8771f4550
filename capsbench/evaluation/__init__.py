"""Evaluation of a finished run on the test set: one pass, then one module a protocol."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsbench import data
from capsbench.config import Run
from capsbench.data.catalogue import CATALOGUE, Role
from capsbench.device import claimed_device
from capsbench.errors import InputError
from capsbench.evaluation import accuracy, reconstruction
from capsbench.evaluation.predictions import Predictions, predict
from capsbench.models import build_model
from capsbench.run_folder import RunFolder, write_json, write_whole

# protocol -> the split that it looks at, and what it measures there
PROTOCOLS: dict[str, tuple[Role, Callable[[Predictions], dict[str, Any]]]] = {
    "accuracy": ("test", accuracy.measure),
    "familiar": ("familiar", accuracy.measure),
    "reconstruction": ("test", reconstruction.measure),
}


def evaluate(run: Run, results: Path, root: Path, protocols: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Measure a run under each protocol -> results by protocol, also written to evaluations/ and predictions.npz.

    A run that diverged gets files that say so and hold no number. Raises InputError for a run that is not finished
    or was trained under another configuration than the study's.
    """
    folder = RunFolder.of(results, run.study, run.key)
    record = folder.read_record()
    if record is None or record["status"] not in ("ok", "diverged"):
        status = "not there" if record is None else record["status"]
        raise InputError(f"{folder.path}: nothing to evaluate, the run is {status}; 'capsbench train' it first")
    if record["digest"] != run.digest:
        raise InputError(f"{folder.path}: trained under another configuration than the study's; train it again")

    arrays: dict[str, np.ndarray] = {}
    found: dict[str, dict[str, Any]] = {name: {"status": "diverged"} for name in protocols}
    if record["status"] == "ok":
        torch.set_num_threads(run.training.threads)
        facts = CATALOGUE[run.data.name]
        model = build_model(run.model, facts.shape(run.data.options), facts.num_classes, **run.options)
        model.load_state_dict(torch.load(folder.model_path, map_location="cpu", weights_only=True))
        found = {name: {"status": "not applicable"} for name in protocols}
        with claimed_device(run.training.device) as device:
            for role in _roles(run):
                raw = data.read_raw(run.data.name, root, role, run.data.allow_unofficial, run.data.options)
                feed = data.make_feed(run.data.name, raw, role, run.data.options, device)
                predictions = predict(model.to(device), feed)
                if role == "test":
                    arrays = predictions.arrays()
                about = {
                    "data_fingerprint": data.fingerprint([raw.images, raw.labels, *raw.factors.values()]),
                    "unofficial": list(raw.unofficial),
                }
                for name in protocols:
                    looks_at, measure = PROTOCOLS[name]
                    if looks_at == role:
                        found[name] = measure(predictions) | about
    if record["status"] == "ok":  # run.yaml says what is not official of the test's files too
        told = [line for result in found.values() for line in result.get("unofficial", [])]
        record["data"]["unofficial"] = list(dict.fromkeys([*record["data"]["unofficial"], *told]))
        folder.write_record(record)
    write_whole(folder.predictions_path, lambda aside: _save(aside, arrays))
    for name in found:
        found[name] = found[name] | {"training_started": record["started"]}  # of which training: see analysis.collect
        write_json(folder.evaluation_path(name), found[name])
    return found


def _roles(run: Run) -> tuple[Role, ...]:
    familiar = CATALOGUE[run.data.name].has_familiar_test(run.data.options)
    return ("test", "familiar") if familiar else ("test",)


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:  # np.savez would add its own ending to a path
        np.savez_compressed(file, allow_pickle=False, **arrays)
