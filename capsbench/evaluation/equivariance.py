"""How pose and presence of the winning capsule change as the input is moved, turned or scaled.

What capsules claim (Sabour, Frosst, Hinton 2017; Hinton, Sabour, Frosst 2018): the pose of an entity changes with the
viewpoint, in a simple way (equivariance), and its presence does not (invariance). The measure is ours: the share R2 of
the variance of the pose's change that a linear map from the transform's parameters explains.

Presence is that of the capsule that wins on the image as it is, whatever wins after. Poses are compared where it still
wins: under EM routing the mean of a capsule that hardly anything is assigned to may lie anywhere, and a few such poses
outweigh all others (R2 of translation on MNIST with them 0.00, without them 0.30). Each class capsule has a map of its
own, as the values of two capsules mean different things; a CNN's features get maps by predicted class as well.
"""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from capsbench.data.tasks.task import evaluation_batch
from capsbench.evaluation.chosen import as_seen, chosen_images, whole_images
from capsbench.evaluation.context import Context
from capsbench.evaluation.representation import NOTHING, represent
from capsbench.evaluation.result import not_applicable
from capsbench.evaluation.transforms import background_of, rotations, scalings, warp
from capsbench.models import predicted_classes
from capsbench.registry import PROTOCOLS, Count

TRANSLATION, ROTATION, SCALE = 4.0, 30.0, 1.25  # pixels, degrees, factor: drawn up to these, either way
MOST_DIRECTIONS = 16  # of a pose's change that a parameter is decoded from: the values of S17's class capsules
UNCHANGED = 1e-4  # of the spread of poses: below that a change is rounding

Parameters = Float[Tensor, "images parameters"]
Values = Float[Tensor, "images dim"]
Groups = Int[Tensor, " images"]


class Moved(NamedTuple):
    """One transform of each image. matrices [N, 2, 2] and shifts [N, 2] as `warp` takes them."""

    parameters: Parameters
    matrices: Float[Tensor, "images 2 2"]
    shifts: Float[Tensor, "images 2"]


@PROTOCOLS.register(
    "equivariance",
    split="test",
    draws="values",
    shows={
        "translation_r2": "R2 of translation",
        "rotation_r2": "R2 of rotation",
        "scale_r2": "R2 of scale",
        "presence_change": "change of presence",
        "winner_stays": "same winner (%)",
    },
)
def equivariance(context: Context, *, images: Count = 2000) -> dict[str, Any]:
    """Measure equivariance of poses and constancy of presence under translation, rotation and scale.

    Each image is moved once by each, as far as drawn: by up to 4 pixels along each axis, 30 degrees, a factor of 1.25.

    Returns:
        By transform what `measure` returns, as NAME_r2 and so on, and the means of `presence_change` and `winner_stays`
        over the three. An R2 that is not defined is not there; `undefined` says why.
    """
    task, model = context.task(), context.model
    chosen = chosen_images(task, images)
    background = background_of(whole_images(task, chosen[:100]))
    rest = _values(context, chosen)
    if rest is None:
        return not_applicable(NOTHING)
    winners, presence, values, kind = rest
    found: dict[str, Any] = {}
    undefined: dict[str, str] = {}
    for name, moved in draw_moves(len(chosen), context.rng()).items():
        after: tuple[list[Tensor], ...] = ([], [], [])  # winners, presences and values, batch by batch
        for rows in torch.arange(len(chosen)).split(evaluation_batch(chosen.device)):
            whole = warp(
                whole_images(task, chosen[rows.to(chosen.device)]), moved.matrices[rows], moved.shifts[rows], background
            )
            said = represent(model, as_seen(task, whole))
            own = winners[rows].to(said.scores.device)
            after[0].append(predicted_classes(said.scores).cpu())
            after[1].append(said.presence.gather(1, own[:, None]).squeeze(1).cpu())
            after[2].append(said.of_classes(own).cpu())
        now, now_present, now_values = (torch.cat(parts) for parts in after)
        stays = now == winners
        numbers, why = measure(values[stays], now_values[stays], moved.parameters[stays], winners[stays])
        numbers["presence_change"] = float((now_present - presence).abs().mean())
        numbers["winner_stays"] = 100 * float(stays.double().mean())
        found |= {f"{name}_{key}": round(value, 6) for key, value in numbers.items()}
        undefined |= {name: why} if why else {}
    means = {
        key: round(sum(found[f"{name}_{key}"] for name in ("translation", "rotation", "scale")) / 3, 6)
        for key in ("presence_change", "winner_stays")
    }
    about = {"undefined": undefined} if undefined else {}
    return {"status": "ok", "of": kind, "images": len(chosen), **means, **found, **about}


