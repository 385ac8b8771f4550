"""The time of every routing that is registered, in its fast form and in the plain one, side by side in one process."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from capsbench.errors import InputError
from capsbench.registry import ROUTINGS
from capsbench.routing import LayerSize, Routed, Routing, dynamic_routing, stored_votes
from capsbench.routing.contract import capsule_lengths
from capsbench.routing.dynamic import DynamicRouting
from capsbench.routing.kernels.forms import plain_forms
from capsbench.run.device import describe
from capsbench.run.memory import keep_memory
from capsbench.run.provenance import commit

CONDITIONS = ("batch", "inputs", "outputs", "threads", "machine", "torch", "commit")
COLUMNS = (
    "routing", "form", "fastest_ms", "median_ms", "quartiles_apart_ms", "times_faster", "largest_difference",
    *CONDITIONS,
)  # fmt: skip
CHILD_DIM, PARENT_DIM = 8, 16  # those of S17
SLOWER = 1.2  # a regression: the fastest pass takes this much longer, and more than the quartiles are apart
_KEY = ["routing", "form"]


def routings_benchmark(batch: int, inputs: int, outputs: int, repeats: int, threads: int, device: str) -> pd.DataFrame:
    """Time the forward and backward pass of every routing at d = 8, D = 16, in float32, with its default options.

    All routings and forms take turns, so that what else the machine does falls on all of them alike.

    Args:
        batch: B, images per batch.
        inputs: I, capsules below.
        outputs: J, capsules above.
        repeats: rounds that are timed, after one that is not.
        threads: CPU threads.
        device: `cpu` or `cuda`.

    Returns:
        Rows with COLUMNS: of each routing one for the form that studies take (`fast`) and one for votes that a matrix
        product makes and stores (`plain`), milliseconds per pass; `times_faster` than the plain form by the fastest
        passes; the `largest_difference` of poses and gradients from those of the plain form, in units of each tensor's
        largest value; CONDITIONS.

    Raises:
        InputError: the device is `cuda` and there is no GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("no GPU here for --device cuda; use cpu")
    torch.set_num_threads(threads)
    if device == "cpu":
        keep_memory()
    leaves = _leaves(batch, LayerSize(inputs, CHILD_DIM, outputs, PARENT_DIM), device)
    routings = _routings(LayerSize(inputs, CHILD_DIM, outputs, PARENT_DIM), device)
    found = {key: _once(routings[key[0]], key[1], leaves) for key in _keys(routings)}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in found}
    if device == "cuda":
        torch.cuda.synchronize()
    for _ in range(repeats):
        for (name, form), own in times.items():
            start = time.perf_counter()
            _once(routings[name], form, leaves)
            if device == "cuda":
                torch.cuda.synchronize()
            own.append(1000 * (time.perf_counter() - start))
    about = {
        "batch": batch, "inputs": inputs, "outputs": outputs, "threads": threads if device == "cpu" else 0,
        "machine": describe(torch.device(device)), "torch": torch.__version__, "commit": commit(),
    }  # fmt: skip
    rows = []
    for (name, form), own in times.items():
        low, median, high = np.quantile(own, [0.25, 0.5, 0.75])
        pairs = zip(found[name, form], found[name, "plain"], strict=True)
        rows.append({
            "routing": name, "form": form, "fastest_ms": min(own), "median_ms": float(median),
            "quartiles_apart_ms": float(high - low), "times_faster": min(times[name, "plain"]) / min(own),
            "largest_difference": max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs), **about,
        })  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def read_routings(path: Path) -> pd.DataFrame:
    """Read a file of this benchmark. Raises InputError where it is not there or is something else."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; 'capsbench bench routings --output {path}' writes it")
    try:
        found = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from None
    if list(found.columns) != list(COLUMNS):
        raise InputError(f"{path}: not a file of 'capsbench bench routings', which has columns {', '.join(COLUMNS)}")
    return found


def regressions(found: pd.DataFrame, before: pd.DataFrame) -> list[str]:
    """Name what is slower than before, beyond the noise; InputError where that was measured in another way."""
    for name in ("batch", "inputs", "outputs", "threads", "machine"):
        was, now = before[name].iloc[0], found[name].iloc[0]
        if str(was) != str(now):
            raise InputError(f"the earlier file was measured with another {name}: {was}, not {now}")
    both = found.merge(before, on=_KEY, suffixes=("", "_before"))
    lines = []
    for row in both.to_dict("records"):
        noise = max(row["quartiles_apart_ms"], row["quartiles_apart_ms_before"])
        slower = row["fastest_ms"] - row["fastest_ms_before"]
        if row["fastest_ms"] > SLOWER * row["fastest_ms_before"] and slower > noise:
            lines.append(
                f"{row['routing']}, {row['form']}: {row['fastest_ms']:.3g} ms, {row['fastest_ms_before']:.3g} before"
            )
    return lines


def _routings(size: LayerSize, device: str) -> dict[str, Routing]:
    torch.manual_seed(0)
    return {name: ROUTINGS.build(name, size).to(device) for name in ROUTINGS.names()}


def _keys(routings: dict[str, Routing]) -> Iterator[tuple[str, str]]:
    for name in routings:
        yield from ((name, "fast"), (name, "plain"))


def _leaves(batch: int, size: LayerSize, device: str) -> list[Tensor]:
    """Poses [B, I, d], activations [B, I], weight [I, J, D, d], which take gradients."""
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(batch, size.children, size.child_dim, generator=generator).mul(0.1)
    activations = torch.rand(batch, size.children, generator=generator)
    weight = torch.randn(size.children, size.parents, size.parent_dim, size.child_dim, generator=generator).mul(0.1)
    return [leaf.to(device).requires_grad_() for leaf in (poses, activations, weight)]


def _stored(routing: Routing, leaves: list[Tensor]) -> Routed:
    """Route through stored votes."""
    if not isinstance(routing, DynamicRouting):
        routed: Routed = routing(*leaves)
        return routed
    poses, couplings = dynamic_routing(stored_votes(leaves[0], leaves[2]), routing.iterations)
    return Routed(poses, capsule_lengths(poses), couplings)


def _once(routing: Routing, form: str, leaves: list[Tensor]) -> list[Tensor]:
    """Route and go back -> poses and the gradients of the leaves."""
    context: AbstractContextManager[Any] = plain_forms() if form == "plain" else nullcontext()
    with context:
        routed = _stored(routing, leaves) if form == "plain" else routing(*leaves)
        total = routed.poses.square().sum() + routed.activations.sum()
        gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [routed.poses.detach(), *gradients]
