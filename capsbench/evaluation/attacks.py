"""Attacks on images in [0, 1] that move no pixel by more than eps (L-infinity): by gradients, and by scores alone.

All that an attack knows of a network is an objective, which says of images how near to its goal each of them is. So
they take any network, labels of pairs, and images that are standardised after the attack.

Why these are ours: foolbox 3.3.4 (2024) and torchattacks 3.5.1 (2023, wants a `requests` of 2021) have their loss built
in, the cross-entropy of logits; adversarial-robustness-toolbox 1.20.1 (2025) takes 6 s to import, and its square attack
tries one square for all images at once. All of them call an image fooled where the highest score is not that of its one
label, which leaves out pairs. By hand, on a ResNet, FGSM and BIM agreed with all three within 1e-7.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from capsbench.models import predicted_classes
from capsbench.run.metrics import is_correct

Pixels = Float[Tensor, "batch channels height width"]
# Pixels [B, C, H, W] and the numbers [B] that these images have -> what shall rise, by image or summed over them, and
# which images are at the goal, bool [B].
Objective = Callable[[Pixels, Int[Tensor, " batch"]], tuple[Tensor, Bool[Tensor, " batch"]]]

FIRST_SHARE = 0.8  # of an image that the first squares cover: that of the paper for MNIST
HALVINGS = (10, 50, 200, 1000, 2000, 4000, 6000, 8000)  # queries of 10,000 after which the share is halved


def margin(scores: Float[Tensor, "batch classes"], labels: Tensor) -> Float[Tensor, " batch"]:
    """Return the lowest score of the classes in an image minus the highest of all others: below 0 it is wrong.

    Attacks that lower it do not stop where a loss is flat, as the margin loss of S17 is exactly zero for images that
    are clearly right (Carlini and Wagner 2017, their f6, on scores).
    """
    present = torch.zeros_like(scores, dtype=torch.bool).scatter(1, labels.reshape(len(labels), -1), True)
    lowest = scores.masked_fill(~present, torch.inf).amin(dim=1)
    return lowest - scores.masked_fill(present, -torch.inf).amax(dim=1)


def target_margin(
    scores: Float[Tensor, "batch classes"], targets: Int[Tensor, " batch"], objects: int = 1
) -> Float[Tensor, " batch"]:
    """Return the score of a target class minus that of the last other class to be predicted: above 0 it is predicted.

    objects: how many classes are predicted for an image.
    """
    own = scores.gather(1, targets.unsqueeze(1))  # [B, 1]
    others = scores.scatter(1, targets.unsqueeze(1), -torch.inf).topk(objects, dim=1).values[:, -1:]
    return (own - others).squeeze(1)


def is_fooled(scores: Float[Tensor, "batch classes"], labels: Tensor) -> Bool[Tensor, " batch"]:
    """Tell which images are not predicted right, as `accuracy` counts them."""
    return ~is_correct(scores, labels)


def is_hit(
    scores: Float[Tensor, "batch classes"], targets: Int[Tensor, " batch"], objects: int = 1
) -> Bool[Tensor, " batch"]:
    """Tell for which images the target class is predicted, or one of those that are."""
    predicted = predicted_classes(scores, objects).reshape(len(scores), -1)
    return (predicted == targets.unsqueeze(1)).any(dim=1)


def input_gradient(
    objective: Objective, pixels: Pixels, numbers: Int[Tensor, " batch"]
) -> tuple[Pixels, Bool[Tensor, " batch"]]:
    """Return the gradient of the objective by pixels, 0 where it is not a number, and which images are at the goal."""
    with torch.enable_grad():
        pixels = pixels.detach().requires_grad_()
        value, reached = objective(pixels, numbers)
        (gradient,) = torch.autograd.grad(value.sum(), pixels)
    return gradient.nan_to_num(0.0, 0.0, 0.0), reached


def fgsm(pixels: Pixels, gradient: Pixels, eps: float) -> Pixels:
    """Move every pixel by eps along the sign of the gradient (Goodfellow, Shlens, Szegedy 2015)."""
    return (pixels + eps * gradient.sign()).clamp(0, 1)


def ascend(
    objective: Objective,
    pixels: Pixels,
    eps: float,
    *,
    steps: int,
    start: Pixels | None = None,
    stop: bool = True,
) -> Pixels:
    """Take steps along the sign of the gradient and go back into the eps-ball and [0, 1] after each.

    From the images themselves this is BIM (Kurakin, Goodfellow, Bengio 2017), from random points of the ball PGD
    (Madry 2018). A step is 2.5 eps / steps long, as Madry's authors advise, so that it can reach the edge and move on.

    Args:
        objective: what shall rise.
        pixels: images in [0, 1], [B, C, H, W].
        eps: the largest change of a pixel.
        steps: how many.
        start: first points, in the ball.
        stop: leave an image as it is once it is at the goal.

    Returns:
        The changed images.
    """
    low, high = (pixels - eps).clamp_min(0), (pixels + eps).clamp_max(1)
    found = (pixels if start is None else start).clone()
    active = torch.arange(len(pixels), device=pixels.device)
    for _ in range(steps):
        gradient, reached = input_gradient(objective, found[active], active)
        if stop:
            active, gradient = active[~reached], gradient[~reached]
            if not len(active):
                break
        moved = found[active] + 2.5 * eps / steps * gradient.sign()
        found[active] = torch.minimum(torch.maximum(moved, low[active]), high[active])
    return found


def towards_grey(pixels: Pixels, eps: float) -> Pixels:
    """Move every pixel by up to eps towards 0.5. At eps 0.5 all images are one and the same, whatever the network."""
    return pixels + (0.5 - pixels).clamp(-eps, eps)


class Squares(NamedTuple):
    """What the square attack draws, for B images of C channels and Q queries.

    Attributes:
        stripes: -1 or 1, [B, C, 1, W]: the first change.
        places: in [0, 1), [Q, B, 2]: row and column of a square.
        signs: -1 or 1, [Q, B, C].
    """

    stripes: Tensor
    places: Tensor
    signs: Tensor

    @staticmethod
    def drawn(shape: tuple[int, int, int, int], queries: int, rng: torch.Generator) -> "Squares":
        """Draw for images of a shape (B, C, H, W)."""
        batch, channels, _, width = shape

        def coins(*size: int) -> Tensor:
            return torch.randint(0, 2, size, generator=rng).float().mul(2).sub(1)

        stripes, places = coins(batch, channels, 1, width), torch.rand(queries, batch, 2, generator=rng)
        return Squares(stripes, places, coins(queries, batch, channels))

    def of(self, numbers: Tensor) -> "Squares":
        """Return the draws of some images, on their device."""
        where = numbers.cpu()
        parts = (self.stripes[where], self.places[:, where], self.signs[:, where])
        return Squares(*(part.to(numbers.device) for part in parts))


@torch.no_grad()
def square_attack(objective: Objective, pixels: Pixels, eps: float, squares: Squares) -> Pixels:
    """Change squares of an image at random by eps and keep what raises the objective; no gradients.

    The square attack for L-infinity (Andriushchenko, Croce, Flammarion, Hein 2020), its schedule squeezed into the
    queries that there are. An image is left as it is once it is at the goal.

    Args:
        objective: what shall rise, by image.
        pixels: images in [0, 1], [B, C, H, W].
        eps: the largest change of a pixel.
        squares: drawn for these images.

    Returns:
        The changed images.
    """
    height, width = pixels.shape[2:]
    rows = torch.arange(height, device=pixels.device).view(1, 1, height, 1)
    columns = torch.arange(width, device=pixels.device).view(1, 1, 1, width)
    found = (pixels + eps * squares.stripes).clamp(0, 1)
    active = torch.arange(len(pixels), device=pixels.device)
    values, reached = objective(found, active)
    for query in range(len(squares.places)):
        values, active = values[~reached], active[~reached]
        if not len(active):
            break
        side = square_side(query, len(squares.places), height, width)
        room = torch.tensor([height - side + 1, width - side + 1], device=pixels.device)
        top, left = (squares.places[query, active] * room).long().view(-1, 2, 1, 1, 1).unbind(1)
        inside = (rows >= top) & (rows < top + side) & (columns >= left) & (columns < left + side)  # [b, 1, H, W]
        changed = (pixels[active] + eps * squares.signs[query, active][:, :, None, None]).clamp(0, 1)
        tried = torch.where(inside, changed, found[active])
        risen, reached = objective(tried, active)
        better = (risen > values) | reached
        found[active[better]] = tried[better]
        values = torch.where(better, risen, values)
    return found


def square_side(query: int, queries: int, height: int, width: int) -> int:
    """Return the side of the square that is tried at a query (the first is 0)."""
    halvings = sum(query * 10_000 / queries > after for after in HALVINGS)
    share = FIRST_SHARE * 0.5**halvings
    return min(max(round(math.sqrt(share * height * width)), 1), height, width)
