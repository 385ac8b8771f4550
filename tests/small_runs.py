"""Small runs on embedded data, for the tests of training."""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from capsbench.run.folder import RunFolder, write_json
from capsbench.run.train import train
from capsbench.study import Plan, Run, load_plan

CAPSNET = {
    "conv_channels": 8,
    "primary_types": 2,
    "decoder": {"name": "fully_connected", "hidden": [16, 32]},
}
CNN = {"matched_to": {"name": "resnet20", "widths": [4, 16], "blocks": 1}}
TIMES = ("seconds", "images_per_second")


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with changes: into a group of the same name they go one by one, else they replace it."""
    result = dict(base)
    for key, value in changes.items():
        group = base.get(key)
        both = isinstance(group, Mapping) and isinstance(value, Mapping)
        same = both and value.get("name", group.get("name")) == group.get("name")
        result[key] = merged(group, value) if same else value
    return result


def plan_of(tmp_path: Path, model: str = "capsnet", options=None, data=None, **training) -> Plan:
    usual = {"capsnet": CAPSNET, "cnn_matched": CNN}.get(model, {})
    length = {} if "steps" in training else {"epochs": 3}
    study = {
        "name": "study",
        "seeds": [0, 1],
        "training": {**length, "batch_size": 32, "device": "cpu", **training},
        "experiments": {
            "digits": {"data": {"name": "digits", "train_images": 96, "validation_images": 50, **(data or {})}}
        },
        "variants": {"v": {"model": model, "options": merged(usual, options or {})}},
    }
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study))
    return load_plan(path)


def run_of(tmp_path: Path, *arguments, **options) -> Run:
    return plan_of(tmp_path, *arguments, **options).runs[0]


def matched_pair(tmp_path: Path, cnn_epochs: int = 1, **training) -> tuple[Run, Run]:
    """A CNN on translated digits, and the CapsNet that is matched to it."""
    study = {
        "name": "study",
        "seeds": [0],
        "training": {"epochs": 1, "batch_size": 32, "device": "cpu"},
        "experiments": {"moved": {"data": {"name": "affdigits", "options": {"transforms_per_image": 1}}}},
        "variants": {
            "caps": {
                "model": "capsnet",
                "options": CAPSNET,
                "training": {"match": "cnn", "match_every": 5, **training},
            },
            "cnn": {"model": "cnn_matched", "options": CNN, "training": {"epochs": cnn_epochs, "learning_rate": 0.003}},
        },
    }
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study))
    caps, cnn = load_plan(path).runs
    return caps, cnn


def leave_evaluated(run: Run, results: Path, familiar_error: float, status: str = "ok") -> RunFolder:
    """Write what a finished run leaves for one that is matched to it."""
    folder = RunFolder.of(results, run.study, run.key)
    folder.write_record({"status": status, "digest": run.digest, "started": "2026-01-01T00:00:00Z"})
    found = {"status": "ok", "error": familiar_error, "training_started": "2026-01-01T00:00:00Z"}
    write_json(folder.evaluation_path("familiar"), found)
    return folder


def go(run: Run, results: Path, **options) -> tuple[str, RunFolder]:
    status = train(run, results, Path("nowhere"), tracking=False, **options)
    return status, RunFolder.of(results, run.study, run.key)


def metrics(folder: RunFolder) -> list[dict[str, str]]:
    with folder.metrics_path.open() as file:
        return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]


def weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return torch.load(folder.model_path, weights_only=True)


def same_weights(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class Stop(BaseException):
    """Ends a run from outside, as a fault of the machine would."""


def stop_after(epoch: int) -> Callable[[int], None]:
    def reached(number: int) -> None:
        if number == epoch:
            raise Stop

    return reached
