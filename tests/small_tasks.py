"""Tasks of random images with labels in turn, for the tests of protocols."""

import numpy as np
import torch

from capsbench.data import make_task
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.readers.raw import Raw
from capsbench.data.tasks.task import Task
from capsbench.study import Data


def task_of(name: str = "digits", images: int = 60, shape=(1, 28, 28), **options) -> Task:
    """Return the test of a data set with random pixels; image i has label i modulo 5."""
    rng = np.random.default_rng(0)
    raw = Raw(rng.integers(0, 256, (images, *shape), dtype=np.uint8), np.arange(images) % 5)
    data = Data(name=name, options=CATALOGUE[name].options(**options))
    return make_task(data, raw, "test", torch.device("cpu"))
