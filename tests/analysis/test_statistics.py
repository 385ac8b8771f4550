import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from capsbench.analysis.margins import margin_of
from capsbench.analysis.statistics import PairedSummary, Summary, holm, p_of_same, summarise, summarise_pairs

T_975_2 = 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))  # the quantile of t with 2 degrees of freedom, 4.3027


def test_summary_of_three_values():
    found = summarise([1, 2, 3])
    half_width = T_975_2 / math.sqrt(3)
    assert (found.n, found.mean, found.std) == (3, 2.0, 1.0)
    assert found.half_width == pytest.approx(half_width, rel=1e-9)
    assert found.interval == pytest.approx((2 - half_width, 2 + half_width))


def test_summary_of_equal_values_has_no_spread():
    assert summarise([0.1] * 10) == Summary(10, 0.1, 0.0, 0.0)


def test_summary_of_one_value_has_no_interval():
    found = summarise([0.25])
    assert (found.n, found.mean) == (1, 0.25)
    assert all(map(math.isnan, (found.std, found.half_width, *found.interval)))


def test_summary_of_nothing_is_not_a_number():
    found = summarise([])
    assert found.n == 0
    assert all(map(math.isnan, (found.mean, found.std, found.half_width)))


def test_summary_of_two_values_has_a_spread_and_no_interval():
    found = summarise([0.2, 0.4])
    assert found.std == pytest.approx(math.sqrt(0.02))
    assert all(map(math.isnan, (*found.interval, *found.error_interval)))


@pytest.mark.parametrize(("values", "outside"), [([0.01, 0.02, 0.30], 0), ([99.7, 99.9, 99.99], 1)])
def test_the_interval_of_an_error_stays_within_0_and_100(values, outside):
    found = summarise(values)
    low, high = found.error_interval
    assert found.interval[0] < 0 or found.interval[1] > 100
    assert (low, high)[outside] == (0, 100)[outside]
    assert (low, high)[1 - outside] == found.interval[1 - outside]


# Pairs


@pytest.mark.parametrize("n", [3, 5, 10, 40])
@pytest.mark.parametrize("shift", [0.0, 0.01, 0.3, -5.0])
def test_pairs_are_compared_as_by_scipys_paired_t_test(n, shift):
    draws = np.random.default_rng(n)
    second = draws.normal(10, 3, n)
    first = second + shift + draws.normal(0, 0.2, n)
    found = summarise_pairs(list(first), list(second))
    theirs = stats.ttest_rel(first, second)
    interval = theirs.confidence_interval(0.95)
    assert found.n == n
    assert found.p == pytest.approx(theirs.pvalue, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert found.mean == pytest.approx(np.mean(first - second), abs=1e-12)
    assert found.std == pytest.approx(np.std(first - second, ddof=1), abs=1e-12)


def test_better_is_the_probability_of_a_fresh_pair():
    """Differences -3, -2, -1: mean -2, std 1, and a new one is -2 + sqrt(1 + 1/3) t with 2 degrees of freedom."""
    found = summarise_pairs([1.0, 2.0, 3.0], [4.0, 4.0, 4.0])
    t = 2 / math.sqrt(4 / 3)
    assert found.better == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t**2)), abs=1e-12)  # of t with 2 degrees
    assert summarise_pairs([4.0, 4.0, 4.0], [1.0, 2.0, 3.0]).better == pytest.approx(1 - found.better, abs=1e-12)


@pytest.mark.parametrize("n", [3, 10])
def test_better_holds_what_it_promises(n):
    """A fresh difference lies below what it lies below with probability p in a share p of studies, for every p."""
    draws = np.random.default_rng(n).normal(-0.5, 2.0, (4000, n + 1))
    below = [summarise_pairs(list(row[:n]), [row[n]] * n).better for row in draws]
    for p in (0.05, 0.3, 0.5, 0.9):
        assert np.mean(np.array(below) < p) == pytest.approx(p, abs=0.02)


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_pairs_give_no_interval_and_no_p(n):
    found = summarise_pairs([1.0, 3.0][:n], [0.5, 0.9][:n])
    assert found.n == n
    assert found.mean == pytest.approx([0.5, 1.3][n - 1])
    assert all(map(math.isnan, (found.low, found.high, found.p, found.better)))


