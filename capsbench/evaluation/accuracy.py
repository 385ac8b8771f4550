"""Classification error on the whole test set."""

from typing import Any

import torch

from capsbench.evaluation.context import Context
from capsbench.evaluation.predictions import Predictions
from capsbench.models import predicted_classes
from capsbench.registry import PROTOCOLS


@PROTOCOLS.register("accuracy", split="test", scores_alone=True)
def accuracy(context: Context) -> dict[str, Any]:
    """Count the errors on the test set, see `count_errors`."""
    return count_errors(context.predictions())


@PROTOCOLS.register("familiar", split="familiar", scores_alone=True)
def familiar(context: Context) -> dict[str, Any]:
    """Count the errors on the test under the conditions of training, see `count_errors`."""
    return count_errors(context.predictions("familiar"))


def count_errors(predictions: Predictions) -> dict[str, Any]:
    """Return error and accuracy in %, counted over all images at once, and the error of each class in %.

    For pairs of digits, `error` is the pair-exact error, also given under that name: a pair is wrong unless both its
    digits are right (S17). The per-digit error, the share of digits that were missed, is given as well; papers that
    report the one cannot be compared with papers that report the other.
    """
    scores, labels = predictions.scores, predictions.labels
    if labels.ndim == 1:
        wrong = predicted_classes(scores) != labels
        by_class = {
            str(int(value)): round(100 * float(wrong[labels == value].double().mean()), 4) for value in labels.unique()
        }
        return _counted(wrong) | {"error_by_class": by_class}
    said = predicted_classes(scores, labels.shape[1])  # [N, S]
    missed = ~(labels.unsqueeze(2) == said.unsqueeze(1)).any(dim=2)  # [N, S]
    found = _counted(missed.any(dim=1))
    by_class = {
        str(int(value)): round(100 * float(missed[labels == value].double().mean()), 4) for value in labels.unique()
    }
    per_digit = 100 * int(missed.sum()) / missed.numel()
    return found | {"pair_exact_error": found["error"], "per_digit_error": per_digit, "error_by_class": by_class}


def _counted(wrong: torch.Tensor) -> dict[str, Any]:
    images, errors = len(wrong), int(wrong.sum())
    return {
        "status": "ok",
        "images": images,
        "errors": errors,
        "error": 100 * errors / images,
        "accuracy": 100 * (images - errors) / images,
    }
