"""Training speed of the networks of a study: forward pass, loss, backward pass and Adam, on random data.

One row per network, so that a person knows what a study costs before it is run: see `capsbench.benchmarks.costs`.
"""

import hashlib
import json
import logging
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from capsbench.benchmarks.memory import peak_bytes
from capsbench.errors import InputError
from capsbench.losses import Loss
from capsbench.models import build_model
from capsbench.run.device import describe
from capsbench.run.folder import write_whole
from capsbench.run.provenance import commit, now
from capsbench.study import Plan, Run

log = logging.getLogger(__name__)

WARM_UP = 2  # steps that are not timed: the first allocates, and on a GPU chooses its kernels
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
        "model": run.model, "options": run.options, "image_shape": run.data.image_shape,
        "classes": run.data.facts.num_classes, "objects": run.data.facts.objects,
        "batch_size": run.training.batch_size,
    }  # fmt: skip
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
        measured = _in_own_process(run, place, steps)
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


def _in_own_process(run: Run, device: str, steps: int) -> tuple[float, float] | str:
    """Return images per second and bytes, or in one line why there are none."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(time_training, run, device, steps).result()
        except BrokenProcessPool:
            return "its process was killed, which is what Linux does where memory is short"
        except (RuntimeError, ValueError, MemoryError) as error:
            return (str(error).strip().splitlines() or [type(error).__name__])[0]


def time_training(run: Run, device: str, steps: int) -> tuple[float, float]:
    """Train a run's network on random data -> images per second (median over `steps`) and peak memory in bytes."""
    torch.set_num_threads(run.training.threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(run.training.deterministic)
    torch.backends.cudnn.benchmark = not run.training.deterministic
    torch.manual_seed(0)
    before = peak_bytes(device)
    model = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options).to(device)
    for module in model.modules():
        if isinstance(module, Loss):
            module.begin(WARM_UP + steps, 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images, labels, targets = _random_batch(run, device)
    times = []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        parts = model.loss(model(images, labels), targets, labels)
        optimizer.zero_grad()
        torch.stack(list(parts.values())).sum().backward()
        optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return run.training.batch_size / statistics.median(times[WARM_UP:]), peak_bytes(device) - before


def _random_batch(run: Run, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return images [B, C, H, W], labels [B] or [B, S], and targets as decoders take them."""
    count, objects, classes = run.training.batch_size, run.data.facts.objects, run.data.facts.num_classes
    images = torch.rand(count, *run.data.image_shape)
    if objects == 1:
        labels, targets = torch.randint(classes, (count,)), images
    else:
        labels = torch.rand(count, classes).topk(objects, dim=1).indices.sort(dim=1).values
        targets = torch.rand(count, objects, *run.data.image_shape)
    return images.to(device), labels.to(device), targets.to(device)
