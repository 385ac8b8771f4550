"""What the jobs of a study ask of a cluster: memory and minutes, from the study and from measured speeds.

The rule is simple and on the safe side: a job that ends early costs nothing, and one that runs out of time continues
from its checkpoint with more.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from capsbench.benchmarks.costs import SPEEDS, cost, images_shown
from capsbench.benchmarks.networks import network_digest, no_speeds, read_speeds
from capsbench.study import Plan

ASSUMED = {"gpu": 500, "cpu": 10}  # images per second of a network that was not measured on such a device
START_MINUTES = 30  # of every job: the node, imports, data
MARGIN = 2  # times the training steps alone: looks at the test, checkpoints, a slower node
EVALUATED_EPOCHS = 10  # an evaluation takes as long as that many passes over the training images
BASE_MB = 4000  # libraries, data, CUDA on the host
UNKNOWN_MB = 16000


@dataclass(frozen=True)
class Request:
    """What the jobs of a run ask for at their first attempt."""

    mem_mb: int
    training_minutes: int
    evaluation_minutes: int


def requests(plan: Plan, gpus: bool, source: Path = SPEEDS) -> dict[str, Request]:
    """Return what each run of a study asks for, by its key.

    Args:
        plan: the study.
        gpus: whether the cluster has GPUs: all runs compute on one then, but for those whose device is `cpu`.
        source: speeds from `capsbench bench networks`, where that file is there. The slowest machine counts.
    """
    speeds = read_speeds(source) if source.exists() else no_speeds()
    on_cpu = speeds["threads"].notna()
    measured = {"cpu": speeds[on_cpu], "gpu": speeds[~on_cpu]}
    seconds = {kind: _seconds_per_image(plan, known) for kind, known in measured.items()}
    peaks = measured["cpu"].groupby("network")["peak_mb"].max().to_dict()
    found = {}
    for number, run in enumerate(plan.runs):
        kind = "gpu" if gpus and run.training.device != "cpu" else "cpu"
        per_image = seconds[kind][number]
        if math.isnan(per_image):
            per_image = 1 / ASSUMED[kind]
        peak = peaks.get(network_digest(run)) if kind == "cpu" else None
        found[run.key] = Request(
            UNKNOWN_MB if peak is None else math.ceil(BASE_MB + MARGIN * peak),
            _minutes(images_shown(run) * per_image),
            _minutes(EVALUATED_EPOCHS * run.data.trained_images * per_image),
        )
    return found


def _seconds_per_image(plan: Plan, speeds: pd.DataFrame) -> list[float]:
    """Return the seconds that an image takes in training on the slowest machine, by run; nan where nothing is known."""
    costs = cost(plan, speeds)
    hours = costs.drop(columns=["table", "experiment", "variant", "images"])
    return list(hours.max(axis="columns") * 3600 / costs["images"])


def _minutes(seconds: float) -> int:
    return math.ceil(START_MINUTES + MARGIN * seconds / 60)
