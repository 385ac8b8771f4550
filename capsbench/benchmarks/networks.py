"""Training speed of the networks of a study: forward pass, loss, backward pass and Adam, on random data.

One row per network, so that a person knows what a study costs before it is run: see `capsbench.benchmarks.costs`.
"""

import hashlib
import json
import logging
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from capsbench.errors import InputError
from capsbench.run.device import describe
from capsbench.run.folder import write_whole
from capsbench.run.provenance import commit, now
from capsbench.run.timing import Repeats, in_own_process, measure
from capsbench.study import Plan, Run
from capsbench.study.training import LATER

log = logging.getLogger(__name__)

COLUMNS = (
    "machine", "threads", "torch", "network", "label", "model", "image_shape", "batch_size", "images_per_second",
    "peak_mb", "commit", "date",
)  # fmt: skip
# text where nothing else is named: a digest may look like a number
_TYPES: Any = dict.fromkeys(COLUMNS, str) | {
    "threads": "Int64", "batch_size": int, "images_per_second": float, "peak_mb": float,
}  # fmt: skip


def network_digest(run: Run) -> str:
    """Return a hash of what decides how long a training step takes: network, images, batch."""
    facts = {
        "model": run.model, "options": run.lasting_options, "image_shape": run.data.image_shape,
        "classes": run.data.facts.num_classes, "objects": run.data.facts.objects,
        "batch_size": run.training.batch_size,
    }  # fmt: skip
    facts |= {name: getattr(run.training, name) for name in LATER if name not in run.training.later}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def distinct_networks(plan: Plan) -> list[Run]:
    """Return the first run of each network of a study, by digest and CPU threads, in the order of its file."""
    first: dict[tuple[str, int], Run] = {}
    for run in plan.runs:
        first.setdefault((network_digest(run), run.training.threads), run)
    return list(first.values())


def networks_benchmark(plan: Plan, device: Literal["auto", "cpu", "cuda"], steps: int) -> Iterator[dict[str, Any]]:
    """Time each network of a study at its batch size and image shape, each in its own process.

    Args:
        plan: the study.
        device: auto: a GPU if there is one.
        steps: timed training steps; the row holds their median.

    Yields:
        A row per network with the columns COLUMNS. threads: CPU threads, those of the study; None on a GPU. peak_mb:
        memory beyond that of the process before the network was built; on a GPU, of torch's allocations. A network
        that cannot be trained here, for lack of memory for one, is named in a message and has no row.

    Raises:
        InputError: the device is `cuda` and there is no GPU.
    """
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise InputError("no GPU here for --device cuda; use cpu")
    place: Literal["cpu", "cuda"] = "cuda" if there and device != "cpu" else "cpu"
    about = {"machine": describe(torch.device(place)), "torch": torch.__version__, "commit": commit()}
    done: set[str] = set()
    for run in distinct_networks(plan):
        digest = network_digest(run)
        if place == "cuda" and digest in done:  # threads make no other network of it there
            continue
        done.add(digest)
        measured = in_own_process(time_training, run, place, steps)
        if isinstance(measured, str):
            log.warning("%s/%s: not measured: %s", run.experiment, run.variant, measured)
            continue
        row = {
            **about, "threads": run.training.threads if place == "cpu" else None, "network": digest,
            "label": run.label, "model": run.model, "image_shape": "x".join(map(str, run.data.image_shape)),
            "batch_size": run.training.batch_size, "images_per_second": round(measured[0], 2),
            "peak_mb": round(measured[1] / 1e6, 1), "date": now(),
        }  # fmt: skip
        yield {name: row[name] for name in COLUMNS}


def add_speeds(path: Path, rows: list[dict[str, Any]]) -> None:
    """Add rows to a file of speeds; one for the same machine, threads and network is replaced.

    Raises InputError where the file is there and is something else.
    """
    new = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"threads": "Int64"})
    key = ["machine", "threads", "network"]
    both = pd.concat([read_speeds(path), new]) if path.exists() else new
    kept = both.drop_duplicates(key, keep="last")
    write_whole(path, lambda aside: kept.to_csv(aside, index=False))


def no_speeds() -> pd.DataFrame:
    """Return speeds of nothing."""
    return pd.DataFrame(columns=list(COLUMNS))


def read_speeds(path: Path) -> pd.DataFrame:
    """Read a file of speeds. Raises InputError where it is not there or is something else."""
    if not path.is_file():
        raise InputError(f"{path}: no such file of speeds; 'capsbench bench networks STUDY --output {path}' writes it")
    try:
        frame = pd.read_csv(path, dtype=_TYPES)
    except (ValueError, KeyError):  # pandas: no columns, a row too long, a word for a number
        frame = pd.DataFrame()
    if list(frame.columns) != list(COLUMNS) or not (frame["images_per_second"] > 0).all():
        raise InputError(f"{path}: not a file of 'capsbench bench networks', which has columns {', '.join(COLUMNS)}")
    return frame


def time_training(run: Run, device: str, steps: int) -> tuple[float, float]:
    """Train a run's network on random data -> images per second (median over `steps`) and peak memory in bytes."""
    found = measure(run, device, run.training.batch_size, Repeats(0, 0), Repeats(steps, steps))
    return run.training.batch_size / statistics.median(found.step), found.step_bytes
