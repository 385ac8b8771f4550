"""What routing does, iteration by iteration, in a network that has learnt nothing."""

import math
from collections.abc import Iterator
from typing import Any

import torch

from capsbench.models import build_model
from capsbench.models.output import Network
from capsbench.run.metrics import coupling_entropy
from capsbench.study import Run


@torch.no_grad()
def diagnose(model: Network, run: Run, images: torch.Tensor) -> list[dict[str, Any]]:
    """Run a trained network with one routing iteration, with two, ... up to its own number.

    Args:
        model: the network of the run, with its weights.
        run: its configuration.
        images: what the network sees, [B, C, H, W], on its device.

    Returns:
        For each iteration `entropy`, the mean entropy of a child's couplings (1: uniform, 0: one parent); `mass`, the
        largest share of all couplings that one parent takes; `logit`, the mean of an image's highest class score, and
        `range`, what lies between its highest and its lowest. Empty for a network without couplings.
    """
    found = []
    for iterations, options in _fewer_iterations(run.options):
        other = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **options).to(images.device)
        other.load_state_dict(model.state_dict())
        other.eval()
        output = other(images)
        if output.couplings is None:
            return []
        mass = output.couplings.sum(dim=1)  # [B, K]
        highest, lowest = output.scores.amax(dim=1), output.scores.amin(dim=1)
        values = {
            "entropy": coupling_entropy(output.couplings),
            "mass": float((mass / mass.sum(dim=1, keepdim=True)).mean(dim=0).max()),
            "logit": float(highest.mean()),
            "range": float((highest - lowest).mean()),
        }
        found.append({"iteration": iterations} | {k: _short(value) for k, value in values.items()})
    return found


def _fewer_iterations(options: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the options of a network with 1, 2, ... iterations of its routing; as they are where it has no such."""
    routing = options.get("routing")
    if isinstance(routing, dict) and "iterations" in routing:
        for number in range(1, routing["iterations"] + 1):
            yield number, {**options, "routing": {**routing, "iterations": number}}
    elif "iterations" in options:
        for number in range(1, options["iterations"] + 1):
            yield number, {**options, "iterations": number}
    else:
        yield 1, options


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
