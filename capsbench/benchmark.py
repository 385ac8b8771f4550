"""Speed and memory of routing, forms side by side in one call; a speed is a ratio against a named alternative."""

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

from capsbench.device import describe
from capsbench.errors import InputError
from capsbench.provenance import commit
from capsbench.routing import dynamic_routing, linear_dynamic_routing, squash

BASELINE = "stored votes, elementwise"


def stored_votes_elementwise(inputs: Tensor, weight: Tensor, iterations: int) -> Tensor:
    """Route as most public code writes it: votes [B, I, J, D] by broadcasting, products and sums over them."""
    votes = (weight.unsqueeze(0) @ inputs[:, :, None, :, None]).squeeze(-1)
    logits = votes.new_zeros(votes.shape[:3])
    poses = squash((logits.softmax(dim=2).unsqueeze(-1) * votes).sum(dim=1))
    for _ in range(iterations - 1):
        logits = logits + (votes * poses.unsqueeze(1)).sum(dim=-1)
        poses = squash((logits.softmax(dim=2).unsqueeze(-1) * votes).sum(dim=1))
    return poses


def stored_votes(inputs: Tensor, weight: Tensor, iterations: int) -> Tensor:
    """Route stored votes with `dynamic_routing`, the oracle."""
    return dynamic_routing(torch.einsum("ijed,bid->bije", weight, inputs), iterations)[0]


FORMS: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    BASELINE: stored_votes_elementwise,
    "stored votes, dynamic_routing": stored_votes,
    "linear_dynamic_routing": linear_dynamic_routing,
}


def routing_benchmark(
    batch: int, inputs: int, outputs: int, iterations: int, repeats: int, threads: int, device: str
) -> pd.DataFrame:
    """Time forward and backward of each form at d = 8, D = 16, float32, each in a process of its own.

    Columns: median_ms, fastest_ms, peak_mb (what the process, or the GPU, took beyond its start), the ratios of
    the baseline's to it, and largest_difference from the oracle's poses and gradients.
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
    """Name what was measured and where."""
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
    before = _peak_bytes(device)
    found = once(form)
    peak = _peak_bytes(device) - before
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


def _peak_bytes(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
