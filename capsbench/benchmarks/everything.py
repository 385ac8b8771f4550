"""All that is measured of a machine, in turns: limits, routing layers, networks, batches, start-up."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from capsbench.benchmarks.comparison import check_conditions, read_measured, slower_than
from capsbench.benchmarks.host import EPOCHS, batch_cases, start_cases
from capsbench.benchmarks.layers import RoutingSize, conv_cases, growth_cases, routing_cases
from capsbench.benchmarks.limits import COPY, PRODUCT, limit_cases
from capsbench.benchmarks.steps import NETWORKS, PARTS, STEP, network_cases
from capsbench.benchmarks.turns import Case, Timed, start_on, take_turns
from capsbench.errors import InputError
from capsbench.run.device import describe
from capsbench.run.precision import float32
from capsbench.run.provenance import commit

KEY = ("group", "name", "form", "case")
CONDITIONS = ("device", "threads", "machine", "torch", "commit")
COLUMNS = (
    *KEY, "batch", "inputs", "parents", "iterations", "fastest_ms", "median_ms", "quartiles_apart_ms", "samples",
    "rate", "unit", "of_matrix_rate", "of_bandwidth", "of_step", "peak_mb", "note", *CONDITIONS,
)  # fmt: skip
_WHOLE = ("batch", "inputs", "parents", "iterations")
COMMAND = "capsbench bench all"


@dataclass(frozen=True)
class Sizes:
    """How large everything is that is measured.

    Attributes:
        base: of the routing layers.
        growth: values by each size of `base` that is varied.
        conv_batch: images per batch of EM routing on a grid.
        network_batch: images per batch of networks.
        networks: which.
        epochs: data sets whose batches are made.
        side: of the matrices of a product.
        copied: bytes of a copy.
    """

    base: RoutingSize
    growth: Mapping[str, tuple[int, ...]]
    conv_batch: int
    network_batch: int
    side: int
    copied: int
    networks: tuple[str, ...] = NETWORKS
    epochs: tuple[str, ...] = tuple(EPOCHS)


_GROWTH = {
    "inputs": (288, 576, 1152, 2304, 4608, 9216), "parents": (5, 10, 20, 40), "iterations": (1, 2, 3, 5, 7),
    "batch": (1, 4, 16, 64, 256, 1024),
}  # fmt: skip
FULL = {
    "cpu": Sizes(RoutingSize(1152, 10, 3, 16), _GROWTH, conv_batch=1, network_batch=8, side=1024, copied=2**28),
    "cuda": Sizes(RoutingSize(1152, 10, 3, 64), _GROWTH, conv_batch=16, network_batch=128, side=4096, copied=2**30),
}
QUICK = Sizes(
    RoutingSize(288, 10, 3, 4),
    {"inputs": (288, 576), "parents": (5, 10), "iterations": (1, 3), "batch": (1, 4)},
    conv_batch=1, network_batch=2, side=512, copied=2**25, epochs=("digits", "affdigits"),
)  # fmt: skip


def measure_everything(sizes: Sizes, device: str, threads: int, rounds: int, seconds: float = math.inf) -> pd.DataFrame:
    """Measure limits, routing layers, networks, batches and start-up in interleaved rounds, in float32 without TF32.

    Args:
        sizes: of what is measured.
        device: `cpu` or `cuda`.
        threads: CPU threads.
        rounds: at the most; each gives one sample of everything.
        seconds: no round begins that would end later; there is one at the least.

    Returns:
        Rows with COLUMNS, one per measurement. `rate` and shares are those of the fastest pass: `of_matrix_rate` of the
        measured rate of float32 products, `of_bandwidth` of that of a copy to kept memory, each by the least work that
        the task needs; `of_step` of the time of a network's training step.

    Raises:
        InputError: the device is `cuda` and there is no GPU.
    """
    start_on(device, threads)
    torch.backends.cudnn.benchmark = True
    cases = list(_cases(sizes, device))
    with float32():
        found = take_turns(cases, device, rounds, seconds)
    about = _about(device, threads)
    rows = [_row(case, timed) | about for case, timed in zip(cases, found, strict=True)]
    _add_shares_of_limits(rows, cases)
    frame = pd.DataFrame(_with_shares_of_steps(rows), columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(_WHOLE, "Int64"))


def read_everything(path: Path) -> pd.DataFrame:
    """Read bench.csv. Raises InputError where it is not there or is something else."""
    return read_measured(path, COLUMNS, COMMAND)


def check_comparable(before: pd.DataFrame, device: str, threads: int) -> None:
    """Raise InputError where an earlier measurement is of another device, machine or number of threads."""
    start_on(device, threads)  # refuses a GPU that is not there
    check_conditions(_about(device, threads), before, ("device", "threads", "machine"))


def slower_than_before(found: pd.DataFrame, before: pd.DataFrame) -> list[str]:
    """Name what is slower than before, beyond the noise. Raises InputError where there is nothing to compare."""
    if not set(found[list(KEY)].itertuples(index=False)) & set(before[list(KEY)].itertuples(index=False)):
        raise InputError("the earlier file has none of these measurements; --quick has sizes of its own")
    return slower_than(found, before, KEY)


def _about(device: str, threads: int) -> dict[str, Any]:
    """Return the CONDITIONS."""
    return {
        "device": device, "threads": threads, "machine": describe(torch.device(device)), "torch": torch.__version__,
        "commit": commit(),
    }  # fmt: skip


def _cases(sizes: Sizes, device: str) -> Iterator[Case]:
    yield from limit_cases(sizes.side, sizes.copied, device)
    yield from routing_cases(sizes.base, device)
    yield from conv_cases(sizes.conv_batch, device)
    yield from growth_cases(sizes.base, sizes.growth, device)
    yield from network_cases(sizes.networks, sizes.network_batch, device)
    yield from batch_cases(sizes.epochs, 128, device)
    yield from start_cases()


def _row(case: Case, timed: Timed) -> dict[str, Any]:
    times = timed.summary()
    amount, unit = case.rated or (math.nan, "")
    return case.facts | times | {
        "samples": len(timed.ms), "rate": 1000 * amount / times["fastest_ms"], "unit": unit, "peak_mb": timed.peak_mb,
        "note": timed.note,
    }  # fmt: skip


def _add_shares_of_limits(rows: list[dict[str, Any]], cases: list[Case]) -> None:
    """Set `of_matrix_rate` and `of_bandwidth` where the work of a case is known."""
    rates = {(row["name"], row["form"]): row["rate"] for row in rows if row["group"] == "limits"}
    for row, case in zip(rows, cases, strict=True):
        seconds = row["fastest_ms"] / 1000
        if case.operations:
            row["of_matrix_rate"] = case.operations / seconds / (1e9 * rates[PRODUCT, "float32"])
        if case.moved:
            row["of_bandwidth"] = case.moved / seconds / (1e9 * rates[COPY, "kept memory"])


def _with_shares_of_steps(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Set `of_step` of the parts of networks, and add a row for the rest, which is not timed on its own."""
    steps = {row["name"]: row["fastest_ms"] for row in rows if row["form"] == STEP}
    parts: dict[str, float] = {}
    for place, row in enumerate(rows):
        if row["group"] == "networks" and row["form"] in PARTS:
            row["of_step"] = row["fastest_ms"] / steps[row["name"]]
            parts[row["name"]] = parts.get(row["name"], 0.0) + row["of_step"]
        yield row
        following = rows[place + 1] if place + 1 < len(rows) else {"name": ""}
        if row["group"] == "networks" and following["name"] != row["name"]:
            timed = dict.fromkeys(("fastest_ms", "median_ms", "quartiles_apart_ms", "peak_mb"), math.nan)
            rest = {"form": "rest", "samples": 0, "rate": math.nan, "unit": "", "of_matrix_rate": math.nan, "note": ""}
            yield row | timed | rest | {"of_step": 1 - parts.get(row["name"], 0.0)}
