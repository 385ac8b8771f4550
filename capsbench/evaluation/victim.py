"""A trained network as attacks see it, and what they do to it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from capsbench.data.tasks.stereo import class_shares
from capsbench.data.tasks.task import Task
from capsbench.evaluation.attacks import (
    Objective,
    Squares,
    ascend,
    fgsm,
    input_gradient,
    is_fooled,
    is_hit,
    margin,
    square_attack,
    target_margin,
    towards_grey,
)
from capsbench.evaluation.chosen import as_seen, whole_images
from capsbench.models import Network

# numbers of images in a batch [b], eps -> on which of them it succeeds, bool [b]
Attack = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Draws:
    """What is drawn for N images, the same for all networks.

    Attributes:
        noise: random points of the cube [-1, 1], one for each restart: [R, N, C, H, W].
        squares: of the square attack.
        targets: for each image a class that is not in it, int64 [N].
    """

    noise: Tensor
    squares: Squares
    targets: Tensor

    @staticmethod
    def drawn(pixels: Tensor, labels: Tensor, classes: int, repeats: tuple[int, int], rng: torch.Generator) -> "Draws":
        """Draw for images [N, C, H, W] with labels [N] or [N, S]; repeats: restarts and queries."""
        batch, channels, height, width = pixels.shape
        restarts, queries = repeats
        other = torch.rand(batch, classes, generator=rng).scatter(1, labels.cpu().reshape(batch, -1), -1.0)
        noise = torch.rand(restarts, batch, channels, height, width, generator=rng).mul(2).sub(1)
        return Draws(noise, Squares.drawn((batch, channels, height, width), queries, rng), other.argmax(dim=1))

    def of(self, numbers: Tensor) -> "Draws":
        """Return the draws of some images, on their device."""
        noise, targets = (
            part.to(numbers.device) for part in (self.noise[:, numbers.cpu()], self.targets[numbers.cpu()])
        )
        return Draws(noise, self.squares.of(numbers), targets)


@dataclass(frozen=True)
class Victim:
    """A network and the images that it is attacked on.

    Its objectives take changed pixels of some of the images, and the numbers of these, see `attacks.Objective`.

    Attributes:
        model: the network, in evaluation mode.
        task: shows it the images.
        pixels: the images in [0, 1], [B, C, H, W].
        labels: of the images, int64 [B] or [B, S].
        targets: classes that targeted attacks want, int64 [B].
    """

    model: Network
    task: Task
    pixels: Tensor
    labels: Tensor
    targets: Tensor

    @property
    def all(self) -> Tensor:
        """Return the numbers of all images."""
        return torch.arange(len(self.pixels), device=self.pixels.device)

    @property
    def objects(self) -> int:
        """Return how many classes are predicted for an image."""
        return 1 if self.labels.ndim == 1 else self.labels.shape[1]

    def scores(self, pixels: Tensor) -> Tensor:
        """Return the scores [B, K] of changed images, as `collect_predictions` has them, with their gradients."""
        if self.task.views == 1:
            scores: Tensor = self.model(as_seen(self.task, pixels)).scores
            return scores
        outputs = [self.model(as_seen(self.task, pixels, view)) for view in range(self.task.views)]
        return torch.stack([class_shares(output.scores, output.activations) for output in outputs]).mean(dim=0)

    def class_loss(self, pixels: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of the classes that the network was trained by, summed, and which images are wrong.

        Where a test shows several crops, it is the loss of the central one.
        """
        labels = self.labels[numbers]
        # without reconstructions the loss is that of the classes
        output = self.model(as_seen(self.task, pixels))._replace(reconstructions=None)
        losses = self.model.loss(output, pixels, labels).values()
        scores = output.scores if self.task.views == 1 else self.scores(pixels)
        return len(labels) * torch.stack(list(losses)).sum(), is_fooled(scores, labels)

    def negative_margin(self, pixels: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far each image is wrong, and which are."""
        scores, labels = self.scores(pixels), self.labels[numbers]
        return -margin(scores, labels), is_fooled(scores, labels)

    def lead_of_target(self, pixels: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return by how much the target class leads on each image, and where it is predicted."""
        scores, targets = self.scores(pixels), self.targets[numbers]
        return target_margin(scores, targets, self.objects), is_hit(scores, targets, self.objects)

    @torch.no_grad()
    def fooled(self, pixels: Tensor, numbers: Tensor) -> Tensor:
        """Tell which of the changed images are wrong."""
        return is_fooled(self.scores(pixels), self.labels[numbers])

    @torch.no_grad()
    def hit(self, pixels: Tensor, numbers: Tensor) -> Tensor:
        """Tell which of the changed images are predicted as their target."""
        return is_hit(self.scores(pixels), self.targets[numbers], self.objects)


def victim_of(model: Network, task: Task, chosen: Tensor, targets: Tensor) -> Victim:
    """Return a network with the evaluation images `chosen` [B] of a task."""
    return Victim(model, task, whole_images(task, chosen), task.labels[chosen], targets)


def attacks_on(
    victim: Victim, gradients: dict[str, Tensor], steps: int, draws: Draws, source: Victim | None
) -> dict[str, Attack]:
    """Return all attacks by name.

    Args:
        victim: whom they attack.
        gradients: by name of the loss, of the images as they are, see `loss_gradients`.
        steps: of those that take several.
        draws: for the images of the victim.
        source: another network with the same images, with which those of `transfer` are made.
    """
    found: dict[str, Attack] = {}
    for ending, name in (("", "class_loss"), ("_margin", "margin")):
        objective = _objectives(victim)[name]
        found[f"fgsm{ending}"] = _one_step(victim, gradients[name])
        found[f"bim{ending}"] = _many_steps(victim, objective, victim.fooled, steps)
        found[f"pgd{ending}"] = _many_steps(victim, objective, victim.fooled, steps, draws.noise)
    found["targeted"] = _many_steps(victim, victim.lead_of_target, victim.hit, steps)
    found["grey"] = lambda numbers, eps: victim.fooled(towards_grey(victim.pixels[numbers], eps), numbers)

    def square(numbers: Tensor, eps: float) -> Tensor:
        goal = _part(victim.negative_margin, numbers)
        return victim.fooled(square_attack(goal, victim.pixels[numbers], eps, draws.squares.of(numbers)), numbers)

    found["square"] = square
    if source is not None:
        found["transfer"] = _transferred(victim, source, steps)
    return found


def loss_gradients(victim: Victim) -> dict[str, Tensor]:
    """Return the gradients of both losses by the pixels of the images as they are, [B, C, H, W]."""
    return {
        name: input_gradient(objective, victim.pixels, victim.all)[0] for name, objective in _objectives(victim).items()
    }


def _objectives(victim: Victim) -> dict[str, Objective]:
    return {"class_loss": victim.class_loss, "margin": victim.negative_margin}


def _part(objective: Objective, numbers: Tensor) -> Objective:
    """Return an objective for some of the images, which are numbered anew."""
    return lambda pixels, new: objective(pixels, numbers[new])


def _one_step(victim: Victim, gradient: Tensor) -> Attack:
    return lambda numbers, eps: victim.fooled(fgsm(victim.pixels[numbers], gradient[numbers], eps), numbers)


def _many_steps(
    victim: Victim,
    objective: Objective,
    success: Callable[[Tensor, Tensor], Tensor],
    steps: int,
    noise: Tensor | None = None,
) -> Attack:
    """Return BIM, or PGD from the points that noise [R, B, C, H, W] gives, one after another where none succeeded."""

    def attack(numbers: Tensor, eps: float) -> Tensor:
        done = torch.zeros(len(numbers), dtype=torch.bool, device=numbers.device)
        for start in [None] if noise is None else noise:
            left = (~done).nonzero().flatten()
            if not len(left):
                break
            pixels, rest = victim.pixels[numbers[left]], numbers[left]
            point = None if start is None else (pixels + eps * start[rest]).clamp(0, 1)
            changed = ascend(_part(objective, rest), pixels, eps, steps=steps, start=point)
            done[left] = success(changed, rest)
        return done

    return attack


def _transferred(victim: Victim, source: Victim, steps: int) -> Attack:
    """Return the attack with images that BIM makes for another network, by its loss and by its margin."""

    def attack(numbers: Tensor, eps: float) -> Tensor:
        done = torch.zeros(len(numbers), dtype=torch.bool, device=numbers.device)
        for objective in _objectives(source).values():
            goal = _part(objective, numbers)
            changed = ascend(goal, source.pixels[numbers], eps, steps=steps, stop=False)
            done |= victim.fooled(changed, numbers)
        return done

    return attack
