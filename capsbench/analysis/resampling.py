"""How sure an error is over test images: intervals that resample objects or digits, and McNemar's test.

Test images are seldom independent: smallNORB's 24,300 are 25 objects, affNIST's 320,000 are 10,000 digits 32 times, and
two pairs of MultiMNIST share a digit. Images of one object tend to be right or wrong together, so a binomial interval
over images is too short, on smallNORB several times. Here whole objects or digits are drawn with replacement.

These intervals are about other test items for the trainings at hand; what another training would give is what the t
intervals over seeds are about (capsbench.analysis.statistics).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, ndtr, stdtrit

from capsbench.errors import InputError
from capsbench.study.data_sets import Clusters

FEWEST = 10  # clusters for an interval
DRAWS = 4000
_AT_ONCE = 2_000_000  # pairs in a block of draws, 16 MB
PLURAL = {"object": "objects", "digit": "digits", None: "images"}

Right = np.ndarray | Sequence[np.ndarray]


@dataclass(frozen=True)
class Resampled:
    """An error, or a difference of two errors, in % of the test images.

    Attributes:
        estimate: over all images and runs.
        std_error: the standard deviation over the draws.
        low: lower end of the interval, within [0, 100] for an error; nan for fewer than ten clusters.
        high: its upper end.
        clusters: how many are drawn from: objects, digits, or images where these are independent.
        images: how many each run was tested on.
    """

    estimate: float
    std_error: float
    low: float
    high: float
    clusters: int
    images: int


@dataclass(frozen=True)
class McNemar:
    """McNemar's exact test of two runs on the same images: how many only one of them gets right, and p, two-sided."""

    only_first: int
    only_second: int
    p: float


