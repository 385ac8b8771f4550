"""An embedded stand-in for smallNORB: solid shapes rendered in stereo, with its structure, labels and factors.

Five categories of ten instances are built from ellipsoids and boxes, whose proportions and places are drawn once per
instance, and seen by two cameras from 9 elevations and 18 azimuths under up to 6 lightings. The instance numbers of
training and test are smallNORB's. No pixel is smallNORB's: an error rate here predicts nothing about smallNORB.

How hard it is: a small CNN (conv 32 and 64 of 5x5 with pooling, FC 128, Adam 0.001, batch 64, random crops of 32x32;
one lighting, n=3, mean and standard deviation) errs on 11.7 ± 2.3 % of the test images after 8 epochs. Trained on the
six familiar azimuths of smallNORB's viewpoint study alone, for 24 epochs, it errs on 2.6 ± 1.3 % at these azimuths and
on 35.2 ± 0.9 % at the others. The shapes were varied until this CNN found them neither trivial nor hopeless.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from capsbench.data.readers.cache import Arrays, cached
from capsbench.data.readers.raw import Raw, SourceSplit
from capsbench.data.tasks.stereo import Resize, ToyNorbOptions, resized

FORMAT = 2  # of the prepared arrays; raise it when this file comes to give others
CATEGORIES = ("animal", "human", "airplane", "truck", "car")
INSTANCES = {"train": (4, 6, 7, 8, 9), "test": (0, 1, 2, 3, 5)}
ELEVATIONS = tuple(range(30, 71, 5))  # degrees; the factor is the place in this list
AZIMUTHS = tuple(range(0, 360, 20))  # degrees; the factor is a tenth of it
STEREO = 8.0  # degrees of azimuth between the two cameras
# Azimuth of the light (from between the cameras) and its elevation, in degrees; its strength; the ambient light. White
# is 1, which strength and ambient light together do not reach.
LIGHTS = (
    (-40, 50, 0.75, 0.2),
    (50, 40, 0.75, 0.2),
    (0, 80, 0.6, 0.3),
    (-80, 30, 0.8, 0.15),
    (80, 60, 0.45, 0.3),
    (10, 30, 0.5, 0.12),
)
SIZE, FINER = 48, 2  # pixels per side, and rays per pixel along a side, which `resize` joins
RADIUS = 15 / 24  # of the sphere around every object, where the frame reaches from -1 to 1
WINDOW = 32  # pixels per side of the middle, where the sphere is: only this must be rendered
BACKGROUND = 0.6
DISTANCE = 4.0  # of the cameras, whose rays are parallel
# float32's last bit differs between processors, which would show in hundreds of pixels.
tensor, full, zeros = (partial(f, dtype=torch.float64) for f in (torch.tensor, torch.full, torch.zeros))

Point = tuple[float, float, float]
Draw = Callable[[float, float], float]


class Part(NamedTuple):
    """A box or an ellipsoid: its half axes, its turn about x, y and z (degrees), and where its joint is on the object.

    x points forward, y to the left and z up. `grip` is the way from the joint to the part's centre, in half axes.
    """

    box: bool
    joint: Point
    half: Point
    turn: Point = (0.0, 0.0, 0.0)
    grip: Point = (0.0, 0.0, 0.0)


BOX, BALL = partial(Part, True), partial(Part, False)
Parts = list[Part]
Solid = tuple[Tensor, Tensor, Tensor, Tensor]  # P parts: is it a box [P]; centre and half axes [P, 3]; axes [P, 3, 3]


def read(
    folder: Path, split: SourceSplit, allow_unofficial: bool = False, options: ToyNorbOptions | None = None
) -> Raw:
    """Return images uint8 [N, 2, S, S], labels int64 [N], 0 to 4, and smallNORB's factors, int64 [N] each.

    Needs no files. N is 4,050 for each of the first `options.lightings` lightings; without options all six are there.
    S is 48, or 64, by `options.resize`. The images are rendered once, then kept among the prepared arrays.
    """
    options = options or ToyNorbOptions()
    lightings, resize = options.lightings, options.resize
    made_from: dict[str, str | int] = {"format": FORMAT, "lightings": lightings, "split": split}
    if resize != "mean":
        made_from["resize"] = resize
    arrays = dict(cached(f"toynorb-{split}-{lightings}", made_from, lambda: render(split, lightings, resize)))
    return Raw(arrays.pop("images"), arrays.pop("labels"), arrays)


def render(split: SourceSplit, lightings: int, resize: Resize = "mean") -> Arrays:
    """Render a split, the lighting varying fastest and the category slowest."""
    objects = list(itertools.product(range(len(CATEGORIES)), INSTANCES[split]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two are a third faster on an idle machine, and ten times slower beside another run
    try:
        images = torch.cat([_views(solid(*names), lightings, resize) for names in objects])
    finally:
        torch.set_num_threads(threads)
    tenths = [azimuth // 10 for azimuth in AZIMUTHS]
    grid = itertools.product(objects, range(len(ELEVATIONS)), tenths, range(lightings))
    columns = np.array([(*names, *seen) for names, *seen in grid], dtype=np.int64).T
    return {"images": images.numpy()} | dict(
        zip(("labels", "instance", "elevation", "azimuth", "lighting"), columns, strict=True)
    )


def solid(category: int, instance: int) -> Solid:
    """Return the parts of one object, moved to the middle and scaled to the size that all objects have."""
    generator = np.random.default_rng((category, instance))
    build = (_animal, _human, _airplane, _truck, _car)[category]
    # A category has three kinds, such as closed trucks, tankers and open trucks; each kind is in both splits.
    parts = build(lambda low, high: float(generator.uniform(low, high)), instance % 3)
    box, *columns = zip(*parts, strict=True)
    joint, half, turn, grip = (tensor(column) for column in columns)
    axes = torch.stack([_rotation(angles) for angles in turn.deg2rad()])
    centre = joint + (axes @ (grip * half)[..., None])[..., 0]
    grid = tensor([p for p in itertools.product((-1.0, 0.0, 1.0), repeat=3) if any(p)])  # [26, 3]
    is_box = torch.tensor(box)
    surface = torch.where(is_box[:, None, None], grid, F.normalize(grid)) * half[:, None] @ axes.mT + centre[:, None]
    middle = (surface.amin((0, 1)) + surface.amax((0, 1))) / 2
    scale = RADIUS / (surface - middle).norm(dim=-1).max()
    return is_box, (centre - middle) * scale, half * scale, axes


def _animal(draw: Draw, kind: int) -> Parts:
    length, girth, leg, thick = draw(0.45, 1.1), draw(0.2, 0.45), draw(0.25, 0.9), draw(0.06, 0.15)
    neck, rise, head, stride = draw(0.1, 0.7), 30 * kind + draw(-10, 25), draw(0.15, 0.32), draw(-20, 20)
    back, slope = leg + 0.7 * girth, math.radians(rise)
    chest = 0.85 * length, 0.0, back + 0.3 * girth
    x, z = chest[0] + (neck + head) * math.cos(slope), chest[2] + (neck + head) * math.sin(slope)
    return [
        BALL((0, 0, back), (length, girth * draw(0.7, 1), girth)),
        BALL(chest, (neck / 2 + head, 1.5 * thick, 1.5 * thick), (0, -rise, 0), (0.7, 0, 0)),
        BALL((x, 0, z), (head * draw(1, 1.3), 0.8 * head, 0.9 * head)),
        BALL((x + 0.9 * head, 0, z - 0.4 * head), (head * draw(0.4, 1), head / 2, head / 2)),
        BALL((-0.95 * length, 0, back + 0.1), (draw(0.12, 0.45), 0.06, 0.06), (0, draw(-50, 60), 0), (-1, 0, 0)),
        *_pair(BALL((x - head / 2, 0.6 * head, z + 0.7 * head), (0.06, 0.08, draw(0.06, 0.25)))),
        *_pair(BOX((0.65 * length, 0.55 * girth, back), (thick, thick, back / 2), (0, stride, 0), (0, 0, -1))),
        *_pair(BOX((-0.65 * length, 0.55 * girth, back), (thick, thick, back / 2), (0, -stride, 0), (0, 0, -1))),
    ]


def _human(draw: Draw, kind: int) -> Parts:
    leg, trunk, wide, thick, head = draw(0.3, 0.6), draw(0.3, 0.5), draw(0.2, 0.45), draw(0.07, 0.13), draw(0.17, 0.28)
    stride, swing, spread, arm = draw(0, 45), draw(-60, 60), draw(0, 130), draw(0.28, 0.45)
    parts = [
        Part(kind > 0, (0, 0, trunk), (0.6 * wide, wide, trunk)),
        BALL((0, 0, 0), (0.6 * wide, wide * draw(0.7, 1.2), 0.2)),
        BALL((0.03, 0, 2 * trunk + 0.8 * head), (0.9 * head, 0.9 * head, head)),
    ]
    for side in (1, -1):
        shoulder, hip = (0, side * wide, 2 * trunk - 0.1), (0, side * 0.55 * wide, 0)
        parts.append(BALL(shoulder, (thick, thick, arm), (side * spread, -side * swing, 0), (0, 0, -1)))
        parts.append(BOX(hip, (thick, thick, leg), (0, side * stride, 0), (0, 0, -1)))
        parts.append(BALL(hip, (2 * thick, thick, 0.07), (0, side * stride, 0), (0.4, 0, -2 * leg / 0.07)))
    return parts


def _airplane(draw: Draw, kind: int) -> Parts:
    thick, span, chord, sweep, tail = draw(0.1, 0.25), draw(0.5, 1.1), draw(0.12, 0.35), draw(-5, 45), draw(0.25, 0.45)
    place, height, rise = draw(-0.1, 0.3), thick * (0.8 * kind - 0.8), draw(0, 10)
    parts = [
        BALL((0, 0, 0), (1, thick, thick * draw(1, 1.4))),
        BALL((draw(0.3, 0.6), 0, 0.8 * thick), (0.22, 0.6 * thick, 0.6 * thick)),
        BOX((-0.85, 0, 0), (0.13, 0.03, draw(0.18, 0.3)), (0, -draw(0, 35), 0), (0, 0, 1)),
        *_pair(BOX((place, 0, height), (chord, span / 2, 0.035), (rise, 0, sweep), (0, 1, 0))),
        *_pair(BOX((-0.85, 0, draw(0, 0.3)), (0.6 * chord, tail / 2, 0.03), (0, 0, sweep), (0, 1, 0))),
    ]
    pod = BALL((place + 0.1, span * draw(0.3, 0.5), height), (draw(0.15, 0.3), 0.08, 0.08))
    return parts + _pair(pod) if kind != 1 else parts


def _truck(draw: Draw, kind: int) -> Parts:
    wide, cab, tall, load, high = draw(0.28, 0.42), draw(0.18, 0.36), draw(0.17, 0.42), draw(0.35, 0.8), draw(0.18, 0.5)
    wheel, nose = draw(0.12, 0.2), draw(-0.3, 0.3)
    deck = 2 * wheel
    parts = [
        BOX((cab, 0, deck), (load + cab, 0.8 * wide, 0.07)),
        BOX((load + cab, 0, deck + tall), (cab, wide, tall)),
        *_wheels((-0.7 * load, 0.6 * load, load + cab)[:: 1 if load > 0.6 else 2], wide, wheel),
    ]
    if nose > 0:
        parts.append(BOX((load + 2 * cab, 0, deck + 0.5 * tall), (nose, 0.9 * wide, 0.5 * tall)))
    if kind == 0:
        return [*parts, BOX((-0.05, 0, deck + high), (load, 1.05 * wide, high))]
    if kind == 1:
        return [*parts, BALL((-0.05, 0, deck + high), (1.1 * load, wide, high))]
    return parts + _pair(BOX((-0.05, wide, deck + 0.12), (load, 0.04, 0.14)))


def _car(draw: Draw, kind: int) -> Parts:
    wide, low, wheel, long = draw(0.33, 0.47), draw(0.13, 0.24), draw(0.14, 0.24), draw(0.3, 0.55)
    roof = wheel + 2 * low
    tall, place = (draw(0.2, 0.35), draw(-0.35, 0.1)) if kind else (draw(0.3, 0.5), long - 0.9)
    return [
        BOX((0, 0, wheel + low), (0.95, wide, low)),
        BALL((draw(0.6, 0.75), 0, wheel + low), (0.4, wide, low * draw(0.8, 1.2))),
        Part(kind != 1, (place, 0, roof), (long if kind else 1.3 * long, 0.9 * wide, tall)),
        BOX((-0.9, 0, roof + draw(-0.2, 0.15)), (0.1, wide, 0.03)),
        *_wheels((-0.6, 0.6), wide, wheel),
    ]


def _pair(part: Part) -> Parts:
    """Return a part and its mirror image on the other side."""
    (x, y, z), (roll, pitch, yaw), (forth, left, up) = part.joint, part.turn, part.grip
    return [part, Part(part.box, (x, -y, z), part.half, (-roll, pitch, -yaw), (forth, -left, up))]


def _wheels(places: tuple[float, ...], wide: float, radius: float) -> Parts:
    return [wheel for x in places for wheel in _pair(BALL((x, wide, radius), (radius, 0.08, radius)))]


def ray_ellipsoid(origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Intersect rays [K, 3] from outside with the unit sphere.

    Returns:
        Distances [K], infinite for rays that miss, and normals [K, 3].
    """
    a = directions.square().sum(-1)
    b = (origins * directions).sum(-1)
    inside = b.square() - a * (origins.square().sum(-1) - 1)
    distance = (-b - inside.clamp_min(0).sqrt()) / a
    return torch.where(inside > 0, distance, torch.inf), origins + distance.unsqueeze(-1) * directions


