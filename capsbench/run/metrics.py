"""What is measured while a network trains: accuracy, lengths of capsules, entropy of couplings, finiteness."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from capsbench.data.tasks.stereo import class_shares
from capsbench.data.tasks.task import Task
from capsbench.models.output import Network, predict, predicted_classes


class Diverged(Exception):
    """The loss or the gradient is no longer finite; carries the step and the parts."""

    def __init__(self, step: int, parts: dict[str, float]):
        super().__init__(f"step {step}: " + ", ".join(f"{k} {v:g}" for k, v in parts.items()))
        self.step, self.parts = step, parts


def check_finite(history: Sequence[Tensor], names: Sequence[str], last_step: int) -> None:
    """Raise Diverged for the first step whose values, one tensor per step, are not all finite."""
    values = torch.stack(list(history))
    finite = values.isfinite().all(dim=1).tolist()
    if not all(finite):
        first = finite.index(False)
        raise Diverged(last_step - len(history) + first + 1, dict(zip(names, values[first].tolist(), strict=True)))


def check_end(model: Network, validation_loss: float | None, step: int) -> None:
    """Raise Diverged where the last step of an epoch left weights, or a validation loss, that are not finite."""
    whole = torch.stack([parameter.detach().isfinite().all() for parameter in model.parameters()]).all()
    if not whole:
        raise Diverged(step, {"weights": math.nan})
    if validation_loss is not None and not math.isfinite(validation_loss):
        raise Diverged(step, {"validation_loss": validation_loss})


def coupling_entropy(couplings: Tensor) -> float:
    """Return the mean entropy of the couplings [B, I, J] of a child, over log J: 1 is uniform, 0 is one parent.

    That holds where they add up to one: leaky routing, part of which goes to none of the J, is below 1 when uniform.
    """
    entropy = -torch.special.xlogy(couplings.detach(), couplings.detach()).sum(dim=2).mean()
    return float(entropy / math.log(couplings.shape[2]))


def sums_over_images(scores: Tensor, activations: Tensor, labels: Tensor) -> Tensor:
    """Return sums over images [4] of what training is measured by, from scores and activations [B, K].

    Images whose classes are all predicted; shares of the classes of an image that are predicted; mean activation of
    the right classes, and of the wrong ones.
    """
    present = labels.reshape(len(labels), -1)  # [B, S], S = 1 but for pairs
    objects = present.shape[1]
    predicted = predicted_classes(scores, objects).reshape(len(labels), -1)
    found = (present.unsqueeze(2) == predicted.unsqueeze(1)).any(dim=2).to(activations.dtype)  # [B, S]
    right = activations.gather(1, present).sum(dim=1)
    wrong = (activations.sum(dim=1) - right) / (activations.shape[1] - objects)
    return torch.stack([found.amin(dim=1).sum(), found.mean(dim=1).sum(), right.sum() / objects, wrong.sum()])


def is_correct(scores: Tensor, labels: Tensor) -> Tensor:
    """Tell for each image whether all its classes are predicted: scores [B, K] -> bool [B]."""
    if labels.ndim == 1:
        return predicted_classes(scores) == labels
    return (predicted_classes(scores, labels.shape[1]) == labels).all(dim=1)


@torch.no_grad()
def validate(model: Network, task: Task | None, objects: int) -> dict[str, float | None]:
    """Return loss and accuracy on all evaluation images of a task; None where there is no task."""
    if task is None:
        return {"loss": None, "accuracy": None}
    model.eval()
    loss, correct = 0.0, 0
    for batch in task.eval_batches():
        output = predict(model, batch.images, objects)
        loss += float(sum(model.loss(output, batch.targets, batch.labels).values())) * len(batch.labels)
        correct += int(is_correct(output.scores, batch.labels).sum())
    return {"loss": loss / len(task.labels), "accuracy": correct / len(task.labels)}


@torch.no_grad()
def classification_error(model: Network, task: Task) -> float:
    """Return the error in % on all evaluation images of a task with one object each, as `evaluate` counts it."""
    model.eval()
    scores = torch.zeros(())
    for view in range(task.views):
        found = []
        for batch in task.eval_batches(view=view):
            output = predict(model, batch.images)
            found.append(output.scores if task.views == 1 else class_shares(output.scores, output.activations))
        scores = scores.to(found[0]) + torch.cat(found) / task.views
    return 100 * int((~is_correct(scores, task.labels)).sum()) / len(task.labels)


def chance(labels: np.ndarray, objects: int, classes: int) -> float:
    """Return the share that guessing finds: of one class in an image the most frequent one, of several any S of K.

    labels: int [N], of the images or of the objects that images are made of.
    """
    return objects / classes if objects > 1 else float(np.bincount(labels).max() / len(labels))


def never_left_chance(accuracies: Sequence[float], images: Sequence[int], guessed: float) -> bool:
    """Tell whether a training never learnt: in no epoch was it better than guessing.

    Better is by more than 5 standard errors of the share `guessed`, over the images of the epoch, and by more than
    0.02.

    Args:
        accuracies: on the training images, by epoch; for several objects in an image the share that was found.
        images: shown in each epoch.
        guessed: see `chance`.
    """
    margins = [max(5 * math.sqrt(guessed * (1 - guessed) / shown), 0.02) for shown in images]
    return bool(accuracies) and all(a <= guessed + m for a, m in zip(accuracies, margins, strict=True))
