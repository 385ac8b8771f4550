"""What our runs say of a published value: same, better, worse, or why neither is said. See docs/tables.md.

One published run is one draw, and so it is compared with the spread of ours: taken as exact, a perfect reproduction
would be called different in 16 % of cases with three seeds, in 85 % with a hundred.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from scipy.special import stdtrit

from capsbench.analysis.published_values import Published
from capsbench.analysis.statistics import FEWEST, Summary, summarise

Word = Literal["same", "better", "worse", "undecided", "not comparable", "not run", "no published value"]

DECIDED = ("same", "better", "worse")  # of these words, those that a comparison came to
ENDED = 0.8  # share of the planned runs below which nothing is decided
MOST_SEEDS = 100  # beyond, "undecided" names no number of seeds
_UNKNOWN = "how many seeds would decide is not known"


@dataclass(frozen=True)
class Target:
    """A published error in %, with all that decides what counts as the same.

    rounding: half the last printed digit, points. margin: how far apart two errors are that count as the same, points,
    written down before the runs. std, n: over the paper's trials; None where the paper gives one run, or does not say.
    """

    error: float
    rounding: float
    margin: float
    std: float | None = None
    n: int | None = None

    @classmethod
    def of(cls, published: Published) -> Self:
        """Return what a published value is compared by."""
        return cls(published.error, published.rounding, published.margin, published.std, published.n)


@dataclass(frozen=True)
class Ends:
    """What became of the runs of a cell. errors: test errors in % of those that ended; missing: not run yet."""

    errors: Sequence[float]
    diverged: int = 0
    failed: int = 0
    missing: int = 0
    stuck: int = 0

    @property
    def planned(self) -> int:
        """All runs."""
        return len(self.errors) + self.diverged + self.failed + self.missing

    @property
    def lost(self) -> str:
        """Say which runs have no error: "1 of 3 diverged"; empty if all have one."""
        counts = {"diverged": self.diverged, "failed": self.failed, "not run yet": self.missing}
        return ", ".join(f"{count} of {self.planned} {word}" for word, count in counts.items() if count)


@dataclass(frozen=True)
class Verdict:
    """A word, and what it rests on.

    reason: why, in one line; empty where the numbers say it. difference: ours minus published, in points of error, with
    the 95 % interval low to high; nan where there is none. at_least: how far beyond the rounding of the published value
    that interval begins, for better and worse. seeds_needed: for undecided, how many seeds in all would decide if mean
    and spread stay as they are; None where no such number is known, for a reason that `reason` gives.
    """

    word: Word
    reason: str = ""
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    at_least: float = math.nan
    seeds_needed: int | None = None

    def __str__(self) -> str:
        """Return the word with the number that belongs to it; the reason belongs into a note."""
        if self.word in ("better", "worse") and not math.isnan(self.at_least):
            return f"{self.word} by at least {_points(self.at_least)}"
        if self.word == "undecided" and self.seeds_needed:
            return f"undecided: {self.seeds_needed} seeds would decide"
        return self.word


def judge(ends: Ends, target: Target, sampling_error: float = 0.0, chance: float = 100.0) -> Verdict:
    """Compare the runs of a cell with a published value.

    The interval of the difference: Welch's where the paper gives a standard deviation and the number of its trials;
    else the prediction interval for one more run of ours, with standard error s sqrt(1 + 1/n). same: the 90 % interval
    lies within the margin and the rounding (two one-sided tests at 5 %). Where all our errors are equal, the rounding
    takes the place of their spread. better, worse: the 95 % interval lies beyond
    the rounding. undecided: neither, or fewer than 80 % of the planned runs ended, or fewer than three, or some stayed
    at chance and the mean is not worse.

    Args:
        ends: our runs.
        target: the published value.
        sampling_error: standard error in points that comes from a test on fewer items than the paper's.
        chance: error in % of guessing.

    Raises:
        ValueError: an error is not a number from 0 to 100, or lies so far above chance that it must be an accuracy.
    """
    _check(ends.errors, chance)
    ours = summarise(ends.errors)
    if ours.std == 0:  # equal errors do not say that the next one is equal too
        ours = replace(ours, std=target.rounding)
    if ours.n == 0:
        return Verdict("undecided", _too_few(ends)) if ends.missing < ends.planned else Verdict("not run")
    found = Verdict("undecided", ends.lost, ours.mean - target.error)
    if ours.n >= FEWEST:
        low, high = _interval(ours, target, sampling_error, 0.95)
        found = replace(found, low=low, high=high)
    if ours.n < _enough(ends):
        return replace(found, reason=_too_few(ends))
    word = decide(ours, target, sampling_error)
    if ends.stuck:  # a mean over networks that learnt and others that did not
        reason = _and(ends.lost, f"{ends.stuck} of {ours.n} stuck at chance")
        if word != "worse":
            return replace(found, reason=f"{reason}: {_UNKNOWN}")
        found = replace(found, reason=reason)
    if word == "undecided":
        needed = _seeds_needed(ours, target, sampling_error)
        none = f"{MOST_SEEDS} seeds would not decide if mean and spread stay as they are"
        return replace(found, seeds_needed=needed, reason=found.reason if needed else _and(found.reason, none))
    beyond = max(low, -high) - target.rounding
    return replace(found, word=word, at_least=beyond if word in ("better", "worse") else math.nan)


def _enough(ends: Ends) -> int:
    """Return how many runs must have ended before anything is decided."""
    return max(FEWEST, math.ceil(ENDED * ends.planned - 1e-9))


def _too_few(ends: Ends) -> str:
    """Say which runs are lost, and how many more must end; or why that is not known."""
    n = len(ends.errors)
    needed = _enough(ends) - n
    if needed <= ends.missing + ends.failed:
        return f"{ends.lost}: at least {needed} more must end"
    if ends.diverged:
        return f"{ends.lost}: {_UNKNOWN}"
    few = f"{n} seed{'s' * (n != 1)} give{'s' * (n == 1)} no interval, {FEWEST} are the least"
    return _and(ends.lost, few)


def _and(first: str, second: str) -> str:
    return "; ".join(filter(None, (first, second)))


def _check(errors: Sequence[float], chance: float) -> None:
    for error in errors:
        if not 0 <= error <= 100:
            raise ValueError(f"an error in % lies from 0 to 100: {error}")
    if errors and min(errors) > (chance + 100) / 2:
        raise ValueError(
            f"an error of {min(errors):g} %, where guessing has {chance:g} %: an accuracy in the place of an error?"
        )


def _interval(ours: Summary, target: Target, sampling_error: float, confidence: float) -> tuple[float, float]:
    """Return the interval of ours minus published."""
    variance, degrees = ours.std**2 / ours.n, float(ours.n - 1)
    if target.std is not None and target.n is not None and target.n > 1:  # Welch
        theirs = target.std**2 / target.n
        if variance + theirs > 0:
            degrees = (variance + theirs) ** 2 / (variance**2 / (ours.n - 1) + theirs**2 / (target.n - 1))
        variance += theirs
    else:  # one draw; its spread is ours, or what the paper says of it where that is more
        variance += max(ours.std, target.std or 0.0) ** 2
    half_width = float(stdtrit(degrees, (1 + confidence) / 2)) * math.sqrt(variance + sampling_error**2)
    difference = ours.mean - target.error
    return difference - half_width, difference + half_width


def decide(
    ours: Summary, target: Target, sampling_error: float = 0.0
) -> Literal["same", "better", "worse", "undecided"]:
    """Return the word for a mean and a spread of three seeds or more; see `judge`."""
    low, high = _interval(ours, target, sampling_error, 0.90)
    widest = target.margin + target.rounding
    if low >= -widest and high <= widest:
        return "same"
    low, high = _interval(ours, target, sampling_error, 0.95)
    if low > target.rounding:
        return "worse"
    return "better" if high < -target.rounding else "undecided"


def _seeds_needed(ours: Summary, target: Target, sampling_error: float) -> int | None:
    """Return the smallest number of seeds that decides, if mean and spread stay as they are."""
    for n in range(ours.n + 1, MOST_SEEDS + 1):
        if decide(replace(ours, n=n), target, sampling_error) != "undecided":
            return n
    return None


def _points(value: float) -> str:
    """Write a lower bound, rounded down so that it stays one."""
    digits = 2
    while digits < 6 and value < 10**-digits:
        digits += 1
    return f"{math.floor(value * 10**digits + 1e-6) / 10**digits:.{digits}f}"
