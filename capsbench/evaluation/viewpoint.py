"""Errors by how an image is seen: azimuth, elevation, lighting, object; rotation, shear, scale, displacement."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from capsbench.data.tasks.affine import DEGREES, SCALE, SHEAR, Placed
from capsbench.data.tasks.task import Task
from capsbench.evaluation.context import Context
from capsbench.evaluation.result import curve, not_applicable
from capsbench.models import predicted_classes
from capsbench.registry import PROTOCOLS, Count
from capsbench.study import Split

Wrong = Bool[np.ndarray, " images"]


# Labels, and what the numbers in smallNORB's files stand for. Familiar azimuths, -60 to 40 degrees, are neighbours so.
NORB_FACTORS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "azimuth": ("azimuth (degrees)", lambda tens: (10 * tens + 180) % 360 - 180),
    "elevation": ("elevation (degrees)", lambda rank: 30 + 5 * rank),
    "lighting": ("lighting (number)", lambda number: number),
}
# in 40x40, up to where a narrow digit can lie, in steps of 2 pixels; training moves digits by up to 6
DISPLACEMENTS = (0.0, 18.0, 9)


class Factor(NamedTuple):
    """What an image is seen under.

    values: [N]. label: with its unit. span: lowest and highest value of one that is drawn from a range, and into how
    many bins of the same width that is cut; None: each value stands by itself.
    """

    values: Shaped[np.ndarray, " images"]
    label: str
    span: tuple[float, float, int] | None = None


@PROTOCOLS.register(
    "viewpoint",
    split="test",
    scores_alone=True,
    draws="curves",
    shows={
        "worst_azimuth": "worst azimuth (%)",
        "worst_elevation": "worst elevation (%)",
        "worst_object": "worst object (%)",
        "worst_rotation": "worst rotation (%)",
        "familiar_error": "familiar (%)",
        "gap": "novel minus familiar (points)",
    },
)
def viewpoint(context: Context, *, bins: Count = 8) -> dict[str, Any]:
    """Count errors by each factor of the test images; the counts of a factor add up to those of `accuracy`.

    Where there is a familiar test, its errors are counted likewise, and `gap` is what the error rises by from familiar
    to novel views. Gaps of two networks can be compared only where their familiar errors are equal.

    bins: of the factors that are drawn from a range (rotation, shear, scale). Displacements are cut every 2 pixels.
    """
    found = _of_split(context, "test", bins)
    if not found["by"]:
        return not_applicable(f"how the images of {context.run.data.name} are seen is not known")
    result = {"status": "ok"} | found | {"unknown": _unknown(context.items().factors)}
    for name, groups in found["by"].items():
        result[f"worst_{name}"] = max(group["error"] for group in _leaves(groups))
    curves = {name: _points(groups) for name, groups in found["by"].items() if name != "object"}
    if context.run.data.has_familiar_test:
        familiar = _of_split(context, "familiar", bins)
        result |= {"familiar": familiar, "familiar_error": familiar["error"], "gap": found["error"] - familiar["error"]}
        for name in curves.keys() & familiar["by"].keys():
            if not {x for x, _ in curves[name]} & {x for x, _ in _points(familiar["by"][name])}:
                curves[name] += _points(familiar["by"][name])  # the factor that is familiar or novel: one line of both
    labels = result.pop("labels") | result.get("familiar", {}).pop("labels", {})
    result["curves"] = [
        curve(name, *zip(*sorted(points), strict=True), x_label=labels[name], y_label="error (%)")
        for name, points in curves.items()
    ]
    return result


def errors_by(wrong: Wrong, factor: Factor) -> dict[str, dict[str, Any]]:
    """Count images and errors for each value of a factor, or for each bin, which the middle of its range names.

    Args:
        wrong: which images were taken for another class, [N].
        factor: of the same images.

    Returns:
        By value, ascending: `images`, `errors`, and `error` in %. Bins without images are left out.
    """
    values = factor.values
    if factor.span is not None:
        low, high, bins = factor.span
        width = (high - low) / bins
        place = np.clip((values - low) // width, 0, bins - 1)
        values = np.round(low + (place + 0.5) * width, 6)
    return {f"{value:g}": _count(wrong[values == value]) for value in np.unique(values)}


def errors_by_object(
    wrong: Wrong,
    labels: Shaped[np.ndarray, " images"],
    instances: Shaped[np.ndarray, " images"],
    classes: tuple[str, ...],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Count images and errors by category, then by instance: {"car": {"3": {"images": ...}}}."""
    return {
        classes[label]: errors_by(wrong[labels == label], Factor(instances[labels == label], "instance"))
        for label in np.unique(labels)
    }


