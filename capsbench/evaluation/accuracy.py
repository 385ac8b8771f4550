"""Classification error on the whole test set."""

from typing import Any

from capsbench.evaluation.predictions import Predictions


def measure(predictions: Predictions) -> dict[str, Any]:
    """Return error and accuracy in %, counted over all images at once, and the error of each class in %."""
    wrong = predictions.scores.argmax(dim=1) != predictions.labels
    images, errors = len(wrong), int(wrong.sum())
    by_class = {
        str(int(value)): round(100 * float(wrong[predictions.labels == value].double().mean()), 4)
        for value in predictions.labels.unique()
    }
    return {
        "status": "ok",
        "images": images,
        "errors": errors,
        "error": 100 * errors / images,
        "accuracy": 100 * (images - errors) / images,
        "error_by_class": by_class,
    }
