"""How well a decoder gives the test images back, masked by the predicted class."""

from typing import Any

from capsbench.evaluation.predictions import Predictions


def measure(predictions: Predictions) -> dict[str, Any]:
    """Return the squared error: the sum over an image (the scale of S17's loss) and the mean over pixels.

    Of pairs both digits are given back, and the sum is over both.
    """
    if predictions.squared_errors is None:
        return {"status": "not applicable"}
    squared_error = float(predictions.squared_errors.double().mean())
    return {
        "status": "ok",
        "masked_by": "prediction",
        "squared_error": squared_error,
        "mean_squared_error": squared_error / predictions.pixels,
    }