def factors_of(factors: dict[str, np.ndarray], task: Task, bins: int) -> dict[str, Factor]:
    """Return the factors of a task's images that are known and vary, in degrees, pixels or parts of the size.

    Args:
        factors: as smallNORB's and affNIST's files have them, each [N]; -1 of smallNORB's is unknown.
        task: whose draws place the digits of generated images.
        bins: of the factors that are drawn from a range.
    """
    if isinstance(task, Placed):
        return _factors_of_placed(task, bins)
    if "rotation" in factors:
        rotation = Factor(factors["rotation"], "rotation (degrees)", (-DEGREES, DEGREES, bins))
        return {"rotation": rotation, "displacement": _displacement(task)}
    varied = [name for name in NORB_FACTORS if name in factors and len(np.unique(factors[name])) > 1]
    known = [name for name in varied if name not in _unknown(factors)]
    return {name: Factor(NORB_FACTORS[name][1](factors[name]), NORB_FACTORS[name][0]) for name in known}


def _factors_of_placed(task: Placed, bins: int) -> dict[str, Factor]:
    draws = task.draws.numpy()  # [N, 6], see `affine_matrices`
    if task.mode == "translated":
        room = task.places.shape[2]
        down, right = (np.floor(room * draws[:, 4:]) - room // 2).astype(int).T
        # the window at row r shows the digit r pixels above where the first one does
        return {
            "shift_x": Factor(-right, "shift to the right (pixels)"), "shift_y": Factor(-down, "shift down (pixels)")
        }  # fmt: skip
    angle, shear, width, height = (2 * draws[:, :4] - 1).T
    return {
        "rotation": Factor(DEGREES * angle, "rotation (degrees)", (-DEGREES, DEGREES, bins)),
        "shear": Factor(SHEAR * shear, "shear", (-SHEAR, SHEAR, bins)),
        "scale_x": Factor(1 + SCALE * width, "horizontal scale", (1 - SCALE, 1 + SCALE, bins)),
        "scale_y": Factor(1 + SCALE * height, "vertical scale", (1 - SCALE, 1 + SCALE, bins)),
        "displacement": _displacement(task),
    }


def _displacement(task: Task) -> Factor:
    places = torch.arange(len(task.labels), device=task.labels.device).split(1000)
    found = torch.cat([displacements(task.eval_images(indices)[0]) for indices in places])
    return Factor(found.cpu().numpy(), "displacement (pixels)", DISPLACEMENTS)


def displacements(images: Shaped[Tensor, "images 1 height width"]) -> Float[Tensor, " images"]:
    """Return how far the centre of mass of each image lies from its middle, the larger of x and y: in pixels, [N].

    MNIST's digits have theirs in the middle of their frame, so it is how far a digit was moved, to about a pixel. An
    image without ink counts as 0.
    """
    ink = images[:, 0].double()  # [N, H, W]
    total = ink.sum(dim=(1, 2)).clamp(min=torch.finfo(ink.dtype).tiny)
    offsets = []
    for across, side in ((1, ink.shape[2]), (2, ink.shape[1])):
        place = torch.arange(side, device=ink.device, dtype=ink.dtype) - (side - 1) / 2
        offsets.append((ink.sum(dim=across) @ place / total).abs())
    return torch.maximum(*offsets)


def _of_split(context: Context, split: Split, bins: int) -> dict[str, Any]:
    """Count the errors of a split as a whole and by each of its factors."""
    predictions, items = context.predictions(split), context.items(split)
    labels = predictions.labels.cpu().numpy()
    if labels.ndim > 1:
        return {"by": {}}
    wrong = predicted_classes(predictions.scores).cpu().numpy() != labels
    factors = factors_of(items.factors, context.task(split), bins)
    by: dict[str, Any] = {name: errors_by(wrong, factor) for name, factor in factors.items()}
    instances = items.factors.get("instance")
    if instances is not None and (instances >= 0).all():
        by["object"] = errors_by_object(wrong, labels, instances, context.run.data.facts.classes)
    return _count(wrong) | {"by": by, "labels": {name: factor.label for name, factor in factors.items()}}


def _unknown(factors: dict[str, np.ndarray]) -> list[str]:
    return [name for name, values in factors.items() if (values < 0).any() and name in NORB_FACTORS]


def _count(wrong: Wrong) -> dict[str, Any]:
    errors = int(wrong.sum())
    return {"images": len(wrong), "errors": errors, "error": 100 * errors / len(wrong) if len(wrong) else math.nan}


def _leaves(groups: dict[str, Any]) -> list[dict[str, Any]]:
    if all("images" in group for group in groups.values()):
        return list(groups.values())
    return [leaf for group in groups.values() for leaf in _leaves(group)]


def _points(groups: dict[str, Any]) -> list[tuple[float, float]]:
    return [(float(value), group["error"]) for value, group in groups.items()]
