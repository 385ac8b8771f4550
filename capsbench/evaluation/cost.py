"""What a network costs: seconds of a forward pass and of a training step, and peak memory."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from capsbench.errors import RunError
from capsbench.evaluation.context import Context
from capsbench.registry import PROTOCOLS, Count, Positive
from capsbench.run.device import describe
from capsbench.run.timing import Measured, Repeats, in_own_process, measure

LEAST, MOST = 5, 200


@PROTOCOLS.register(
    "cost",
    split=None,
    alone=True,
    title="cost of a network",
    draws="values",
    shows={
        "forward_ms": "forward (ms)", "forward_spread_ms": "quartiles apart (ms)",
        "training_step_ms": "training step (ms)", "training_step_spread_ms": "quartiles of the step apart (ms)",
        "training_images_per_second": "trained images per second", "training_memory_mb": "memory in training (MB)",
    },
)  # fmt: skip
def cost(context: Context, *, batch_size: Count | None = None, seconds: Positive = 5.0) -> dict[str, Any]:
    """Time the network on random images with fresh weights, in a process of its own, see `capsbench.run.timing`.

    Nothing else is to run on the machine meanwhile; `warning` says where it looks as if something did.

    Args:
        context: the run.
        batch_size: images in a batch; by default that of the training.
        seconds: how long the forward pass is timed, and how long the training step, at least LEAST times each.
    """
    run, load = context.run, os.getloadavg()[0]
    repeats = Repeats(LEAST, MOST, seconds)
    size = batch_size or run.training.batch_size
    found = in_own_process(measure, run, str(context.device), size, repeats, repeats)
    if isinstance(found, str):
        raise RunError(f"{run.key}: its cost was not measured: {found}")
    about = {
        "batch_size": size, "threads": run.training.threads if context.device.type == "cpu" else None,
        "machine": describe(context.device), "load_average": round(load, 2),
    }  # fmt: skip
    return {"status": "ok"} | costs(found, size) | {"conditions": about | _warning(load, run.training.threads)}


def costs(found: Measured, batch_size: int) -> dict[str, Any]:
    """Return medians and quartiles in ms, images per second by the medians, and memory in MB (1e6 bytes)."""
    forward, step = _quartiles(found.forward), _quartiles(found.step)
    return {
        "forward_ms": forward[1], "forward_spread_ms": forward[2] - forward[0],
        "training_step_ms": step[1], "training_step_spread_ms": step[2] - step[0],
        "forward_images_per_second": 1000 * batch_size / forward[1],
        "training_images_per_second": 1000 * batch_size / step[1],
        "forward_memory_mb": found.forward_bytes / 1e6, "training_memory_mb": found.step_bytes / 1e6,
        "forward_quartiles_ms": forward, "training_step_quartiles_ms": step,
        "repeats": {"forward": len(found.forward), "training_step": len(found.step)},
    }  # fmt: skip


def _quartiles(seconds: Sequence[float]) -> list[float]:
    return [float(value) for value in 1000 * np.quantile(seconds, [0.25, 0.5, 0.75])]


def _warning(load: float, threads: int) -> dict[str, str]:
    """Return what is wrong where other processes may have taken part of the machine.

    load: processes that wanted to run, averaged over the minute before; this one is among them.
    """
    cores = os.cpu_count() or 1
    if load - 1 + threads <= cores:
        return {}
    return {"warning": f"the machine was busy: a load of {load:.1f} on {cores} cores before the measurement"}
