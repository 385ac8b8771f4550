"""What is measured while a network trains: accuracy, lengths of capsules, entropy of couplings, finiteness."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from capsbench.data.tasks.task import Task
from capsbench.models.output import Network, predict, predicted_classes

EVALUATION_BATCH = 500


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


def coupling_entropy(couplings: Tensor) -> float:
    """Return the mean entropy of the couplings [B, I, J] of a child, over log J: 1 is uniform, 0 is one parent."""
    entropy = -torch.special.xlogy(couplings.detach(), couplings.detach()).sum(dim=2).mean()
    return float(entropy / math.log(couplings.shape[2]))


def correct_and_lengths(scores: Tensor, labels: Tensor) -> Tensor:
    """Return sums over images [3]: correct predictions, mean score of the right classes and of the wrong ones."""
    present = labels.reshape(len(labels), -1)  # [B, S], S = 1 but for pairs
    objects = present.shape[1]
    right_scores = scores.gather(1, present).sum(dim=1)
    wrong_score = (scores.sum(dim=1) - right_scores) / (scores.shape[1] - objects)
    correct = is_correct(scores, labels).to(scores.dtype)
    return torch.stack([correct.sum(), right_scores.sum() / objects, wrong_score.sum()])


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
    for batch in task.eval_batches(EVALUATION_BATCH):
        output = predict(model, batch.images, objects)
        loss += float(sum(model.loss(output, batch.targets, batch.labels).values())) * len(batch.labels)
        correct += int(is_correct(output.scores, batch.labels).sum())
    return {"loss": loss / len(task.labels), "accuracy": correct / len(task.labels)}
