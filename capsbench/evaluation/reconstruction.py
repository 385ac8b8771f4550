"""How well a decoder reconstructs the test images, masked by the predicted class."""

from typing import Any

from capsbench.evaluation.context import Context
from capsbench.evaluation.result import not_applicable
from capsbench.registry import PROTOCOLS


@PROTOCOLS.register("reconstruction", split="test", scores_alone=True)
def reconstruction(context: Context) -> dict[str, Any]:
    """Return the squared error: the sum over an image (the scale of S17's loss) and the mean over pixels.

    For pairs both digits are reconstructed, and the sum is over both.
    """
    predictions = context.predictions()
    if predictions.squared_errors is None:
        return not_applicable("the network has no decoder")
    squared_error = float(predictions.squared_errors.double().mean())
    return {
        "status": "ok",
        "masked_by": "prediction",
        "squared_error": squared_error,
        "mean_squared_error": squared_error / predictions.pixels,
    }
