"""How the error grows as test images are turned, scaled, sheared, moved, disturbed, blurred or partly covered.

Images are changed whole, as pixels in [0, 1], on the device; where a data set crops and standardises its images, that
comes after, as it would for a picture taken that way. What comes in from outside is background: black where the rim of
the images is black (digits), else the pixel at the edge, repeated (photographs). Strength 0 changes nothing: those are
the images of the test to the bit.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from capsbench.evaluation.chosen import Images, chosen_images, error_of, scores_of, whole_images
from capsbench.evaluation.context import Context
from capsbench.evaluation.result import curve
from capsbench.registry import PROTOCOLS, Count

Background = Literal["zeros", "border"]


class Changed(NamedTuple):
    """Of which images, and how they end: `seen`, rows and columns in the middle that a network sees."""

    background: Background
    seen: tuple[int, int]


@PROTOCOLS.register(
    "transforms",
    title="error under transforms",
    split="test",
    draws="curves",
    shows={
        "error": "as they are (%)",
        "rotation_excess": "turned (+ points)",
        "scale_excess": "scaled (+ points)",
        "translation_excess": "moved (+ points)",
        "mean_excess": "mean of all seven (+ points)",
    },
)
def transforms(context: Context, *, images: Count = 1000, steps: Count = 4) -> dict[str, Any]:
    """Sweep each transform in `steps` steps from nothing to its greatest strength, and count the errors.

    Returns:
        The error of the images as they are, in %; by transform, NAME_excess, the mean error over the sweep (its area
        over its width, by trapezoids) less that, in points; the curves.
    """
    task = context.task()
    chosen = chosen_images(task, images)
    some = chosen[:100]
    rows, columns = task.eval_batch(some[:1], 0).images.shape[2:]
    how = Changed(background_of(whole_images(task, some)), (rows, columns))
    unchanged = error_of(scores_of(context.model, task, chosen), task, chosen)
    found, curves = {}, []
    for name, (label, most, change) in SWEEPS.items():
        strengths = np.linspace(0, most, steps + 1).tolist()
        errors = [unchanged]
        for strength in strengths[1:]:

            def apply(whole: Images, rng: Generator, change: Change = change, strength: float = strength) -> Images:
                return change(whole, strength, rng, how)

            errors.append(error_of(scores_of(context.model, task, chosen, apply, context.rng), task, chosen))
        found[f"{name}_excess"] = round(excess(strengths, errors), 6)
        curves.append(curve(name, strengths, errors, x_label=label, y_label="error (%)"))
    return {
        "status": "ok",
        "images": len(chosen),
        "background": how.background,
        "error": unchanged,
        **found,
        "mean_excess": round(float(np.mean(list(found.values()))), 6),
        "curves": curves,
    }


def excess(strengths: list[float], errors: list[float]) -> float:
    """Return the mean of a curve of errors over its strengths, by trapezoids, less its first value."""
    x, y = np.array(strengths), np.array(errors)
    area = float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum())  # np.trapezoid is of numpy 2
    return area / (strengths[-1] - strengths[0]) - errors[0]


def background_of(images: Images) -> Background:
    """Return what lies outside images: nothing where half or more of their rim is black, else their edge goes on."""
    rim = torch.cat([images[..., 0, :], images[..., -1, :], images[..., 0], images[..., -1]], dim=-1)
    return "zeros" if float(rim.median()) == 0 else "border"


def warp(
    images: Images, matrices: Float[Tensor, "batch 2 2"], shifts: Float[Tensor, "batch 2"], background: Background
) -> Images:
    """Move images: what was at p goes to M p + t, bilinear.

    Args:
        images: [B, C, H, W].
        matrices: M [B, 2, 2], of (x, y) in pixels from the middle of the image, x to the right, y downwards.
        shifts: t [B, 2], in pixels.
        background: what comes in from outside.
    """
    half = images.new_tensor([images.shape[3] / 2, images.shape[2] / 2])  # grids count in these, from -1 to 1
    inverse = torch.linalg.inv(matrices.to(images))  # where each pixel comes from
    linear = inverse * half / half.unsqueeze(1)
    constant = -(inverse @ shifts.to(images).unsqueeze(2)) / half.unsqueeze(1)
    grid = F.affine_grid(torch.cat([linear, constant], dim=2), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=background, align_corners=False)


def rotations(angles: Float[Tensor, " batch"]) -> Float[Tensor, "batch 2 2"]:
    """Return the matrices of rotations by angles in radians, clockwise as an image is seen."""
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)


def scalings(factors: Float[Tensor, " batch"]) -> Float[Tensor, "batch 2 2"]:
    """Return the matrices that make images larger by factors."""
    return factors[:, None, None] * torch.eye(2)


def _rotate(images: Images, degrees: float, rng: Generator, how: Changed) -> Images:
    """Turn every image, half of them either way."""
    return _by_matrix(images, rotations(_signs(images, rng) * math.radians(degrees)), how)


def _scale(images: Images, percent: float, rng: Generator, how: Changed) -> Images:
    """Make half of the images larger by a factor, the others smaller by as much."""
    return _by_matrix(images, scalings((1 + percent / 100) ** _signs(images, rng)), how)


def _shear(images: Images, strength: float, rng: Generator, how: Changed) -> Images:
    """Shear half of the images along rows, half along columns, either way."""
    matrices = torch.eye(2).repeat(len(images), 1, 1)
    sheared = strength * _signs(images, rng)
    along_rows = _signs(images, rng) > 0
    matrices[:, 0, 1] = torch.where(along_rows, sheared, 0.0)
    matrices[:, 1, 0] = torch.where(along_rows, 0.0, sheared)
    return _by_matrix(images, matrices, how)


def _translate(images: Images, pixels: float, rng: Generator, how: Changed) -> Images:
    """Move every image as far, each in a direction of its own."""
    angles = 2 * math.pi * torch.rand(len(images), generator=rng)
    shifts = pixels * torch.stack([angles.cos(), angles.sin()], 1)
    return warp(images, torch.eye(2).repeat(len(images), 1, 1), shifts, how.background)


def _noise(images: Images, std: float, rng: Generator, how: Changed) -> Images:
    """Add Gaussian noise to every pixel, and cut to [0, 1]."""
    return (images + std * torch.randn(images.shape, generator=rng).to(images)).clamp(0, 1)


def _blur(images: Images, std: float, rng: Generator, how: Changed) -> Images:
    """Blur by a Gaussian, cut off at 3 std; images go on with the pixel at their edge."""
    reach = math.ceil(3 * std)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / std) ** 2).to(images)
    kernel = kernel / kernel.sum()
    single = F.pad(images.flatten(0, 1).unsqueeze(1), (reach,) * 4, mode="replicate")  # [B * C, 1, H + 2r, W + 2r]
    blurred = F.conv2d(F.conv2d(single, kernel.view(1, 1, -1, 1)), kernel.view(1, 1, 1, -1))
    return blurred.view_as(images)


def _occlude(images: Images, percent: float, rng: Generator, how: Changed) -> Images:
    """Cover one rectangle of each image, anywhere in the part that is seen, with background."""
    height, width = images.shape[2:]
    draws = torch.rand(2, len(images), 1, generator=rng).to(images)
    inside = []
    for side, seen, draw in zip((height, width), how.seen, draws, strict=True):
        covered = round(seen * percent / 100)
        first = (side - seen) // 2 + (draw * (seen - covered + 1)).floor()  # [B, 1]
        place = torch.arange(side, device=images.device)
        inside.append((place >= first) & (place < first + covered))  # [B, side]
    hole = inside[0][:, None, :, None] & inside[1][:, None, None, :]  # [B, 1, H, W]
    if how.background == "zeros":
        return images.masked_fill(hole, 0.0)
    rim = torch.cat([images[..., 0, :], images[..., -1, :], images[..., 0], images[..., -1]], dim=-1)  # [B, C, rim]
    return torch.where(hole, rim.mean(dim=2)[:, :, None, None], images)


def _by_matrix(images: Images, matrices: Tensor, how: Changed) -> Images:
    return warp(images, matrices, torch.zeros(len(images), 2), how.background)


def _signs(images: Images, rng: Generator) -> Float[Tensor, " batch"]:
    return 1 - 2 * torch.randint(0, 2, (len(images),), generator=rng).float()


Change = Callable[[Images, float, Generator, Changed], Images]
# by name: the axis of its curve, the greatest strength, what is done
SWEEPS: dict[str, tuple[str, float, Change]] = {
    "rotation": ("rotation (degrees)", 60, _rotate),
    "scale": ("larger or smaller by (%)", 60, _scale),
    "shear": ("shear (pixels per pixel)", 0.6, _shear),
    "translation": ("translation (pixels)", 8, _translate),
    "noise": ("noise (std, pixels 0 to 1)", 0.4, _noise),
    "blur": ("blur (std in pixels)", 2, _blur),
    "occlusion": ("covered square (% of the side)", 60, _occlude),
}
