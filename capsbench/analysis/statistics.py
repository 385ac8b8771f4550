"""Statistics over the seeds of a cell: plain functions with known answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit  # the quantile of t; scipy.stats has the same one, after 1.5 s of imports

CONFIDENCE = 0.95
# an interval wider than this share of the published value agrees with almost anything, and settles nothing
WIDEST_INTERVAL = 0.25


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation (n - 1), half width of the 95 % t interval of the mean; nan where n is too small."""

    n: int
    mean: float
    std: float
    half_width: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean."""
        return self.mean - self.half_width, self.mean + self.half_width


def summarise(values: Sequence[float]) -> Summary:
    """Summarise the values of one cell, one per seed."""
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    if n < 2:
        return Summary(n, mean, math.nan, math.nan)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return Summary(n, mean, std, _quantile(n - 1) * std / math.sqrt(n))


def verdict(ours: Summary, published: float, published_std: float | None, published_n: int | None) -> str:
    """Say in words whether a published mean was reproduced.

    reproduced: the published value lies in the 95 % interval of the difference (Welch's, where the paper gives a
    standard deviation and a number of trials; else the paper's value is taken as exact), and that interval is no
    wider, either way, than a quarter of the published value. missed: it lies outside. not comparable: fewer
    than two runs, or an interval so wide that it settles nothing.
    """
    if ours.n == 0:
        return "-"
    if ours.n == 1:
        return "not comparable: one run gives no interval"
    variance, degrees = ours.std**2 / ours.n, float(ours.n - 1)
    if published_std is not None and published_n is not None and published_n > 1:
        theirs = published_std**2 / published_n
        total = variance + theirs
        if total > 0:
            degrees = total**2 / (variance**2 / (ours.n - 1) + theirs**2 / (published_n - 1))
        variance = total
    half_width = _quantile(degrees) * math.sqrt(variance)
    difference = ours.mean - published
    if abs(difference) > half_width:
        size = format(abs(difference), ".2f" if abs(difference) >= 0.005 else ".1g")
        return f"missed: {'higher' if difference > 0 else 'lower'} by {size}"
    if half_width > WIDEST_INTERVAL * published:
        return f"not comparable: an interval of ±{half_width:.2f} settles nothing"
    return "reproduced"


def _quantile(degrees: float) -> float:
    """Return how many standard errors the half width of the t interval has."""
    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))