def test_no_pair_has_no_mean():
    found = summarise_pairs([], [])
    assert found.n == 0
    assert not found.identical
    assert all(map(math.isnan, (found.mean, found.low, found.p)))


def test_equal_errors_in_all_seeds_are_identical_and_have_no_p():
    found = summarise_pairs([1.53, 1.67, 1.57], [1.53, 1.67, 1.57])
    assert found == PairedSummary(3, 0.0, 0.0, found.low, found.high, found.p, found.better, identical=True)
    assert all(map(math.isnan, (found.low, found.high, found.p, found.better)))


def test_the_same_difference_in_all_seeds_has_no_p_of_zero():
    found = summarise_pairs([1.3, 1.5, 1.7], [1.1, 1.3, 1.5])  # 0.2 each, but for rounding
    assert found.constant
    assert not found.identical
    assert (found.mean, found.std) == (pytest.approx(0.2), 0.0)
    assert all(map(math.isnan, (found.low, found.high, found.p, found.better)))


def test_one_image_of_affnist_is_a_difference():
    step = 100 / 320_000
    found = summarise_pairs([20.0, 20.0 + step, 20.0], [20.0, 20.0, 20.0])
    assert not found.identical
    assert not found.constant
    assert found.p == pytest.approx(0.4226, abs=1e-3)


@pytest.mark.parametrize(("first", "second"), [([1.0, math.nan], [1.0, 2.0]), ([1.0], [math.inf]), ([1.0], [1.0, 2.0])])
def test_pairs_that_are_none_are_refused(first, second):
    with pytest.raises(ValueError, match=r"finite|argument"):
        summarise_pairs(first, second)


@pytest.mark.parametrize("n", [1, 2, 5, 30])
def test_holm_is_statsmodels(n):
    p_values = np.random.default_rng(n).uniform(0, 1, n) ** 3
    assert holm(list(p_values)) == pytest.approx(list(multipletests(p_values, method="holm")[1]), abs=1e-12)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_contrast_without_p_does_not_count_in_its_family():
    adjusted = holm([math.nan, 0.01, math.nan, 0.04])
    assert adjusted[1::2] == pytest.approx([0.02, 0.04])
    assert math.isnan(adjusted[0])
    assert math.isnan(adjusted[2])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shift", [-0.15, 0.0, 0.1])
def test_the_p_of_the_same_is_that_of_two_one_sided_tests_against_nine_and_eleven_tenths(seed, shift):
    first, second = np.random.default_rng(seed).normal([[2 + shift], [2]], 0.1, (2, 5))
    below = stats.ttest_rel(first, 1.1 * second, alternative="less").pvalue
    above = stats.ttest_rel(first, 0.9 * second, alternative="greater").pvalue
    assert p_of_same(list(first), list(second)) == pytest.approx(max(below, above))


def test_where_the_second_has_no_spread_it_is_the_test_within_a_fixed_margin():
    first = [2.05, 1.98, 2.1, 2.02, 1.95]
    assert p_of_same(first, [2.0] * 5) == pytest.approx(ttost_paired(np.array(first), np.full(5, 2.0), -0.2, 0.2)[0])


def test_two_or_values_without_spread_are_no_test_and_equal_pairs_are_the_same():
    assert math.isnan(p_of_same([1.0, 1.1], [1.1, 1.0]))
    assert math.isnan(p_of_same([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]))
    assert p_of_same([1.0, 1.1, 1.2], [1.0, 1.1, 1.2]) < 0.005


@pytest.mark.parametrize(
    ("error", "items", "margin"), [(8.1, 10_000, 0.81), (0.25, 10_000, 0.05), (0.25, None, 0.025), (2.0, math.nan, 0.2)]
)
def test_a_margin_is_a_tenth_or_five_test_items(error, items, margin):
    assert margin_of(error, items) == pytest.approx(margin)
