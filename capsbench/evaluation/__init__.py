"""Evaluation of a finished run under protocols, one per file of this package.

A protocol is a function of a `Context` that returns its results as a mapping, registered in the file that defines it;
its keyword-only arguments are its options, which a study sets:

    @PROTOCOLS.register("viewpoint", title="error by viewpoint", scores_alone=True, shows={"worst": "worst view (%)"})
    def viewpoint(context: Context, *, bins: Count = 18) -> dict[str, Any]: ...

What it returns has a `status`: "ok", or "not applicable" with a `reason`. Numbers under other keys are in MLflow. Those
that `shows` names, with the heading of a column, make the table of the protocol. Arrays are written beside the JSON
file, to evaluations/NAME.npz.

Facts that a protocol is registered with:

- `split`: the images that it measures, "test" or "familiar"; None where it shows no images of the data set.
- `scores_alone`: it needs what one pass over the test gives (`context.predictions`) and not the network; these share
  the pass, and are measured together.
- `alone`: nothing else may run on the machine meanwhile.
- `beside`: its option that names a variant whose network it needs as well, see `Context.trained`.
- `shows`: numbers of its table, with the headings of their columns.
- `draws`: that it has a plot: "curves", drawn from the list `curves` of its result (see `curve`), "values", drawn from
  the numbers that `shows` names, or "own", which a file of capsbench.analysis.plots draws under its name.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsbench.errors import InputError
from capsbench.evaluation.context import Context
from capsbench.evaluation.predictions import Predictions, collect_predictions
from capsbench.evaluation.result import curve, not_applicable
from capsbench.models import build_model
from capsbench.registry import PROTOCOLS, Options
from capsbench.run import provenance
from capsbench.run.code_version import evaluation_version
from capsbench.run.device import claimed_device
from capsbench.run.folder import RunFolder, sha256, write_whole
from capsbench.run.load import load_weights
from capsbench.run.precision import float32
from capsbench.study import Run, Split

__all__ = ["Context", "Predictions", "collect_predictions", "curve", "evaluate", "not_applicable"]

Result = dict[str, Any]


def evaluate(run: Run, results: Path, root: Path, protocols: Sequence[str | Options]) -> dict[str, Result]:
    """Measure a run under protocols and write evaluations/*.json, and predictions.npz if one needs scores alone.

    A run that diverged gets files that say so and hold no number. `data_fingerprint` of a result is that of the items
    that were shown, see `Items`; run.yaml has it too, under data.shown. `commit` is that of the code that evaluated.

    Args:
        run: the run, as its study has it now.
        results: the folder of results.
        root: the folder of raw data.
        protocols: registered protocols, by name or with their options, as `Study.evaluations` has them.

    Returns:
        The results by protocol, without arrays.

    Raises:
        InputError: the run is not finished, was trained with another configuration than that of the study, or its
            model.pt is missing or damaged.
    """
    folder = RunFolder.of(results, run.study, run.key)
    record = _finished_record(folder, run)
    chosen = [PROTOCOLS.options(each)() if isinstance(each, str) else each for each in protocols]
    shared = any(PROTOCOLS[options.name].facts.get("scores_alone") for options in chosen)
    scored: dict[str, np.ndarray] = {}
    if record["status"] == "diverged":
        found: dict[str, Result] = {options.name: {"status": "diverged"} for options in chosen}
    else:
        with claimed_device(run.training.device) as device, float32():
            context = _context(run, folder, record, device, results, root)
            found = {options.name: _measured(context, options) for options in chosen}
            if shared:
                scored = _scored(context)
                _note_items(record, context)
    if shared:
        write_whole(folder.predictions_path, functools.partial(_save, arrays=scored))
        provenance.note_files(record, folder.predictions_path)
        folder.write_record(record)
    # of which training: see RunFolder.read_evaluation
    weights = record.get("files", {}).get(folder.model_path.name) or sha256(folder.model_path)
    about = {"commit": provenance.commit(), "training_started": record["started"], "weights": weights}
    for name, options in zip(found, chosen, strict=True):
        arrays = {key: value for key, value in found[name].items() if isinstance(value, np.ndarray)}
        found[name] = {key: value for key, value in found[name].items() if key not in arrays} | about
        found[name]["code"] = evaluation_version(run, [options])
        path = folder.evaluation_path(name)
        if arrays:
            write_whole(path.with_suffix(".npz"), functools.partial(_save, arrays=arrays))
            found[name]["arrays"] = sha256(path.with_suffix(".npz"))
        else:
            path.with_suffix(".npz").unlink(missing_ok=True)
        folder.write_evaluation(name, found[name])
    return found


def _finished_record(folder: RunFolder, run: Run) -> dict[str, Any]:
    record = folder.read_record()
    if record is None or record["status"] not in ("ok", "diverged"):
        status = "not there" if record is None else record["status"]
        raise InputError(f"{folder.path}: nothing to evaluate, the run is {status}; run 'capsbench train' first")
    if record["digest"] != run.digest:
        raise InputError(f"{folder.path}: trained with another configuration than that of the study; train it again")
    return record


def _context(
    run: Run, folder: RunFolder, record: Mapping[str, Any], device: torch.device, results: Path, root: Path
) -> Context:
    torch.set_num_threads(run.training.threads)
    model = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)
    folder.check(folder.model_path, record)
    load_weights(model, folder.model_path)
    return Context(run, model.to(device).eval(), device, results, root)


def _measured(context: Context, options: Options) -> Result:
    """Measure under one protocol, and say on which images."""
    protocol = PROTOCOLS[options.name]
    split: Split | None = protocol.facts.get("split", "test")
    if split == "familiar" and not context.run.data.has_familiar_test:
        return not_applicable(f"{context.run.data.name} has no familiar test")
    chosen = {name: value for name, value in options.plain().items() if name != "name"}
    found: Result = PROTOCOLS.build(options.name, context, **chosen)
    if found["status"] != "ok":
        return found
    about: Result = {"options": chosen} if chosen else {}
    if split is not None:
        about["data_fingerprint"] = context.items(split).fingerprint
        about["unofficial"] = list(context.raw(split).unofficial)
    return found | about


def _scored(context: Context) -> dict[str, np.ndarray]:
    """Return what predictions.npz holds: scores and items of the test, and of the familiar test under its name."""
    arrays = context.predictions().arrays() | context.items().arrays()
    if context.run.data.has_familiar_test:
        familiar = context.predictions("familiar").scored() | context.items("familiar").arrays()
        arrays |= {f"familiar_{name}": array for name, array in familiar.items()}
    return arrays


def _note_items(record: dict[str, Any], context: Context) -> None:
    """Note on which files and items the run was tested."""
    data = record["data"]
    splits: list[Split] = ["test", "familiar"] if context.run.data.has_familiar_test else ["test"]
    for split in splits:
        raw = context.raw(split)
        data["unofficial"] = list(dict.fromkeys([*data["unofficial"], *raw.unofficial]))
        data.setdefault("files", {}).update(raw.files)
        data.setdefault("shown", {})[split] = context.items(split).fingerprint


def _save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:  # np.savez would add its own ending to a path
        np.savez_compressed(file, allow_pickle=False, **arrays)