def _values(context: Context, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, str] | None:
    """Return winners [N], their presence [N], their poses [N, D] (or features) of images as they are, and which."""
    winners, presences, values, kind = [], [], [], ""
    for part in chosen.split(evaluation_batch(chosen.device)):
        said = represent(context.model, context.task().eval_batch(part, 0).images)
        if said.values is None:
            return None
        won = predicted_classes(said.scores)
        winners.append(won.cpu())
        presences.append(said.presence.gather(1, won[:, None]).squeeze(1).cpu())
        values.append(said.of_classes(won).cpu())
        kind = said.kind
    return torch.cat(winners), torch.cat(presences), torch.cat(values), kind


def draw_moves(images: int, rng: torch.Generator) -> dict[str, Moved]:
    """Draw one translation, one rotation and one scaling for each image.

    Parameters are (dx, dy) in pixels, (cos, sin) of the angle, the logarithm of the factor.
    """
    draws = 2 * torch.rand(images, 4, generator=rng) - 1  # in [-1, 1)
    shifts = TRANSLATION * draws[:, :2]
    angles = math.radians(ROTATION) * draws[:, 2]
    logs = math.log(SCALE) * draws[:, 3]
    same, nowhere = torch.eye(2).repeat(images, 1, 1), torch.zeros(images, 2)
    turned = torch.stack([angles.cos(), angles.sin()], 1)
    return {
        "translation": Moved(shifts, same, shifts),
        "rotation": Moved(turned, rotations(angles), nowhere),
        "scale": Moved(logs[:, None], scalings(logs.exp()), nowhere),
    }


def measure(rest: Values, moved: Values, parameters: Parameters, groups: Groups) -> tuple[dict[str, float], str]:
    """Compare poses of images with those after a transform.

    Args:
        rest: of the images as they are, [N, D].
        moved: after the transform, [N, D].
        parameters: of the transform of each image, [N, P].
        groups: which capsule a pose belongs to, [N].

    Returns:
        `pose_change`, the root mean square of the change over that of the poses' spread about the mean of their
        capsule; `r2` of a linear map from the parameters to the change; `decoded_r2` of one from the 16 directions in
        which it changes most to the parameters. And why the two R2 are not there, or nothing.
    """
    rest, moved, parameters = rest.double(), moved.double(), parameters.double()
    change = moved - rest
    spread = torch.cat([(own := rest[groups == group]) - own.mean(dim=0) for group in groups.unique()])
    squared = float(spread.square().mean())
    found = {"pose_change": math.sqrt(float(change.square().mean()) / squared)} if squared > 0 else {}
    if float(change.square().mean()) <= UNCHANGED**2 * max(squared, float(rest.square().mean())):
        return found, "the pose does not change, so there is nothing to explain"
    r2 = linear_r2(parameters, change, groups)
    decoded = linear_r2(change, parameters, groups)
    if r2 is None or decoded is None:
        return found, "too few images of any class, or no change that differs from image to image"
    return found | {"r2": r2, "decoded_r2": decoded}, ""


def linear_r2(inputs: Values, outputs: Values, groups: Groups) -> float | None:
    """Return the share of the variance of outputs that linear maps from inputs explain, one map per group.

    Least squares with a constant, fitted on every second image of a group and scored on the others: 1 minus the sum of
    squared residuals over that of squared deviations from the mean of the group, both over all groups and outputs. It
    is below zero where the maps are worse than that mean. Inputs of more than 16 values, or than a quarter of the
    fitted images, are cut down to as many of their principal directions.

    Args:
        inputs: float64 [N, P].
        outputs: float64 [N, D].
        groups: int64 [N]; a group of fewer than 8 images is left out.

    Returns:
        R2, or None where no output differs from its mean or no group is large enough.
    """
    residual = total = 0.0
    for group in groups.unique():
        rows = (groups == group).nonzero().flatten()
        fitted, scored = rows[::2], rows[1::2]
        if len(scored) < 4:
            continue
        mean = inputs[fitted].mean(dim=0)
        directions = torch.linalg.svd(inputs[fitted] - mean, full_matrices=False).Vh  # [min(N, P), P]
        kept = directions[: min(MOST_DIRECTIONS, len(fitted) // 4)].T
        ones = inputs.new_ones(len(inputs), 1)
        seen = torch.cat([(inputs - mean) @ kept, ones], dim=1)
        # gelsd takes inputs that do not vary, which the other drivers refuse; there is none on a GPU
        fit = torch.linalg.lstsq(seen[fitted].cpu(), outputs[fitted].cpu(), driver="gelsd").solution.to(outputs)
        residual += float((outputs[scored] - seen[scored] @ fit).square().sum())
        total += float((outputs[scored] - outputs[scored].mean(dim=0)).square().sum())
    return 1 - residual / total if total > 0 else None
