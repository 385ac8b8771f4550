"""Statistics over the seeds of a cell: plain functions with known answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtr, stdtrit  # t and its quantile; scipy.stats has the same, after 1.5 s of imports

from capsbench.analysis.margins import TENTH

CONFIDENCE = 0.95
FEWEST = 3  # seeds or pairs for an interval: that of two is 12.7 standard errors wide either way
_EQUAL = 1e-9  # errors in %: a thousandth of the smallest step that a test set has, and far above rounding


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation (n - 1), half width of the 95 % t interval of the mean.

    nan where n is too small: below 1, 2 and 3.
    """

    n: int
    mean: float
    std: float
    half_width: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean; nan for fewer than three values."""
        return self.mean - self.half_width, self.mean + self.half_width

    @property
    def error_interval(self) -> tuple[float, float]:
        """The same for values that are errors in %: cut off at 0 and at 100."""
        low, high = self.interval
        return (low, high) if math.isnan(low) else (max(0.0, low), min(100.0, high))


def summarise(values: Sequence[float]) -> Summary:
    """Summarise the values of one cell, one per seed."""
    n = len(values)
    mean = math.fsum(values) / n if n else math.nan
    if n < 2:
        return Summary(n, mean, math.nan, math.nan)
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return Summary(n, mean, std, _quantile(n - 1) * std / math.sqrt(n) if n >= FEWEST else math.nan)


@dataclass(frozen=True)
class PairedSummary:
    """The differences between two methods over n pairs of runs, first minus second.

    std: of the differences. low, high: the 95 % t interval of the mean difference. p: of the paired t test, two-sided.
    better: the probability that in a fresh pair of runs the first has the lower value, see `summarise_pairs`. These
    are nan where there are fewer than three pairs, or where `identical` (all differences are 0) or `constant` (all
    differences are the same, and not 0): pairs without any spread say nothing of the next one.
    """

    n: int
    mean: float
    std: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    better: float = math.nan
    identical: bool = False
    constant: bool = False


def summarise_pairs(first: Sequence[float], second: Sequence[float]) -> PairedSummary:
    """Compare two methods by pairs of runs (values at equal seeds, in the same order).

    The difference of a fresh pair has the predictive distribution mean + std sqrt(1 + 1/n) t, with n - 1 degrees of
    freedom: it covers both the spread between pairs and what n pairs leave open about their mean. `better` is its
    probability of being below 0. For many pairs it tends to the share of pairs in which the first is lower, not to 1.

    Raises:
        ValueError: the two differ in length, or a value is not finite.
    """
    differences = [a - b for a, b in zip(first, second, strict=True)]
    if not all(map(math.isfinite, differences)):
        raise ValueError(f"values that are not finite cannot be compared: {list(first)}, {list(second)}")
    found = summarise(differences)
    n, mean, std = found.n, found.mean, found.std
    scale = _EQUAL * max(map(abs, [*first, *second, 1.0]))
    if n and max(map(abs, differences)) <= scale:
        return PairedSummary(n, 0.0, 0.0 if n > 1 else math.nan, identical=True)
    if n < FEWEST:
        return PairedSummary(n, mean, std)
    if max(differences) - min(differences) <= scale:
        return PairedSummary(n, mean, 0.0, constant=True)
    p = 2 * float(stdtr(n - 1, -abs(mean) / (std / math.sqrt(n))))
    better = float(stdtr(n - 1, -mean / (std * math.sqrt(1 + 1 / n))))
    return PairedSummary(n, mean, std, *found.interval, p, better)


def p_of_same(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the p value of "the mean of the first lies within a tenth of that of the second", by pairs of runs.

    The larger of two one-sided paired t tests: that the first is below 1.1 times, and above 0.9 times the second. The
    tenth is of the true mean, so that the error of the mean counts too. nan for fewer than three pairs, and where the
    values have no spread.

    Source: two one-sided tests are Schuirmann's, 1987; as a ratio of means, Sasabuchi 1988.
    """
    below = summarise([a - (1 + 1 / TENTH) * b for a, b in zip(first, second, strict=True)])
    above = summarise([(1 - 1 / TENTH) * b - a for a, b in zip(first, second, strict=True)])
    if below.n < FEWEST or not (below.std > _EQUAL and above.std > _EQUAL):
        return math.nan
    return max(float(stdtr(found.n - 1, found.mean / (found.std / math.sqrt(found.n)))) for found in (below, above))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p values of a family by Holm's method, so that it errs once in 5 % of families at most.

    nan stays nan and does not count: a contrast without a p value is no test that could be wrong.
    """
    order = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted = [math.nan] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - rank)))
        adjusted[place] = highest
    return adjusted


def _quantile(degrees: float, confidence: float = CONFIDENCE) -> float:
    """Return how many standard errors the half width of the t interval has."""
    return float(stdtrit(degrees, (1 + confidence) / 2))