def ray_box(origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Intersect rays [K, 3] from outside with the box from -1 to 1.

    Returns:
        Distances [K], infinite for rays that miss, and normals [K, 3].
    """
    toward = torch.where(directions < 0, -1.0, 1.0)
    inverse = toward / directions.abs().clamp_min(1e-9)
    near, face = ((-toward - origins) * inverse).max(-1)
    far = ((toward - origins) * inverse).amin(-1)
    normals = torch.where(torch.arange(3) == face.unsqueeze(-1), -toward, 0.0)
    return torch.where(near < far, near, torch.inf), normals


def _views(parts: Solid, lightings: int, resize: Resize = "mean") -> Tensor:
    """Render one object: uint8 [9 * 18 * lightings, 2, S, S]."""
    elevations, azimuths, eyes = tensor(list(itertools.product(ELEVATIONS, AZIMUTHS, (-STEREO / 2, STEREO / 2)))).T
    toward, right, up = _frame(azimuths + eyes, elevations)
    side = (torch.arange(WINDOW * FINER, dtype=torch.float64) + 0.5) * 2 / (SIZE * FINER) - WINDOW / SIZE  # [S]
    nearest = full((len(toward), len(side), len(side)), torch.inf)  # [V, S, S], the first row the upper
    normals = zeros(*nearest.shape, 3)
    for box, centre, half, axes in zip(*parts, strict=True):
        # Only the few rays in the rectangle around a part can meet it.
        within = [
            (sign * side - (along @ centre)[:, None]).abs() < (along @ axes * half).norm(1 if box else 2, 1)[:, None]
            for along, sign in ((up, -1), (right, 1))
        ]
        view, row, column = (within[0][:, :, None] & within[1][:, None]).nonzero(as_tuple=True)
        # In coordinates where the part is the unit sphere or the box from -1 to 1; [V, 3], one row for each view.
        start, ahead, aside, above = (x @ axes / half for x in (DISTANCE * toward - centre, -toward, right, up))
        origins = start[view] + aside[view] * side[column, None] - above[view] * side[row, None]  # [K, 3]
        distance, normal = (ray_box if box else ray_ellipsoid)(origins, ahead[view])
        first = distance < nearest[view, row, column]
        seen = view[first], row[first], column[first]
        nearest[seen] = distance[first]
        normals[seen] = F.normalize(normal[first] / half) @ axes.T
    hit = nearest.isfinite()
    view, shown = hit.nonzero()[:, 0], normals[hit]  # [H], [H, 3]
    lit = []
    for azimuth, elevation, strength, ambient in LIGHTS[:lightings]:
        light = _frame(azimuths + azimuth, torch.full_like(azimuths, elevation))[0]
        fine = torch.full_like(nearest, BACKGROUND)
        fine[hit] = ambient + strength * (shown * light[view]).sum(-1).clamp_min(0)
        whole = F.pad(fine.view(-1, 2, *fine.shape[1:]), [FINER * (SIZE - WINDOW) // 2] * 4, value=BACKGROUND)
        lit.append(resized(whole, resize))
    images = torch.stack(lit, 1).flatten(0, 1)
    return (images * 255 + 0.5 + 1e-9).floor().to(torch.uint8)  # halves go up, whatever the last bit says


def _frame(azimuths: Tensor, elevations: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the unit vectors, each [V, 3], toward a viewer at these angles [V], to the viewer's right, and upward."""
    (ca, sa), (ce, se) = ((a.deg2rad().cos(), a.deg2rad().sin()) for a in (azimuths, elevations))
    return (
        torch.stack((ce * ca, ce * sa, se), 1),
        torch.stack((-sa, ca, torch.zeros_like(sa)), 1),
        torch.stack((-se * ca, -se * sa, ce), 1),
    )


def _rotation(turn: Tensor) -> Tensor:
    """Return the rotation [3, 3] by these angles [3] about x, then y, then z."""
    (cx, cy, cz), (sx, sy, sz) = turn.cos().tolist(), turn.sin().tolist()
    about_x = tensor([[1, 0, 0], [0, cx, -sx], [0, sx, cx]])
    about_y = tensor([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_z = tensor([[cz, -sz, 0], [sz, cz, 0], [0, 0, 1]])
    return about_z @ about_y @ about_x
