"""What protocols return."""

from collections.abc import Sequence
from typing import Any


def not_applicable(reason: str) -> dict[str, Any]:
    """Return the result of a protocol that has nothing to measure on a run; reason: why, in one line."""
    return {"status": "not applicable", "reason": reason}


def curve(name: str, x: Sequence[float], y: Sequence[float], *, x_label: str, y_label: str) -> dict[str, Any]:
    """Return a curve, which the plot of a protocol draws with those of other runs in one panel per `name`.

    Args:
        name: of the panel: what is swept.
        x: of the points, ascending.
        y: of the points.
        x_label: with the unit: "rotation (degrees)".
        y_label: with the unit: "error (%)".

    Raises:
        ValueError: x and y differ in length.
    """
    if len(x) != len(y):
        raise ValueError(f"curve '{name}': {len(x)} x for {len(y)} y")
    return {
        "name": name, "x": [float(value) for value in x], "y": [round(float(value), 6) for value in y],
        "x_label": x_label, "y_label": y_label,
    }  # fmt: skip
