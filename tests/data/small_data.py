"""What the tests of data share: data sets as a study chooses them, and small ones of each kind."""

from pathlib import Path

import pytest
import torch

from capsbench.data import make_task, read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.tasks.draws import EpochDraws
from capsbench.study import Data

CPU = torch.device("cpu")
NOWHERE = Path("nowhere")
EMBEDDED = [name for name, facts in CATALOGUE.items() if not facts.needs_files]
# options that make an embedded data set small; one that is not here is tested with its defaults
SMALL = {
    "multidigits": {"train_pairs": 250, "test_pairs": 150},
    "affdigits": {"transforms_per_image": 2},
    "toynorb": {"lightings": 1},
    "toynorb-centred": {"lightings": 1},
}
# every embedded data set, and options that change what a task does
CASES = [
    *((name, SMALL.get(name, {})) for name in EMBEDDED),
    ("affdigits", {"train": "affine", "transforms_per_image": 1}),
    ("toynorb", {"lightings": 1, "view": "elevation"}),
]
every_case = pytest.mark.parametrize(
    ("name", "options"), CASES, ids=["-".join(map(str, (name, *options.values()))) for name, options in CASES]
)


def data_of(name, allow_unofficial=False, **options) -> Data:
    """A data set as a study chooses it."""
    return Data(name=name, options=CATALOGUE[name].options(**options), allow_unofficial=allow_unofficial)


def task_of(name, split, **options):
    """The task of a data set that needs no files."""
    data = data_of(name, **options)
    return make_task(data, read_split(data, NOWHERE, split), split, CPU)


def draws_of(images, seed=0, epoch=1):
    """What is drawn in one epoch for images [B] by their numbers."""
    return EpochDraws(seed, epoch, int(images.max()) + 1, CPU).of(images)
