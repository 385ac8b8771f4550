"""What a processor does around the networks: batches of an epoch, and the start of a command."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from capsbench.benchmarks.turns import Case, ready
from capsbench.data import data_root, make_task, read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.tasks.task import Task
from capsbench.study import Augmentation, Data

# data sets without files, and the options that make an epoch of them short
EPOCHS: dict[str, dict[str, Any]] = {
    "digits": {}, "multidigits": {"train_pairs": 1280}, "affdigits": {}, "toynorb": {"lightings": 1},
}  # fmt: skip
STARTS = {
    "python -c pass": ("-c", "pass"),
    "import capsbench.cli": ("-c", "import capsbench.cli"),
    "capsbench --help": ("-m", "capsbench", "--help"),
}


def batch_cases(names: Sequence[str], batch: int, device: str) -> Iterator[Case]:
    """Yield the batches of an epoch of some data sets, augmented as their papers do it, without a network."""
    for name in names:
        data = Data(name=name, options=CATALOGUE[name].options(**EPOCHS[name]))
        images = EPOCHS[name].get("train_pairs") or data.trained_images
        facts = {
            "group": "batches", "name": name, "form": "an epoch", "case": f"{images} images, batch {batch}",
            "batch": batch,
        }  # fmt: skip
        yield Case(partial(_prepare, data, batch, device), facts, rated=(images, "images/s"))


def start_cases() -> Iterator[Case]:
    """Yield the start of new processes, from the call to the end."""
    for name, arguments in STARTS.items():
        facts = {"group": "start-up", "name": name, "form": "a new process", "case": "from call to end"}
        call = partial(subprocess.run, [sys.executable, *arguments], check=True, capture_output=True)
        yield Case(ready(call), facts, by_the_clock=True)


def _prepare(data: Data, batch: int, device: str) -> Callable[[], object]:
    task = make_task(data, read_split(data, data_root(), "train"), "train", torch.device(device))
    augmentation = Augmentation(**data.facts.default_augmentation(data.options))
    return partial(_make_epoch, task, batch, augmentation)


def _make_epoch(task: Task, batch: int, augmentation: Augmentation) -> None:
    for _ in task.train_batches(batch, augmentation, 0, 1):
        pass
