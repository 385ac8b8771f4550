"""What a network costs: seconds of a forward pass and of a training step, and peak memory, on random images.

Measured in a process of its own, so that memory is that of the network and not of what ran before.
"""

import contextlib
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from capsbench.data.tasks.task import Batch
from capsbench.losses import Loss
from capsbench.models import build_model, predict
from capsbench.run.precision import float32, set_precision
from capsbench.run.step import QuickStep, Step, make_optimizer
from capsbench.study import Run

WARM_UP = 2  # passes that are not timed: the first allocates, and on a GPU chooses its kernels

Returned = TypeVar("Returned")


class Repeats(NamedTuple):
    """How often something is timed: at least `least` times, then until `seconds` are over or it is `most` times."""

    least: int
    most: int
    seconds: float = 0.0


class Measured(NamedTuple):
    """What a network costs at a batch size; memory in bytes, beyond that of the process before it was built.

    Attributes:
        forward: seconds of each forward pass.
        forward_bytes: peak memory of the network and a forward pass.
        step: seconds of each training step.
        step_bytes: peak memory of all.
    """

    forward: list[float]
    forward_bytes: float
    step: list[float]
    step_bytes: float


def measure(run: Run, device: str, batch_size: int, forward: Repeats, step: Repeats) -> Measured:
    """Time the network of a run on random images, with fresh weights.

    A forward pass is that of the test: no gradients, no labels, a decoder included. A training step is that of
    `run.train`: forward pass, loss, backward pass, the norm of the gradient, and Adam.

    Args:
        run: whose network, data set, and settings of threads and determinism.
        device: such as "cpu" or "cuda:0".
        batch_size: images in a batch.
        forward: how often the forward pass is timed; not at all where `most` is 0.
        step: how often the training step is timed.
    """
    torch.set_num_threads(run.training.threads)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(run.training.deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = not run.training.deterministic
    torch.manual_seed(0)
    before = forget_peak(device)
    model = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options).to(device)
    set_precision(model, run.training.precision, torch.device(device))
    batch = random_batch(run, batch_size, device)

    def pass_forward() -> None:
        with torch.no_grad(), float32():
            predict(model, batch.images, run.data.facts.objects)

    model.eval()
    forward_times = timed(pass_forward, device, forward) if forward.most else []
    forward_bytes = _beyond(before, device)

    for module in model.modules():
        if isinstance(module, Loss):
            module.begin(WARM_UP + step.most, 1.0)
    plain = Step(model, make_optimizer(model, run.training.learning_rate), run.training)
    take_step = QuickStep(plain, run.training.compile, torch.device(device))
    model.train()
    if step.most and run.training.compile != "off":
        for _ in range(QuickStep.WARM_UP + 1):
            take_step(batch, run.training.learning_rate)
    step_times = timed(lambda: take_step(batch, run.training.learning_rate), device, step)
    return Measured(forward_times, forward_bytes, step_times, _beyond(before, device))


def timed(once: Callable[[], object], device: str, repeats: Repeats) -> list[float]:
    """Return the seconds of each of several calls, after WARM_UP that are not timed."""
    times: list[float] = []
    begun = time.perf_counter()
    for number in range(WARM_UP + repeats.most):
        if number == WARM_UP:
            begun = time.perf_counter()
        start = time.perf_counter()
        once()
        if device != "cpu":
            torch.cuda.synchronize(device)
        if number >= WARM_UP:
            times.append(time.perf_counter() - start)
        if len(times) >= repeats.least and time.perf_counter() - begun > repeats.seconds > 0:
            break
    return times


def random_batch(run: Run, batch_size: int, device: str) -> Batch:
    """Return random images, labels, and targets as decoders take them."""
    objects, classes = run.data.facts.objects, run.data.facts.num_classes
    images = torch.rand(batch_size, *run.data.image_shape)
    if objects == 1:
        labels, targets = torch.randint(classes, (batch_size,)), images
    else:
        labels = torch.rand(batch_size, classes).topk(objects, dim=1).indices.sort(dim=1).values
        targets = torch.rand(batch_size, objects, *run.data.image_shape)
    return Batch(images.to(device), labels.to(device), targets.to(device))


def in_own_process(function: Callable[..., Returned], *arguments: object) -> Returned | str:
    """Call a function in a new process -> what it returns, or in one line why it returned nothing."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool:
            return "its process was killed, which is what Linux does where memory is short"
        except (RuntimeError, ValueError, MemoryError) as error:
            return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _beyond(before: float, device: str) -> float:
    """Return the peak beyond what was held before: at least 0, as Linux counts late by some pages per thread."""
    return max(0.0, peak_bytes(device) - before)


def forget_peak(device: str) -> float:
    """Let `peak_bytes` count from here, where the system can -> the bytes that are held now, or else the peak so far.

    A new process begins with the peak of the one that started it, by getrusage.
    """
    if device != "cpu":
        torch.cuda.init()  # refused otherwise, in a process that has not used the GPU yet
        torch.cuda.reset_peak_memory_stats(device)
        return float(torch.cuda.memory_allocated(device))
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak becomes what is held now
    return peak_bytes(device)


def peak_bytes(device: str) -> float:
    """Return the peak of the process on `cpu`, of torch's allocations on a GPU, in bytes."""
    if device != "cpu":
        return float(torch.cuda.max_memory_allocated(device))
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * float(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024  # Linux counts in kilobytes
        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
