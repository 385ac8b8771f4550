"""Timing many things in turns, in one process: what else the machine does then falls on all of them alike.

A case is prepared, called twice to warm up, and then timed once in each round. A call that is shorter than
`LEAST_MS` is repeated until a sample is about that long, whose mean counts. A GPU is timed by CUDA events.
"""

import gc
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from capsbench.errors import InputError
from capsbench.run.memory import keep_memory
from capsbench.run.timing import forget_peak, peak_bytes

log = logging.getLogger(__name__)

LEAST_MS = 10.0  # of a sample
MOST_CALLS = 100  # in a sample
LONG_MS = 500.0  # a first call on a CPU that takes this long needs no second one to be warm


class NotThere(Exception):
    """A case that cannot be prepared here; its message is the note that stands instead of times."""


@dataclass(frozen=True)
class Case:
    """Something that is timed.

    Attributes:
        prepare: makes what is called, once.
        facts: what tells it from the others, as columns of its row.
        operations: floating-point operations of its matrix products; 0 where they are not the point.
        moved: bytes that it reads and writes at the least; 0 where they are not the point.
        rated: a quantity that a call gets done, and the unit of it per second, as (128, "images/s").
        least_needed: bytes of memory without which it is not tried on a CPU, where running out ends the process.
        by_the_clock: on a GPU too it is timed by the clock of the processor, as it is the work of one.
    """

    prepare: Callable[[], Callable[[], object]]
    facts: dict[str, Any]
    operations: float = 0.0
    moved: float = 0.0
    rated: tuple[float, str] | None = None
    least_needed: float = 0.0
    by_the_clock: bool = False


@dataclass
class Timed:
    """What was found of a case.

    Attributes:
        ms: milliseconds of a call, a value per round.
        peak_mb: memory that a call allocates on a GPU at once, beyond what is held before it; None on a CPU, where a
            process keeps what it frees.
        note: why there are no times.
    """

    ms: list[float] = field(default_factory=list)
    peak_mb: float | None = None
    note: str = ""

    def summary(self) -> dict[str, float]:
        """Return the fastest and median milliseconds, and how far the quartiles are apart; nan without times."""
        if not self.ms:
            return dict.fromkeys(("fastest_ms", "median_ms", "quartiles_apart_ms"), math.nan)
        low, median, high = np.quantile(self.ms, [0.25, 0.5, 0.75])
        return {"fastest_ms": min(self.ms), "median_ms": float(median), "quartiles_apart_ms": float(high - low)}


class _Warm(NamedTuple):
    """A case that is warm: what is called, how often in a sample, and what was found."""

    case: Case
    once: Callable[[], object]
    calls: int
    timed: Timed


def ready(once: Callable[[], object]) -> Callable[[], Callable[[], object]]:
    """Return the `prepare` of a case that is there already."""
    return lambda: once


def start_on(device: str, threads: int) -> None:
    """Set the CPU threads of this process, and let it keep its memory. Raises InputError where there is no GPU."""
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("no GPU here for --device cuda; use cpu")
    torch.set_num_threads(threads)
    if device == "cpu":
        keep_memory()


def take_turns(cases: Sequence[Case], device: str, rounds: int, seconds: float = math.inf) -> list[Timed]:
    """Time cases in interleaved rounds -> what was found of each, in their order.

    A case that does not fit into memory has a note instead of times.

    Args:
        cases: what is timed.
        device: `cpu` or `cuda`.
        rounds: at the most.
        seconds: no round begins that would end later, preparation included; there is one at the least.
    """
    begun = time.perf_counter()
    found = [Timed() for _ in cases]
    all_warm = []
    for case, timed in zip(cases, found, strict=True):
        if (warm := _warmed_up(case, timed, device)) is not None:
            all_warm.append(warm)
    if math.isfinite(seconds):
        log.info(f"{len(all_warm)} cases are warm after {time.perf_counter() - begun:.0f} s")
    spent = 0.0
    for number in range(rounds):
        if number and time.perf_counter() - begun + spent > seconds:
            log.info(f"stopped after {number} of {rounds} rounds: the time is over")
            break
        start = time.perf_counter()
        for one in all_warm:
            _take_sample(one, device)
        spent = time.perf_counter() - start
        if math.isfinite(seconds):
            log.info(f"round {number + 1} of {rounds} took {spent:.0f} s")
    return found


def milliseconds(once: Callable[[], object], calls: int, device: str) -> float:
    """Return how long a call takes, on average over several calls one after another."""
    if device == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            once()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / calls
    start = time.perf_counter()
    for _ in range(calls):
        once()
    return 1000 * (time.perf_counter() - start) / calls


def _warmed_up(case: Case, timed: Timed, device: str) -> _Warm | None:
    """Prepare a case and call it twice, the first time to allocate and to choose kernels -> None where it has no room.

    Where it is timed by the clock the device has nothing to do with it.
    """
    if device == "cpu" and case.least_needed > (free := _free_bytes()):
        timed.note = f"needs {case.least_needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"
        return None
    place = "cpu" if case.by_the_clock else device
    try:
        once = case.prepare()
        taken = milliseconds(once, 1, place)
        before = forget_peak("cuda") if place == "cuda" else 0.0
        if place == "cuda" or taken < LONG_MS:
            taken = milliseconds(once, 1, place)
        if place == "cuda":
            timed.peak_mb = (peak_bytes("cuda") - before) / 1e6
    except NotThere as reason:
        timed.note = str(reason)
        return None
    except (RuntimeError, MemoryError) as error:
        _note_lack_of_memory(error, timed)
        return None
    return _Warm(case, once, max(1, min(MOST_CALLS, math.ceil(LEAST_MS / max(taken, 1e-3)))), timed)


def _take_sample(warm: _Warm, device: str) -> None:
    if warm.timed.note:
        return
    try:
        place = "cpu" if warm.case.by_the_clock else device
        warm.timed.ms.append(milliseconds(warm.once, warm.calls, place))
    except (RuntimeError, MemoryError) as error:
        _note_lack_of_memory(error, warm.timed)


def _note_lack_of_memory(error: BaseException, timed: Timed) -> None:
    """Note that a case has no room; raises any other error again."""
    words = str(error).lower()
    if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "memory" not in words:
        raise error
    timed.note, timed.peak_mb = "does not fit into memory", None
    timed.ms.clear()
    error.__traceback__ = None  # it holds the tensors
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _free_bytes() -> float:
    """Return the bytes of memory that are free by /proc/meminfo, or infinity where there is none."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    return next((1024 * float(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), math.inf)
