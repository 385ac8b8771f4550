"""Small runs on embedded data, for the tests of training."""

import csv
import json
from pathlib import Path

import torch

from capsbench.config import Run, load_plan
from capsbench.run_folder import RunFolder
from capsbench.training import train

CAPSNET = {"conv_channels": 8, "primary_types": 2, "decoder_hidden": [16, 32]}
CNN = {"opponent": "resnet20", "opponent_options": {"widths": [4, 16], "blocks": 1}}
TIMES = ("seconds", "images_per_second")


def plan_of(tmp_path, model="capsnet", options=None, data=None, **training):
    study = {
        "name": "study",
        "seeds": [0, 1],
        "training": {"epochs": 3, "batch_size": 32, "device": "cpu", **training},
        "experiments": {
            "digits": {"data": {"name": "digits", "train_images": 96, "validation_images": 50, **(data or {})}}
        },
        "variants": {"v": {"model": model, "options": {**(CAPSNET if model == "capsnet" else CNN), **(options or {})}}},
    }
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(study))
    return load_plan(path)


def run_of(tmp_path, *arguments, **options) -> Run:
    return plan_of(tmp_path, *arguments, **options).runs[0]


def go(run: Run, results: Path, **options):
    status = train(run, results, Path("nowhere"), tracking=False, say=lambda text: None, **options)
    folder = RunFolder.of(results, run.study, run.key)
    return status, folder


def metrics(folder):
    with folder.metrics_path.open() as file:
        return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]


def weights(folder):
    return torch.load(folder.model_path, weights_only=True)


def same_weights(a, b):
    return all(torch.equal(a[name], b[name]) for name in a) and a.keys() == b.keys()


class Stop(BaseException):
    """Ends a run from outside, as a fault of the machine would."""


def stop_after(epoch):
    def reached(number):
        if number == epoch:
            raise Stop

    return reached
