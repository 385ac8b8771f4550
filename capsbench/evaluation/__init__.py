"""Evaluation of a finished run: one pass over each split, then one protocol per file.

A protocol is a function of Predictions that returns its results as a mapping, registered in the file that defines it:

    @PROTOCOLS.register("accuracy", split="test")
    def accuracy(predictions: Predictions) -> dict[str, Any]: ...
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsbench.data import make_task, read_split
from capsbench.errors import InputError
from capsbench.evaluation.items import shown_items
from capsbench.evaluation.predictions import Predictions, collect_predictions
from capsbench.models import build_model
from capsbench.registry import PROTOCOLS
from capsbench.run import provenance
from capsbench.run.device import claimed_device
from capsbench.run.folder import RunFolder, write_json, write_whole
from capsbench.run.load import load_weights
from capsbench.study import Run, Split

__all__ = ["Predictions", "collect_predictions", "evaluate"]


def evaluate(run: Run, results: Path, root: Path, protocols: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Measure a run under each protocol and write evaluations/*.json and predictions.npz.

    A run that diverged gets files that say so and hold no number. `data_fingerprint` of a result is that of the items
    that were shown, see `Items`; run.yaml has it too, under data.shown. `commit` is that of the code that evaluated.

    Args:
        run: the run, as its study has it now.
        results: the folder of results.
        root: the folder of raw data.
        protocols: names of registered protocols.

    Returns:
        The results by protocol.

    Raises:
        InputError: the run is not finished, was trained with another configuration than that of the study, or its
            model.pt is missing or damaged.
    """
    folder = RunFolder.of(results, run.study, run.key)
    record = _finished_record(folder, run)
    arrays: dict[str, np.ndarray] = {}
    if record["status"] == "diverged":
        found: dict[str, dict[str, Any]] = {name: {"status": "diverged"} for name in protocols}
    else:
        found, arrays = _measure(run, folder, root, protocols)
        # run.yaml names the unofficial files of the test as well
        lines = [line for result in found.values() for line in result.get("unofficial", [])]
        record["data"]["unofficial"] = list(dict.fromkeys([*record["data"]["unofficial"], *lines]))
        for result in found.values():
            record["data"].setdefault("files", {}).update(result.get("files", {}))
            if "data_fingerprint" in result:
                record["data"].setdefault("shown", {})[result.pop("split")] = result["data_fingerprint"]
        folder.write_record(record)
    write_whole(folder.predictions_path, lambda aside: _save(aside, arrays))
    # of which training: see analysis.collect
    about = {"commit": provenance.commit(), "training_started": record["started"]}
    for name in found:
        found[name] = found[name] | about
        write_json(folder.evaluation_path(name), found[name])
    return found


def _finished_record(folder: RunFolder, run: Run) -> dict[str, Any]:
    record = folder.read_record()
    if record is None or record["status"] not in ("ok", "diverged"):
        status = "not there" if record is None else record["status"]
        raise InputError(f"{folder.path}: nothing to evaluate, the run is {status}; run 'capsbench train' first")
    if record["digest"] != run.digest:
        raise InputError(f"{folder.path}: trained with another configuration than that of the study; train it again")
    return record


def _measure(
    run: Run, folder: RunFolder, root: Path, protocols: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, np.ndarray]]:
    """Run the network over the splits that it is tested on -> results by protocol, arrays of the test."""
    torch.set_num_threads(run.training.threads)
    model = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)
    load_weights(model, folder.model_path)
    found: dict[str, dict[str, Any]] = {name: {"status": "not applicable"} for name in protocols}
    arrays: dict[str, np.ndarray] = {}
    splits: list[Split] = ["test", "familiar"] if run.data.has_familiar_test else ["test"]
    with claimed_device(run.training.device) as device:
        for split in splits:
            raw = read_split(run.data, root, split)
            task = make_task(run.data, raw, split, device)
            predictions = collect_predictions(model.to(device), task)
            items = shown_items(run.data, raw, task, root)
            if split == "test":
                arrays = predictions.arrays() | items.arrays()
            else:
                arrays |= {f"{split}_{name}": array for name, array in (predictions.scored() | items.arrays()).items()}
            about = {
                "split": split,
                "data_fingerprint": items.fingerprint,
                "unofficial": list(raw.unofficial),
                "files": dict(raw.files),
            }
            for name in protocols:
                protocol = PROTOCOLS[name]
                if protocol.facts["split"] == split:
                    found[name] = protocol.factory(predictions) | about
    return found, arrays


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:  # np.savez would add its own ending to a path
        np.savez_compressed(file, allow_pickle=False, **arrays)
