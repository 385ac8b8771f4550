"""What routing does in a trained network, and what more or fewer iterations at test time do to it.

Measured are the layers that `routed_layers` finds.

A parse tree gives each active child one parent, another one in another image. Mitterreiter, Koch, Giesen, Laue 2023,
*Why Capsule Neural Networks Do Not Scale: Challenging the Dynamic Parse-Tree Assumption*, ask whether routing does
that. Their text beyond the abstract was not at hand, so `assigned`, `reassigned`, `tree_depth` and what counts as dead
are OURS, made for the same question.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from capsbench.evaluation.chosen import chosen_images, error_of, scores_of
from capsbench.evaluation.context import Context
from capsbench.evaluation.result import curve, not_applicable
from capsbench.evaluation.routed_layers import BATCH, RoutedLayer, iterated, iterations_of, routed_layers
from capsbench.registry import PROTOCOLS, Count
from capsbench.run.metrics import coupling_entropy

DEAD = 0.01  # a capsule whose activation is nowhere higher
OWNED = 0.5  # a child has a parent of its own that gets more than this of it
UNIFORM, TAKES_ALL, NOTHING_TAKEN = 0.99, 0.9, 0.1
_DRAWN = {
    "entropy": "coupling entropy (1: uniform)", "agreement": "agreement (cosine)",
    "dead_children": "dead children (%)", "dead_parents": "dead parents (%)",
}  # fmt: skip


@PROTOCOLS.register(
    "routing",
    title="what routing does",
    split="test",
    draws="curves",
    shows={
        "entropy": "coupling entropy",
        "agreement": "agreement",
        "assigned": "children with one parent (%)",
        "tree_depth": "tree depth (layers)",
        "error_at_one": "error at r = 1 (%)",
    },
)
def routing(
    context: Context, *, images: Count = 1000, coupling_images: Count = 200, most_iterations: Count = 7
) -> dict[str, Any]:
    """Measure every routed layer as trained and with 1 to `most_iterations` iterations at test time.

    The error is that of `images` test images, as accuracy counts it; the rest is measured on
    `coupling_images` of them. All routed layers get the same number; a
    network without iterations has one row.

    Returns:
        At the top level what `layer_numbers` gives of the class layer as trained; `tree_depth`, the mean over images of
        the number of routed layers, from the classes downwards without a gap, in which more than half of what is active
        belongs to one parent; `error`, and that at one iteration. `rows` hold every layer as trained
        (`iterations` null) and by iterations. `in_words` names what the class layer has become, where it has collapsed.
    """
    task, model = context.task(), context.model
    chosen = chosen_images(task, images)
    few = chosen_images(task, min(coupling_images, images))
    seen = torch.cat([task.eval_batch(part, 0).images for part in few.split(BATCH)])
    if not routed_layers(model, seen[:1]):
        routes = any(hasattr(module, "iterations") for module in model.modules())  # as votes of group_capsnet do
        return not_applicable("its routing has no couplings" if routes else "the network has no routing")

    def row(iterations: int | None) -> dict[str, Any]:
        taken = routed_layers(model, seen)
        return {
            "iterations": iterations,
            "error": error_of(scores_of(model, task, chosen), task, chosen),
            "tree_depth": tree_depth(list(taken.values())),
            "layers": {name: layer_numbers(batches) for name, batches in taken.items()},
        }

    own = iterations_of(model)
    trained, rows = row(None), []
    for number in range(1, most_iterations + 1) if own else ():
        with iterated(model, number):
            rows.append(row(number))
    last = list(trained["layers"])[-1]
    numbers = trained["layers"][last]
    found: dict[str, Any] = {
        "status": "ok",
        "images": len(chosen),
        "sizes": {"coupling_images": len(few)},
        "error": trained["error"],
        "tree_depth": trained["tree_depth"],
        **{key: value for key, value in numbers.items() if value is not None},
        "in_words": in_words(numbers),
        "class_layer": last,
        "iterations_as_trained": sorted(own),
        "rows": [trained, *rows],
    }
    if rows:
        found["error_at_one"] = rows[0]["error"]
        found["curves"] = _curves(rows, last)
    return found


def _curves(rows: list[dict[str, Any]], layer: str) -> list[dict[str, Any]]:
    """Draw error, depth of the tree, and what the class layer does, over iterations."""
    x, label = [row["iterations"] for row in rows], "routing iterations at test time"
    found = [curve("error", x, [row["error"] for row in rows], x_label=label, y_label="error (%)")]
    for name, text in _DRAWN.items():
        values = [row["layers"][layer][name] for row in rows]
        if all(value is not None for value in values):
            found.append(curve(name, x, values, x_label=label, y_label=text))
    depths = [row["tree_depth"] for row in rows]
    return [*found, curve("tree_depth", x, depths, x_label=label, y_label="layers with a parent each")]


def layer_numbers(parts: list[RoutedLayer]) -> dict[str, float | None]:
    """Return the numbers of a layer, from its batches; None for what it does not tell.

    - entropy: mean entropy of a child's couplings over log J, 1 is uniform (`capsbench.run.metrics.coupling_entropy`).
    - agreement: mean cosine between a vote and the pose of its parent, weighted by coupling times the child's
      activation.
    - largest_share: of all couplings, mean over images, what the parent takes that takes most.
    - given: mean sum of a child's couplings; less than 1 where it may go to no parent.
    - assigned: share in % of what is active that belongs to one parent, which gets more than half of it.
    - reassigned: how often, in %, a child that belongs to one parent belongs to another one than in most images; 0: one
      tree for all images. None where no child belongs to one.
    - dead_children, dead_parents: share in % of the capsules whose activation is above 0.01 in no image.
    """
    couplings = torch.cat([part.couplings for part in parts])  # [B, I, J]
    parents = torch.cat([part.parents for part in parts])
    children = [part.children for part in parts if part.children is not None]  # of all batches, or of none
    agreements = [part.agreement * len(part.parents) for part in parts if part.agreement is not None]
    found = {
        "entropy": coupling_entropy(couplings),
        "agreement": sum(agreements) / len(parents) if agreements else None,
        "largest_share": largest_share(couplings),
        "given": float(couplings.sum(dim=2).mean()),
        "assigned": 100 * float(torch.cat([owned_share(part) for part in parts]).mean()),
        "reassigned": reassigned(couplings),
        "dead_children": dead_share(torch.cat(children)) if children else None,
        "dead_parents": dead_share(parents),
    }
    return {key: None if value is None else round(value, 6) for key, value in found.items()}


def largest_share(couplings: Float[Tensor, "batch children parents"]) -> float:
    """Return which share of all couplings the parent takes that takes most, a mean over images."""
    mass = couplings.sum(dim=1)  # [B, J]
    return float((mass / mass.sum(dim=1, keepdim=True).clamp_min(1e-12)).mean(dim=0).max())


def tree_depth(layers: Sequence[list[RoutedLayer]]) -> float:
    """Return the mean over images of how many layers, from the last downwards without a gap, are part of a parse tree.

    A layer is where more than half of what is active belongs to one parent. layers: batch by batch, the first first.
    """
    part = torch.stack([torch.cat([owned_share(batch) for batch in batches]) > OWNED for batches in layers])  # [L, B]
    return float(part.flip(0).long().cumprod(dim=0).sum(dim=0).double().mean())


def owned_share(layer: RoutedLayer) -> Float[Tensor, " batch"]:
    """Return which share of what is active in each image belongs to one parent, from 0 to 1.

    Weighted by the activations of the children, where they are known.
    """
    owned = (layer.couplings.amax(dim=2) > OWNED).double()  # [B, I]
    weights = torch.ones_like(owned) if layer.children is None else layer.children.double()
    return (owned * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1e-12)


def reassigned(couplings: Float[Tensor, "images children parents"]) -> float | None:
    """Return how often in % a child that has a parent of its own has another one than it has most often."""
    share, parent = couplings.max(dim=2)  # [B, I]
    owners = torch.zeros(couplings.shape[1:], dtype=torch.int64, device=couplings.device)  # in how many images, [I, J]
    owners.scatter_add_(1, parent.T, (share.T > OWNED).long())
    owned = int(owners.sum())
    return 100 * (1 - int(owners.amax(dim=1).sum()) / owned) if owned else None


def dead_share(activations: Float[Tensor, "images capsules"]) -> float:
    """Return the share in % of the capsules that are above 0.01 in no image."""
    return 100 * float((activations.amax(dim=0) <= DEAD).double().mean())


def in_words(numbers: dict[str, float | None]) -> list[str]:
    """Name what a layer has become, in the words and with the limits of `capsbench.analysis.stuck`."""
    largest, given, entropy = numbers["largest_share"] or 0, numbers["given"] or 0, numbers["entropy"] or 0
    found = []
    if given < NOTHING_TAKEN or numbers["dead_parents"] == 100:
        found.append("no parent takes anything")
    elif largest > TAKES_ALL:
        found.append("one parent takes all")
    if entropy > UNIFORM:
        found.append("the couplings are uniform")
    return found
