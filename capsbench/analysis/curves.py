"""Learning curves of one cell as a small svg that stands in a page: a line per seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

_WIDTH, _HEIGHT = 340, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 24
_MOST_POINTS = 60  # per line: more cannot be told apart at this width
_LOG_FROM = 20.0  # ratio of the largest to the smallest error


@dataclass(frozen=True)
class Curves:
    """svg: markup. measured: on which images the errors were measured, "validation" or "training"."""

    svg: str
    measured: str


def curves_of(frame: pd.DataFrame | None, experiment: str, variant: str) -> Curves | None:
    """Draw the error by epoch of the seeds of a cell.

    Validation error where every seed has one in every epoch, else training error. The axis is logarithmic where errors
    differ by more than a factor of 20 and none is 0.

    Args:
        frame: from `learning_curves`, or None.
        experiment: that of the cell.
        variant: that of the cell.

    Returns:
        None where there is nothing to draw.
    """
    if frame is None or frame.empty:
        return None
    rows = frame[(frame["experiment"] == experiment) & (frame["variant"] == variant)]
    for measured in ("validation", "training"):
        column = {"validation": "validation_accuracy", "training": "train_accuracy"}[measured]
        if column in rows and len(rows) and rows[column].notna().all():
            lines = {
                int(str(seed)): [
                    (float(e), 100 * (1 - float(a))) for e, a in zip(own["epoch"], own[column], strict=True)
                ]
                for seed, own in rows.groupby("seed")
            }
            return Curves(_draw(lines, measured), measured)
    return None


def _draw(lines: Mapping[int, Sequence[tuple[float, float]]], measured: str) -> str:
    epochs = [epoch for line in lines.values() for epoch, _ in line]
    errors = [error for line in lines.values() for _, error in line]
    first, last, low, high = min(epochs), max(epochs), min(errors), max(errors)
    log = low > 0 and high / low > _LOG_FROM
    bottom, top = (math.log10(low), math.log10(high)) if log else (0.0, high or 1.0)

    def x(epoch: float) -> float:
        return _LEFT + (epoch - first) / ((last - first) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def y(error: float) -> float:
        value = math.log10(error) if log else error
        return _TOP + (top - value) / ((top - bottom) or 1) * (_HEIGHT - _TOP - _BOTTOM)

    floor = _HEIGHT - _BOTTOM
    parts = [
        f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">',
        f"<title>{measured} error in % by epoch, a line per seed{', logarithmic' if log else ''}</title>",
        f'<path class="axis" d="M{_LEFT} {_TOP}V{floor}H{_WIDTH - _RIGHT}"/>',
    ]
    for tick in _ticks(low if log else 0.0, high, log):
        parts.append(f'<path class="grid" d="M{_LEFT} {y(tick):.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.3g} %</text>')
    for epoch, anchor in {first: "start", last: "end"}.items():
        parts.append(f'<text x="{x(epoch):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">epoch {epoch:g}</text>')
    for seed, line in lines.items():
        points = " ".join(f"{x(epoch):.1f},{y(error):.1f}" for epoch, error in _thinned(line))
        parts.append(f'<polyline points="{points}"><title>seed {seed}</title></polyline>')
    return "".join([*parts, "</svg>"])


def _thinned(line: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Leave out points between the first and the last that are too close to see."""
    step = math.ceil(len(line) / _MOST_POINTS)
    return line if step == 1 else [*line[:-1:step], line[-1]]


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Return a few round numbers from low to high."""
    if log:
        every = [m * 10.0**power for power in range(-4, 3) for m in (1, 2, 5)]
        found = [tick for tick in every if low <= tick <= high]
        return found[:: math.ceil(len(found) / 4)] if found else [high]
    step = 10.0 ** math.floor(math.log10(high or 1.0))
    step = next(size for size in (step / 5, step / 2, step, 2 * step, 5 * step) if (high or 1.0) / size <= 4)
    return [step * k for k in range(int((high or 1.0) / step + 1e-9) + 1)]
