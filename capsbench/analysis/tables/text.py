"""Numbers as people read them in a table."""

import math
import re
from collections.abc import Mapping

from capsbench.analysis.cells import Cell

MISSING = "-"
PRECISIONS = {"bfloat16": "with convolutions in bfloat16", "tf32": "in TF32"}  # of training, beside float32


def precision_lines(precisions: Mapping[str, str]) -> list[str]:
    """Return a line per precision other than float32 that networks were trained in, "bfloat16" or "tf32" by name."""
    lines = []
    for precision, said in PRECISIONS.items():
        names = [name for name, its in precisions.items() if its == precision]
        if names:
            alike = len(names) == len(precisions) > 1
            lines.append(f"All were trained {said}." if alike else f"Trained {said}: {', '.join(names)}.")
    return lines


def with_minus_signs(text: str) -> str:
    """Return a text in which the hyphens before numbers are minus signs; those within words and ranges stay."""
    return re.sub(r"(?<![\w.\-])-(?=[\d.]*\d)", "−", text)


def error_text(cell: Cell) -> str:
    """Return mean ± standard deviation of the test error, or what became of a cell without any."""
    if not cell.errors:
        return "failed" if cell.failed else "diverged" if cell.diverged else MISSING
    return mean_text(cell.summary.mean, cell.summary.std)


def mean_text(mean: float, std: float = math.nan) -> str:
    """Return "1.25 ± 0.35"; without the second part where there is no spread, "-" where there is no mean."""
    if math.isnan(mean):
        return MISSING
    return f"{mean:.2f}" + ("" if math.isnan(std) else f" ± {std:.2f}")


def interval_text(low: float, high: float) -> str:
    """Return "[0.10, 0.30]", or "-" where there is no interval."""
    return MISSING if math.isnan(low) else f"[{low:.2f}, {high:.2f}]"


def count_text(cell: Cell) -> str:
    """Return how many runs have a result, of the planned ones, and what became of the others."""
    text = f"{len(cell.errors)} of {cell.planned}"
    for kind in ("diverged", "failed"):
        if number := getattr(cell, kind):
            text += f", {number} {kind}"
    return text + (f", {cell.stuck} stuck at chance" if cell.stuck else "")


def number_text(value: float, form: str) -> str:
    """Return a number in a format, or "-" for nan."""
    return MISSING if math.isnan(value) else format(value, form)


def probability_text(value: float) -> str:
    """Return a probability with two decimals, "<0.01" or ">0.99" where these would hide it, or "-" for nan."""
    if math.isnan(value):
        return MISSING
    return ">0.99" if value > 0.99 else "<0.01" if value < 0.01 else f"{value:.2f}"


def duration_text(seconds: float) -> str:
    """Return "2 h 1 min", "1 min 30 s", "12 s", or "-"."""
    if math.isnan(seconds):
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
