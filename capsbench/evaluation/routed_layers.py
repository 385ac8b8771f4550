"""The routed layers of a network as it runs: their couplings, read by hooks, and how often they iterate.

Layers that say what their couplings are: every `Routing`, the class layers of other networks, and the convolutional
layers of self-routing and of DeepCaps. Those of `matrix_capsnet` keep theirs to themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.models import Network
from capsbench.models.deepcaps import ConvCaps3D
from capsbench.models.matrix_capsnet import ClassMatrixCaps
from capsbench.models.self_routing_capsnet import ClassSelfRoutingCaps, ConvSelfRoutingCaps
from capsbench.routing import Routing, stored_votes
from capsbench.routing.em import EMSettings

BATCH = 50  # votes are stored: [50, 1152, 10, 16] are 37 MB


class RoutedLayer(NamedTuple):
    """What a routed layer did with some images.

    Attributes:
        couplings: [B, I, J].
        parents: activations of all parents, [B, J]; of those at all positions where J are those of one.
        children: activations [B, I]; None where couplings are of other units than capsules, such as windows.
        agreement: see `agreement_of`; None where votes or poses are not given out.
    """

    couplings: Float[Tensor, "batch children parents"]
    parents: Float[Tensor, "batch all_parents"]
    children: Float[Tensor, "batch children"] | None = None
    agreement: float | None = None


@torch.no_grad()
def routed_layers(
    model: Network, images: Float[Tensor, "images channels height width"]
) -> dict[str, list[RoutedLayer]]:
    """Run a network and return its routed layers by name, in the order in which they run, batch by batch.

    Empty for a network without routing. Images are what the network sees, on its device, taken 50 at a time.
    """
    found: dict[str, list[RoutedLayer]] = {}

    def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any, name: str) -> None:
        reader = next(reader for kind, reader in READERS.items() if isinstance(module, kind))
        found.setdefault(name, []).append(reader(module, inputs, output))

    hooks = [
        module.register_forward_hook(partial(keep, name=name))
        for name, module in model.named_modules()
        if any(isinstance(module, kind) for kind in READERS)
    ]
    try:
        for part in images.split(BATCH):
            output = model(part)
            if output.couplings is None or any(parts[-1].couplings is output.couplings for parts in found.values()):
                continue
            assert output.activations is not None  # a class layer that is no module of its own
            found.setdefault("class layer", []).append(RoutedLayer(output.couplings, output.activations))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def agreement_of(
    votes: Float[Tensor, "batch children parents dim"],
    poses: Float[Tensor, "batch parents dim"],
    weights: Float[Tensor, "batch children parents"],
) -> float:
    """Return the mean cosine between votes and the poses of their parents, by weights."""
    cosines = F.cosine_similarity(votes, poses.unsqueeze(1), dim=3)  # [B, I, J]
    return float((weights * cosines).sum() / weights.sum().clamp_min(1e-12))


def iterations_of(model: Network) -> set[int]:
    """Return the numbers of iterations of all routed layers; empty where none has iterations."""
    return {_iterations(module) for module in _iterating(model)}


@contextmanager
def iterated(model: Network, number: int) -> Iterator[None]:
    """Let all routed layers that have iterations do `number` of them, and afterwards as many as before."""
    before = [(module, _iterations(module)) for module in _iterating(model)]
    try:
        for module, _ in before:
            _set(module, number)
        yield
    finally:
        for module, was in before:
            _set(module, was)


def _iterating(model: Network) -> list[Any]:
    return [
        module
        for module in model.modules()
        if isinstance(getattr(module, "settings", None), EMSettings)
        or (isinstance(module, Routing | ConvCaps3D) and isinstance(getattr(module, "iterations", None), int))
    ]


def _iterations(module: Any) -> int:
    return int(module.settings.iterations if hasattr(module, "settings") else module.iterations)


def _set(module: Any, number: int) -> None:
    if hasattr(module, "settings"):
        module.settings = replace(module.settings, iterations=number)
    else:
        module.iterations = number


def _of_routing(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> RoutedLayer:
    poses, activations, weight = inputs
    weights = output.couplings * activations.unsqueeze(2)  # [B, I, J]
    agreement = agreement_of(stored_votes(poses, weight), output.poses, weights)
    return RoutedLayer(output.couplings, output.activations, activations, agreement)


def _of_class_matrix_caps(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> RoutedLayer:
    return RoutedLayer(output.couplings, output.activations, inputs[1].flatten(1))


def _of_class_self_routing(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> RoutedLayer:
    activations, couplings = output
    return RoutedLayer(couplings, activations, inputs[1].flatten(1))


def _of_conv_self_routing(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> RoutedLayer:
    _, activations, couplings = output  # couplings [B, P, N, J]: a child routes itself anew for each position
    return RoutedLayer(couplings.flatten(1, 2), activations.flatten(1))


def _of_conv_caps_3d(module: ConvCaps3D, inputs: tuple[Any, ...], output: Any) -> RoutedLayer:
    maps, couplings = output  # maps [B, types x dim, rows, columns]
    lengths = maps.unflatten(1, (module.types, module.dim)).norm(dim=2)
    return RoutedLayer(couplings, lengths.flatten(1))


READERS: dict[type[nn.Module], Callable[[Any, tuple[Any, ...], Any], RoutedLayer]] = {
    Routing: _of_routing,
    ClassMatrixCaps: _of_class_matrix_caps,
    ClassSelfRoutingCaps: _of_class_self_routing,
    ConvSelfRoutingCaps: _of_conv_self_routing,
    ConvCaps3D: _of_conv_caps_3d,
}
