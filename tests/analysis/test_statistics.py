import itertools
import math

import pytest
from scipy import stats

from capsbench.analysis.statistics import Summary, summarise, verdict

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


@pytest.mark.parametrize(
    ("values", "published", "said"),
    [
        ([], (0.25, 0.005, 3), "-"),
        ([0.25], (0.25, 0.005, 3), "not comparable: one run gives no interval"),
        ([0.24, 0.25, 0.26], (0.25, 0.005, 3), "reproduced"),
        ([0.25, 0.25, 0.25], (0.25, None, None), "reproduced"),
        ([0.34, 0.35, 0.36], (0.25, 0.005, 3), "missed: higher by 0.10"),
        ([0.14, 0.15, 0.16], (0.25, 0.005, 3), "missed: lower by 0.10"),
        ([0.38, 0.39, 0.40], (0.39, None, None), "reproduced"),
        ([0.42, 0.43, 0.44], (0.39, None, None), "missed: higher by 0.04"),
        # half width 4.303 x 0.1 / sqrt(3) = 0.25, a quarter of 0.39 is 0.10
        ([0.29, 0.39, 0.49], (0.39, None, None), "not comparable: an interval of ±0.25 settles nothing"),
        ([4.9, 5.0, 5.1], (0.25, 0.005, 3), "missed: higher by 4.75"),  # wide, yet far away
    ],
)
def test_verdict_in_words(values, published, said):
    assert verdict(summarise(values), *published) == said


def test_a_trial_alone_gives_the_paper_no_spread():
    ours = summarise([0.24, 0.25, 0.26])
    assert verdict(ours, 0.28, 0.05, 1) == verdict(ours, 0.28, None, None) == "missed: lower by 0.03"


@pytest.mark.parametrize(
    ("mean", "std", "n", "their_std", "their_n"),
    [
        *itertools.product((0.255, 0.27, 0.29, 0.33), (0.004, 0.02), (2, 3, 10), (0.005, 0.036), (3,)),
    ],
)
def test_missed_is_where_welchs_test_rejects(mean, std, n, their_std, their_n):
    ours = Summary(n, mean, std, math.nan)
    p = stats.ttest_ind_from_stats(mean, std, n, 0.25, their_std, their_n, equal_var=False).pvalue
    assert verdict(ours, 0.25, their_std, their_n).startswith("missed: higher") == (p < 0.05)


def test_the_edge_of_the_interval_is_welchs():
    std, n, their_std, their_n, published = 0.02, 5, 0.005, 3, 0.25
    variances = std**2 / n, their_std**2 / their_n
    degrees = sum(variances) ** 2 / (variances[0] ** 2 / (n - 1) + variances[1] ** 2 / (their_n - 1))
    half_width = stats.t.ppf(0.975, degrees) * math.sqrt(sum(variances))
    said = [
        verdict(Summary(n, published + half_width * share, std, math.nan), published, their_std, their_n)
        for share in (0.999, 1.001, -0.999, -1.001)
    ]
    assert [text.split(" by")[0] for text in said] == ["reproduced", "missed: higher", "reproduced", "missed: lower"]


def test_a_miss_names_a_difference_that_is_not_zero():
    assert verdict(Summary(10, 0.254, 0.001, math.nan), 0.25, None, None) != "missed: higher by 0.00"