def cluster_interval(
    right: Right, clusters: np.ndarray | None, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> Resampled:
    """Return the error of a cell, with an interval that resamples clusters of test images.

    Each draw takes as many clusters as there are, with replacement, and all images of each; its error is the share of
    wrong images among them, with the runs averaged. The ends are percentiles of the draws, further out than those of
    `level` by what a t interval over so many clusters would be wider than a normal one ("expanded percentile",
    Hesterberg 2015, The American Statistician 69(4)): percentiles alone are too close with 25 clusters.

    For pairs of digits a pair counts as often as its first digit was drawn times as often as its second was, both from
    one draw of all digits, so that pairs that share a digit in either place come and go together (the pigeonhole
    bootstrap, Owen 2007; for pairs from one pool of units Davezies, D'Haultfoeuille and Guyonvarch 2021). It errs on
    the long side.

    Args:
        right: whether each run got each image right, bool [N], or one [N] for each of the cell's runs.
        clusters: which cluster each image belongs to, int [N]; [N, 2] for pairs; None where images are independent.
        level: of the interval.
        draws: how many.
        seed: of the draws.

    Raises:
        ValueError: there are no images or no runs, or the numbers of images differ.
    """
    wrong, runs = times_wrong(right)
    return resample_all(wrong[np.newaxis], [runs], clusters, level, draws, seed)[0]


def cluster_difference(
    first: Right, second: Right, clusters: np.ndarray | None, level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> Resampled:
    """Return the error of one variant minus that of another, paired over images and seeds.

    Args:
        first: whether each run of the first got each image right, as for `cluster_interval`.
        second: the same of the second, for the same images and the same seeds in the same order.
        clusters: see `cluster_interval`.
        level: see `cluster_interval`.
        draws: see `cluster_interval`.
        seed: see `cluster_interval`.

    Raises:
        ValueError: as for `cluster_interval`, or the two have different numbers of runs or images.
    """
    (a, runs), (b, others) = times_wrong(first), times_wrong(second)
    if (runs, a.shape) != (others, b.shape):
        raise ValueError(f"{runs} runs on {len(a)} images, and {others} on {len(b)}: not paired")
    return resample_all((a - b)[np.newaxis], [runs], clusters, level, draws, seed)[0]


def mcnemar(first: np.ndarray, second: np.ndarray, clusters: Clusters | None) -> McNemar:
    """Test whether two runs are right equally often, by the images that only one of them gets right (exact binomial).

    Args:
        first: whether the first run got each image right, bool [N].
        second: the same of the second.
        clusters: of the data set, `DataSet.clusters`.

    Raises:
        InputError: test images of the data set are not independent.
        ValueError: the numbers of images differ.
    """
    if clusters is not None:
        raise InputError(
            f"McNemar's test takes test images as independent, and here several show one {clusters} and are right or "
            f"wrong together, which makes its p far too small; resample {PLURAL[clusters]} (cluster_difference)"
        )
    first, second = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"two runs on the same images are needed, not {first.shape} and {second.shape}")
    a, b = int((first & ~second).sum()), int((second & ~first).sum())
    p = 2 * float(bdtr(min(a, b), a + b, 0.5)) if a + b else 1.0
    return McNemar(a, b, min(1.0, p))


def resample_all(
    wrong: np.ndarray,
    runs: Sequence[int],
    clusters: np.ndarray | None,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[Resampled]:
    """Return what `cluster_interval` and `cluster_difference` return, for many cells and pairs of a data set at once.

    Args:
        wrong: how many runs of each cell got each image wrong, int [K, N]; for a pair, of the first less the second.
        runs: of each cell, or of either side of each pair, [K].
        clusters: see `cluster_interval`.
        level: see `cluster_interval`.
        draws: see `cluster_interval`.
        seed: see `cluster_interval`; every cell and pair sees the same draws of pairs of digits.

    Raises:
        ValueError: there are no images, or the numbers of images differ.
    """
    images = wrong.shape[1]
    ids = None if clusters is None else np.asarray(clusters)
    if not images or (ids is not None and (len(ids) != images or ids.ndim not in (1, 2))):
        raise ValueError(f"{images} images, but clusters of shape {None if ids is None else ids.shape}")
    count = images
    if ids is not None:
        names, flat = np.unique(ids, return_inverse=True)
        count, ids = len(names), flat.reshape(ids.shape)
    if ids is not None and ids.ndim == 2:
        shares = list(_by_two(wrong, ids, count, draws, seed))
    else:
        shares = [_by_one(row, ids, count, draws, seed) for row in wrong]
    tail = float(ndtr(math.sqrt(count / (count - 1)) * stdtrit(count - 1, (1 - level) / 2))) if count > 1 else 0.0
    found = []
    for row, number, share in zip(wrong, runs, shares, strict=True):
        errors = 100 * share / number
        ends = np.quantile(errors, [tail, 1 - tail]) if count >= FEWEST else (math.nan, math.nan)
        estimate = 100 * int(row.sum()) / (number * images)
        found.append(Resampled(estimate, float(errors.std()), float(ends[0]), float(ends[1]), count, images))
    return found


def times_wrong(right: Right) -> tuple[np.ndarray, int]:
    """Return how many runs got each image wrong, int [N], and how many runs there are.

    Raises:
        ValueError: there are no images or no runs, or the numbers of images differ.
    """
    runs = np.atleast_2d(np.asarray(right, dtype=bool))
    if runs.ndim != 2 or not runs.size:
        raise ValueError(f"right or wrong of each run and image is needed, not an array of shape {runs.shape}")
    wrong: np.ndarray = (~runs).sum(axis=0, dtype=np.int32)
    return wrong, len(runs)


# Draws are counts, and all sums below are of whole numbers, exact in any order; numpy promises that the numbers of a
# RandomState stay what they are. So a table that was committed comes out the same on other machines.


def _by_one(wrong: np.ndarray, ids: np.ndarray | None, count: int, draws: int, seed: int) -> np.ndarray:
    """Return the mean of each draw of `count` clusters, [draws]."""
    if ids is None:
        sums, often = np.unique(wrong, return_counts=True)
        sizes = np.ones_like(sums)
    else:
        both = np.stack([np.bincount(ids, wrong, count), np.bincount(ids, minlength=count)], axis=1)
        # clusters that are alike need not be told apart: few numbers are drawn, however many images there are
        alike, often = np.unique(np.rint(both).astype(np.int64), axis=0, return_counts=True)
        sums, sizes = alike.T
    times = np.random.RandomState(seed).multinomial(count, often / count, size=draws)  # [draws, kinds]
    means: np.ndarray = (times @ sums) / (times @ sizes)
    return means


def _by_two(wrong: np.ndarray, ids: np.ndarray, count: int, draws: int, seed: int) -> np.ndarray:
    """Return the mean of each draw of `count` clusters for each row, where items [N, 2] belong to two; [K, draws]."""
    rng, values, found = np.random.RandomState(seed), np.ascontiguousarray(wrong.T, dtype=float), []
    first, second = np.ascontiguousarray(ids.T)
    weights = np.empty((max(1, min(draws, _AT_ONCE // len(ids))), len(ids)))
    for start in range(0, draws, len(weights)):
        block = weights[: draws - start]
        for row in block:
            times = np.bincount((count * rng.random_sample(count)).astype(np.intp), minlength=count).astype(float)
            np.multiply(times[first], times[second], out=row)
        totals = block.sum(axis=1)
        drawn = totals > 0  # else the draw holds no pair
        found.append((block @ values)[drawn] / totals[drawn, np.newaxis])
    means: np.ndarray = np.concatenate(found).T
    return means
