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
_PLURAL = {"object": "objects", "digit": "digits"}

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
    wrong = 100 * (1 - _averaged(right))
    return _resample(wrong, clusters, (level, draws, seed))


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
    a, b = (np.atleast_2d(np.asarray(each, dtype=bool)) for each in (first, second))
    if a.shape != b.shape:
        raise ValueError(f"{a.shape[0]} runs on {a.shape[1]} images, and {b.shape[0]} on {b.shape[1]}: not paired")
    return _resample(100 * (_averaged(b) - _averaged(a)), clusters, (level, draws, seed))


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
            f"wrong together, which makes its p far too small; resample {_PLURAL[clusters]} (cluster_difference)"
        )
    first, second = np.asarray(first, dtype=bool), np.asarray(second, dtype=bool)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"two runs on the same images are needed, not {first.shape} and {second.shape}")
    a, b = int((first & ~second).sum()), int((second & ~first).sum())
    p = 2 * float(bdtr(min(a, b), a + b, 0.5)) if a + b else 1.0
    return McNemar(a, b, min(1.0, p))


def _averaged(right: Right) -> np.ndarray:
    """Return the share of runs that got each image right, float64 [N]."""
    runs = np.atleast_2d(np.asarray(right, dtype=bool))
    if runs.ndim != 2 or not runs.size:
        raise ValueError(f"right or wrong of each run and image is needed, not an array of shape {runs.shape}")
    share: np.ndarray = runs.mean(axis=0)
    return share


def _resample(values: np.ndarray, clusters: np.ndarray | None, how: tuple[float, int, int]) -> Resampled:
    """Resample the mean of `values` [N] by clusters; how: level, draws, seed."""
    level, draws, seed = how
    ids = np.arange(len(values)) if clusters is None else np.asarray(clusters)
    if len(ids) != len(values) or ids.ndim not in (1, 2):
        raise ValueError(f"{len(values)} images, but clusters of shape {ids.shape}")
    names, flat = np.unique(ids, return_inverse=True)
    count, numbered, rng = len(names), flat.reshape(ids.shape), np.random.default_rng(seed)
    means = (_by_one if ids.ndim == 1 else _by_two)(values, numbered, count, draws, rng)
    low = high = math.nan
    if count >= FEWEST:
        tail = float(ndtr(math.sqrt(count / (count - 1)) * stdtrit(count - 1, (1 - level) / 2)))
        low, high = (float(end) for end in np.quantile(means, [tail, 1 - tail]))
    return Resampled(float(values.mean()), float(means.std()), low, high, count, len(values))


def _by_one(values: np.ndarray, ids: np.ndarray, count: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return the mean of each draw of `count` clusters, [draws]."""
    sums, sizes = np.bincount(ids, values, count), np.bincount(ids, minlength=count)
    # clusters that are alike need not be told apart: few numbers are drawn, however many images there are
    alike, often = np.unique(np.stack([sums, sizes], axis=1), axis=0, return_counts=True)
    times = rng.multinomial(count, often / count, size=draws)  # [draws, kinds]
    means: np.ndarray = (times @ alike[:, 0]) / (times @ alike[:, 1])
    return means


def _by_two(values: np.ndarray, ids: np.ndarray, count: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """Return the mean of each draw of `count` clusters, where items [N, 2] belong to two of them; [draws] at most."""
    found = []
    for _ in range(draws):
        times = np.bincount(rng.integers(count, size=count), minlength=count)
        weights = times[ids[:, 0]] * times[ids[:, 1]]
        if total := int(weights.sum()):  # else the draw holds no pair
            found.append(float(weights @ values) / total)
    return np.array(found)
