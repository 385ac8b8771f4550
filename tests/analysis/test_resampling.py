"""Intervals over test images: known answers, and what happens where images are not independent."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.linear_model import RidgeClassifier
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar

from capsbench.analysis.resampling import cluster_difference, cluster_interval, mcnemar, resample_all, times_wrong
from capsbench.data import read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.errors import InputError
from capsbench.study import Data

OBJECTS = np.repeat(np.arange(25), 162)  # toynorb's test with one lighting: 4,050 images of 25 objects


def binomial(right) -> float:
    """The standard error in % that images would have if they were independent."""
    share = np.mean(right)
    return 100 * math.sqrt(share * (1 - share) / np.size(right))


def test_images_of_an_object_that_are_all_alike_count_once():
    wrong = np.zeros(25, bool)
    wrong[:5] = True
    found = cluster_interval(~wrong[OBJECTS], OBJECTS, draws=20_000)
    expected = 100 * math.sqrt(0.2 * 0.8 / 25)  # 25 draws, not 4,050
    assert found.estimate == pytest.approx(20.0)
    assert found.std_error == pytest.approx(expected, rel=0.02)
    assert found.std_error / binomial(~wrong[OBJECTS]) == pytest.approx(math.sqrt(162), rel=0.02)
    assert (found.clusters, found.images) == (25, 4050)
    # 5 of 25 by the exact binomial test: 6.8 to 40.7; ends of draws of 25 objects lie 4 points apart
    exact = binomtest(5, 25).proportion_ci(method="exact")
    assert found.low == pytest.approx(100 * exact.low, abs=4)
    assert found.high == pytest.approx(100 * exact.high, abs=5)


def test_clusters_of_unequal_size_are_weighed_by_their_images():
    sizes = np.random.default_rng(0).integers(1, 40, 200)
    ids = np.repeat(np.arange(200), sizes)
    right = np.random.default_rng(1).random(200)[ids] > 0.3
    found = cluster_interval(right, ids)
    wrong = np.bincount(ids, ~right)
    residuals = wrong - (~right).mean() * sizes  # linearised ratio of two sums
    expected = 100 * math.sqrt((residuals**2).sum()) / sizes.sum()
    assert found.estimate == pytest.approx(100 * (~right).mean())
    assert found.std_error == pytest.approx(expected, rel=0.05)


def test_independent_images_have_the_binomial_error():
    right = np.random.default_rng(0).random(10_000) > 0.02
    found = cluster_interval(right, None)
    assert found.std_error == pytest.approx(binomial(right), rel=0.05)
    low, high = (100 * end for end in binomtest(int((~right).sum()), 10_000).proportion_ci(method="wilson"))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.05)
    assert found.clusters == found.images == 10_000


def test_an_interval_covers_the_truth_as_often_as_it_says():
    """Each object has an error of its own, 20 % on average; the interval is about objects like these."""
    rng, covered = np.random.default_rng(0), 0
    for trial in range(300):
        own = rng.beta(2, 8, 25)
        right = rng.random(len(OBJECTS)) > own[OBJECTS]
        found = cluster_interval(right, OBJECTS, draws=500, seed=trial)
        covered += found.low <= 20 <= found.high
    assert 0.92 <= covered / 300 <= 0.98


def test_an_interval_stays_within_0_and_100():
    right = np.ones(len(OBJECTS), bool)
    right[:3] = False
    found = cluster_interval(right, OBJECTS)
    assert 0 <= found.low < found.estimate < found.high <= 100
    perfect = cluster_interval(np.ones(500, bool), None)
    assert (perfect.estimate, perfect.low, perfect.high) == (0.0, 0.0, 0.0)


def test_no_interval_is_drawn_from_few_objects():
    found = cluster_interval([True, False] * 9, np.repeat(np.arange(9), 2))
    assert math.isnan(found.low) and math.isnan(found.high)
    assert found.estimate == 50.0


def test_runs_of_a_cell_are_averaged_over_images():
    runs = [np.arange(4050) % 10 != seed for seed in range(3)]
    found = cluster_interval(runs, OBJECTS)
    assert found.estimate == pytest.approx(10.0)
    assert found.images == 4050
    one = cluster_interval(runs[0], OBJECTS)
    assert found.std_error < 0.8 * one.std_error  # other images are wrong in each


def test_a_difference_is_paired_over_images_and_seeds():
    rng = np.random.default_rng(0)
    hard = rng.random(25) < 0.3  # objects that every run gets wrong half of the time
    first = [rng.random(4050) > 0.5 * hard[OBJECTS] for _ in range(3)]
    second = [run & (rng.random(4050) > 0.02) for run in first]
    found = cluster_difference(first, second, OBJECTS)
    expected = 100 * (np.mean(second) - np.mean(first))
    assert found.estimate == pytest.approx(expected)
    assert -3 < found.low < found.high < 0  # the first has the lower error
    assert cluster_difference(second, first, OBJECTS).estimate == pytest.approx(-expected)
    alone = cluster_interval(first, OBJECTS)
    assert found.std_error < alone.std_error / 10  # what both find hard drops out
    with pytest.raises(ValueError, match="not paired"):
        cluster_difference(first, second[:2], OBJECTS)


def test_what_seems_certain_over_images_is_open_over_objects():
    """One object flips from wrong to right: for McNemar 162 images, for the bootstrap 1 object of 25."""
    second = np.arange(25) > 5
    first = second.copy()
    first[[0, 1]], first[24] = True, False
    a, b = first[OBJECTS], second[OBJECTS]
    assert mcnemar(a, b, None).p < 1e-12
    found = cluster_difference(a, b, OBJECTS)
    assert found.low < 0 < found.high


def test_mcnemar_is_that_of_statsmodels():
    rng = np.random.default_rng(0)
    for share in (0.0, 0.01, 0.3):
        a = rng.random(2000) > 0.1
        b = np.where(rng.random(2000) < share, rng.random(2000) > 0.2, a)
        found = mcnemar(a, b, None)
        table = [[int((x & y).sum()) for y in (b, ~b)] for x in (a, ~a)]
        assert (found.only_first, found.only_second) == (table[0][1], table[1][0])
        assert found.p == pytest.approx(float(statsmodels_mcnemar(table, exact=True).pvalue))
    assert mcnemar(a, a, None).p == 1.0


@pytest.mark.parametrize(("kind", "words"), [("object", "resample objects"), ("digit", "resample digits")])
def test_mcnemar_is_refused_where_images_are_not_independent(kind, words):
    with pytest.raises(InputError, match=f"independent.*one {kind}.*{words}"):
        mcnemar(np.ones(4, bool), np.ones(4, bool), kind)


def test_pairs_depend_on_both_their_digits():
    """Pairs that show a bad digit in either place are wrong: the error is that of a draw of digits, counted twice."""
    rng = np.random.default_rng(0)
    digits = 400
    first = np.arange(4000) % digits
    second = (first + rng.integers(1, digits, 4000)) % digits
    pairs = np.stack([first, second], axis=1)
    bad = rng.random(digits) < 0.1
    right = ~(bad[first] | bad[second])
    found = cluster_interval(right, pairs, draws=2000)
    assert (found.clusters, found.images) == (400, 4000)
    # 1 - (1 - q)^2 has the slope 2 (1 - q) in the share q of bad digits, which has the error of `digits` draws
    q = bad.mean()
    expected = 100 * 2 * (1 - q) * math.sqrt(q * (1 - q) / digits)
    assert found.std_error == pytest.approx(expected, rel=0.15)
    one_way = cluster_interval(right, first)
    assert found.std_error > 1.4 * one_way.std_error > 1.4 * binomial(right)
    assert found.low < found.estimate < found.high


@pytest.mark.parametrize("columns", [1, 2], ids=["objects", "pairs of digits"])
def test_many_cells_at_once_are_what_each_is_alone(columns):
    rng = np.random.default_rng(0)
    ids = rng.integers(60, size=(3000, columns)).squeeze()
    cells = [[rng.random(3000) > error for _ in range(3)] for error in (0.1, 0.3)]
    (a, runs), (b, _) = (times_wrong(cell) for cell in cells)
    found = resample_all(np.stack([a, b, a - b]), [runs] * 3, ids, draws=500)
    alone = [cluster_interval(cell, ids, draws=500) for cell in cells]
    assert found == [*alone, cluster_difference(*cells, ids, draws=500)]
    assert found[2].low < found[2].estimate < found[2].high < 0


def test_draws_stay_what_they_are_so_that_committed_tables_can_be_rebuilt():
    right = np.arange(600) % 7 > 0
    one, two = np.arange(600) % 30, np.stack([np.arange(600) % 30, np.arange(600) // 20], axis=1)
    found = [cluster_interval(right, ids, draws=50) for ids in (None, one, two)]
    assert [(round(each.low, 6), round(each.high, 6)) for each in found] == [
        (11.806021, 17.166667),
        (13.666667, 14.833333),
        (12.061688, 18.015656),
    ]


def test_the_same_seed_draws_the_same():
    right = np.random.default_rng(0).random(4050) > 0.2
    assert cluster_interval(right, OBJECTS) == cluster_interval(right, OBJECTS)
    assert cluster_interval(right, OBJECTS, seed=1).std_error != cluster_interval(right, OBJECTS).std_error


@pytest.mark.parametrize(
    ("right", "clusters", "words"),
    [([], None, "needed"), ([[True], [True, False]], None, "inhomogeneous"), ([True] * 3, np.arange(4), "3 images")],
)
def test_what_does_not_fit_is_refused(right, clusters, words):
    with pytest.raises(ValueError, match=words):
        cluster_interval(right, clusters)


@pytest.mark.slow  # it renders the data set
def test_on_rendered_solids_the_error_by_objects_is_several_times_the_binomial_one():
    """Ridge regression on toynorb's pixels: 25 test objects say as little as some 80 independent images would."""
    options = CATALOGUE["toynorb"].options(lightings=1)
    train, test = (read_split(Data(name="toynorb", options=options), Path("nowhere"), s) for s in ("train", "test"))

    def pixels(raw):
        small = raw.images[:, :, 8:40, 8:40].reshape(-1, 2, 16, 2, 16, 2).mean(axis=(3, 5)).reshape(len(raw.labels), -1)
        return (small - small.mean(1, keepdims=True)) / small.std(1, keepdims=True)

    right = RidgeClassifier(alpha=100.0).fit(pixels(train), train.labels).predict(pixels(test)) == test.labels
    found = cluster_interval(right, 10 * test.labels + test.factors["instance"])
    assert (found.clusters, found.images) == (25, 4050)
    assert 6 <= found.std_error / binomial(right) <= 9
