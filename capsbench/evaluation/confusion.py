"""Which classes a network takes for which, on the whole test set."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from capsbench.evaluation.context import Context
from capsbench.losses import Labels
from capsbench.models import predicted_classes
from capsbench.registry import PROTOCOLS

Matrix = Float[Tensor, "classes classes"]


@PROTOCOLS.register(
    "confusion",
    split="test",
    scores_alone=True,
    draws="own",
    shows={
        "most_confused_share": "most confused pair (% of errors)",
        "worst_class_error": "error of the worst class (%)",
        "never_predicted": "classes never predicted",
    },
)
def confusion(context: Context) -> dict[str, Any]:
    """Count predicted classes by true class, see `confusion_matrix`, and name the most confused pair.

    `most_confused_share` is the share of all errors that one true class taken for one other makes up; without errors
    it is 0 and `most_confused` is None. A class that is never predicted is the mark of a collapse.
    """
    predictions = context.predictions()
    matrix = confusion_matrix(predictions.scores, predictions.labels)
    return {"status": "ok"} | summary_of(matrix, context.run.data.facts.classes)


def confusion_matrix(scores: Float[Tensor, "images classes"], labels: Labels) -> Matrix:
    """Count predictions: entry (i, j) is how many images of class i were taken for class j.

    In a pair of digits those that were found count on the diagonal. One digit that was missed was taken for the one
    that was said in its place. Where both were missed, which stands for which is not known, and each of the four
    combinations counts a half. The rows then add up to the digits of each class, and all that is beside the diagonal
    to the digits that were missed.

    Args:
        scores: [N, K].
        labels: int64 [N], or [N, 2] for pairs.

    Returns:
        Counts float64 [K, K]: rows are the true classes, columns the predicted ones.
    """
    classes = scores.shape[1]
    if labels.ndim == 1:
        places = labels * classes + predicted_classes(scores)  # [N]
        return places.bincount(minlength=classes**2).double().view(classes, classes)
    said = predicted_classes(scores, labels.shape[1])  # [N, S]
    present, claimed = (
        torch.zeros(scores.shape, dtype=torch.float64, device=scores.device).scatter_(1, chosen, 1.0)
        for chosen in (labels, said)
    )  # [N, K]
    found, missed, false = present * claimed, present * (1 - claimed), claimed * (1 - present)
    each = missed.sum(dim=1, keepdim=True).clamp_min(1)  # as many are said falsely as are missed
    return torch.diag(found.sum(dim=0)) + (missed / each).T @ false


def summary_of(matrix: Matrix, classes: tuple[str, ...]) -> dict[str, Any]:
    """Return the matrix as nested lists, the names of its classes [K], and what stands out in it."""
    total, right = matrix.sum(dim=1), matrix.diagonal()
    beside = matrix - torch.diag(right)
    errors, worst = float(beside.sum()), int(beside.argmax())
    true, said = divmod(worst, len(classes))
    shown = total > 0
    by_class = 100 * (1 - right[shown] / total[shown])
    return {
        "most_confused": f"{classes[true]} taken for {classes[said]}" if errors else None,
        "most_confused_share": 100 * float(beside[true, said]) / errors if errors else 0.0,
        "worst_class_error": float(by_class.max()),
        "never_predicted": int((matrix.sum(dim=0) == 0).sum()),
        "classes": list(classes),
        "matrix": [[int(count) if count == int(count) else count for count in row] for row in matrix.tolist()],
    }
