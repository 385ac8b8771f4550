"""How well a decoder reconstructs the test images, masked by the predicted class."""

from typing import Any

from capsbench.evaluation.predictions import Predictions
from capsbench.registry import PROTOCOLS


@PROTOCOLS.register("reconstruction", split="test")
def reconstruction(predictions: Predictions) -> dict[str, Any]:
    """Return the squared error: the sum over an image (the scale of S17's loss) and the mean over pixels.

    For pairs both digits are reconstructed, and the sum is over both.
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
