"""The time of every routing that is registered, in its fast form and in the plain one, side by side in one process."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from capsbench.benchmarks.comparison import check_conditions, read_measured, slower_than
from capsbench.benchmarks.turns import Case, ready, start_on, take_turns
from capsbench.registry import ROUTINGS
from capsbench.routing import LayerSize, Routed, Routing, dynamic_routing, stored_votes
from capsbench.routing.contract import capsule_lengths
from capsbench.routing.dynamic import DynamicRouting
from capsbench.routing.kernels.forms import plain_forms
from capsbench.run.device import describe
from capsbench.run.provenance import commit

CONDITIONS = ("batch", "inputs", "outputs", "threads", "machine", "torch", "commit")
COLUMNS = (
    "routing", "form", "fastest_ms", "median_ms", "quartiles_apart_ms", "times_faster", "largest_difference",
    *CONDITIONS,
)  # fmt: skip
CHILD_DIM, PARENT_DIM = 8, 16  # those of S17
FORMS = ("fast", "plain")


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
    start_on(device, threads)
    size = LayerSize(inputs, CHILD_DIM, outputs, PARENT_DIM)
    leaves, routings = make_leaves(batch, size, device), make_routings(size, device)
    keys = [(name, form) for name in routings for form in FORMS]
    found = {}
    for name, form in keys:
        torch.manual_seed(0)  # a routing that draws at each pass draws the same in both forms
        found[name, form] = route_once(routings[name], form, leaves)
    calls = [partial(route_once, routings[name], form, leaves) for name, form in keys]
    times = dict(zip(keys, take_turns([Case(ready(call), {}) for call in calls], device, repeats), strict=True))
    about = {
        "batch": batch, "inputs": inputs, "outputs": outputs, "threads": threads if device == "cpu" else 0,
        "machine": describe(torch.device(device)), "torch": torch.__version__, "commit": commit(),
    }  # fmt: skip
    rows = []
    for (name, form), timed in times.items():
        own = timed.summary()
        pairs = zip(found[name, form], found[name, "plain"], strict=True)
        rows.append({
            "routing": name, "form": form, **own,
            "times_faster": times[name, "plain"].summary()["fastest_ms"] / own["fastest_ms"],
            "largest_difference": max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs), **about,
        })  # fmt: skip
    return pd.DataFrame(rows, columns=list(COLUMNS))


def read_routings(path: Path) -> pd.DataFrame:
    """Read a file of this benchmark. Raises InputError where it is not there or is something else."""
    return read_measured(path, COLUMNS, f"capsbench bench routings --output {path}")


def regressions(found: pd.DataFrame, before: pd.DataFrame) -> list[str]:
    """Name what is slower than before, beyond the noise; InputError where that was measured in another way."""
    check_conditions(found.iloc[0], before, ("batch", "inputs", "outputs", "threads", "machine"))
    return slower_than(found, before, ("routing", "form"))


def make_routings(size: LayerSize, device: str) -> dict[str, Routing]:
    """Build every routing that is registered, with its default options."""
    torch.manual_seed(0)
    return {name: ROUTINGS.build(name, size).to(device) for name in ROUTINGS.names()}


def make_leaves(batch: int, size: LayerSize, device: str) -> list[Tensor]:
    """Draw poses [B, I, d], activations [B, I] and a weight [I, J, D, d], which take gradients."""
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


def route_once(routing: Routing, form: str, leaves: list[Tensor]) -> list[Tensor]:
    """Route and go back, in one of FORMS -> poses and the gradients of the leaves."""
    with plain_forms() if form == "plain" else nullcontext():
        routed = _stored(routing, leaves) if form == "plain" else routing(*leaves)
        total = routed.poses.square().sum() + routed.activations.sum()
        gradients = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return [routed.poses.detach(), *gradients]
