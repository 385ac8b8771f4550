"""Speed and memory of dynamic routing: several implementations side by side, each relative to a named baseline."""

import multiprocessing
import statistics
import time
from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

from capsbench.errors import InputError
from capsbench.routing import dynamic_routing, linear_dynamic_routing, squash
from capsbench.run.device import describe
from capsbench.run.provenance import commit
from capsbench.run.timing import forget_peak, peak_bytes

BASELINE = "stored votes, elementwise"


def stored_votes_elementwise(inputs: Tensor, weight: Tensor, iterations: int) -> Tensor:
    """Route as most public code does: votes [B, I, J, D] by broadcasting, then elementwise products and sums.

    Args:
        inputs: poses of the children [B, I, d].
        weight: transforms [I, J, D, d].
        iterations: of the routing.

    Returns:
        Poses of the parents [B, J, D].
    """
    votes = (weight.unsqueeze(0) @ inputs[:, :, None, :, None]).squeeze(-1)
    logits = votes.new_zeros(votes.shape[:3])
    poses = squash((logits.softmax(dim=2).unsqueeze(-1) * votes).sum(dim=1))
    for _ in range(iterations - 1):
        logits = logits + (votes * poses.unsqueeze(1)).sum(dim=-1)
        poses = squash((logits.softmax(dim=2).unsqueeze(-1) * votes).sum(dim=1))
    return poses


def stored_votes(inputs: Tensor, weight: Tensor, iterations: int) -> Tensor:
    """Route with `dynamic_routing` on stored votes, the reference for correctness; shapes as above."""
    return dynamic_routing(torch.einsum("ijed,bid->bije", weight, inputs), iterations)[0]


FORMS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    BASELINE: stored_votes_elementwise,
    "stored votes, dynamic_routing": stored_votes,
    "linear_dynamic_routing": linear_dynamic_routing,
}


def routing_benchmark(
    batch: int, inputs: int, outputs: int, iterations: int, repeats: int, threads: int, device: str
) -> pd.DataFrame:
    """Time the forward and backward pass of each form at d = 8, D = 16, in float32, each form in its own process.

    Args:
        batch: B, images per batch.
        inputs: I, capsules below.
        outputs: J, capsules above.
        iterations: of the routing.
        repeats: timed passes, after one that is not timed.
        threads: CPU threads.
        device: `cpu` or `cuda`.

    Returns:
        One row per form, with the columns `median_ms` and `fastest_ms`; `peak_mb`, the memory of the process, or of the
        GPU, beyond that before the first pass; `times_faster` and `times_less_memory` than the baseline; and
        `largest_difference` of poses and gradients from those of `dynamic_routing`.

    Raises:
        InputError: the device is `cuda` and there is no GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("no GPU here for --device cuda; use cpu")
    arguments = (batch, inputs, outputs, iterations, repeats, threads, device)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        rows = [pool.apply(_measure, (name, *arguments)) for name in FORMS]
    frame = pd.DataFrame(rows).set_index("form")
    frame["times_faster"] = frame.loc[BASELINE, "median_ms"] / frame["median_ms"]
    frame["times_less_memory"] = frame.loc[BASELINE, "peak_mb"] / frame["peak_mb"]
    return frame


def benchmark_title(batch: int, inputs: int, outputs: int, iterations: int, threads: int, device: str) -> str:
    """Return the heading of a benchmark: what was measured, on which machine, with which versions."""
    place = describe(torch.device(device)) + (f", {threads} threads" if device == "cpu" else "")
    return (
        f"dynamic routing, forward and backward: batch {batch}, {inputs} x 8 -> {outputs} x 16, "
        f"{iterations} iterations, float32; {place}; torch {torch.__version__}; commit {commit()[:12]}"
    )


def _measure(
    name: str, batch: int, inputs: int, outputs: int, iterations: int, repeats: int, threads: int, device: str
) -> dict[str, str | float]:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(batch, inputs, 8, generator=generator).mul(0.1).to(device).requires_grad_()
    weight = torch.randn(inputs, outputs, 16, 8, generator=generator).mul(0.1).to(device).requires_grad_()
    upstream = torch.randn(batch, outputs, 16, generator=generator).to(device)

    def once(form: Callable[[Tensor, Tensor, int], Tensor]) -> tuple[Tensor, ...]:
        routed = form(poses, weight, iterations)
        return routed.detach(), *torch.autograd.grad(routed, (poses, weight), upstream)

    form = FORMS[name]
    before = forget_peak(device)
    found = once(form)
    peak = peak_bytes(device) - before
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        once(form)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    expected = once(stored_votes)
    difference = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    return {
        "form": name, "median_ms": statistics.median(times), "fastest_ms": min(times),
        "peak_mb": peak / 1e6, "largest_difference": difference,
    }  # fmt: skip
