import math

import numpy as np
import pytest
from scipy import stats

from capsbench.analysis.statistics import summarise
from capsbench.analysis.verdicts import Ends, Target, judge

S17 = Target(0.25, 0.005, 0.05, std=0.005, n=3)  # MNIST, 10,000 test images: five of them are 0.05 points
ONE_RUN = Target(0.25, 0.005, 0.05)


# The table of cases that break a naive verdict: statistics.md
@pytest.mark.parametrize(
    ("ends", "target", "word"),
    [
        (Ends([0.20, 0.21, 0.20]), S17, "better"),
        (Ends([20.9, 21.0, 21.1]), Target(34, 0.5, 3.4), "better"),
        (Ends([0.25, 0.25], diverged=1), S17, "undecided"),
        (Ends([0.25, 0.25], missing=1), S17, "undecided"),
        (Ends([0.40, 0.40, 0.40]), Target(0.39, 0.005, 0.05), "same"),
        (Ends([100 * 437 / 24_300] * 3), Target(1.8, 0.05, 0.18), "same"),
        (Ends([20.6, 20.7, 20.8]), Target(21, 0.5, 2.1), "same"),  # printed as an accuracy of 79
        (Ends([0.34, 0.35, 0.36]), S17, "worse"),
        (Ends([0.25, 0.25]), S17, "undecided"),  # two give no interval
        (Ends([]), S17, "not run"),
        (Ends([], missing=3), S17, "not run"),
        (Ends([], diverged=3), S17, "undecided"),
    ],
)
def test_cases_that_break_a_naive_verdict(ends, target, word):
    assert judge(ends, target).word == word


def test_what_is_lost_is_said():
    assert judge(Ends([0.25, 0.25], diverged=1), S17).reason.startswith("1 of 3 diverged")
    assert judge(Ends([0.25, 0.25], missing=1), S17).reason.startswith("1 of 3 not run yet")
    assert judge(Ends([0.25] * 5, failed=1), S17).reason == "1 of 6 failed"


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (Ends([0.25, 0.25], missing=1), "1 of 3 not run yet: at least 1 more must end"),
        (Ends([0.25, 0.25], missing=3), "3 of 5 not run yet: at least 2 more must end"),  # four of five
        (Ends([0.25] * 3, missing=7), "7 of 10 not run yet: at least 5 more must end"),
        (Ends([0.25, 0.25], failed=1), "1 of 3 failed: at least 1 more must end"),
        (Ends([], failed=1, missing=1, diverged=1), "how many seeds would decide is not known"),
        (Ends([0.25] * 3, diverged=2), "2 of 5 diverged: how many seeds would decide is not known"),
        (Ends([0.25] * 5, stuck=2), "2 of 5 stuck at chance: how many seeds would decide is not known"),
        (Ends([0.25, 0.25]), "2 seeds give no interval, 3 are the least"),
        (Ends([0.25], missing=1), "1 of 2 not run yet; 1 seed gives no interval, 3 are the least"),
        (Ends([0.15, 0.25, 0.35] * 2), "100 seeds would not decide"),
    ],
)
def test_undecided_says_how_many_runs_would_decide_or_why_that_is_not_known(ends, said):
    found = judge(ends, ONE_RUN)
    assert (found.word, found.seeds_needed) == ("undecided", None)
    assert said in found.reason


@pytest.mark.parametrize("planned", range(3, 41))
def test_as_many_more_runs_as_are_named_are_enough_and_no_fewer(planned):
    for ended in range(planned):
        reason = judge(Ends([0.25] * ended, missing=planned - ended), S17).reason
        more = int(reason.split("at least ")[1].split(" ")[0]) if "at least" in reason else 0
        assert (ended == 0 and not reason) or (
            judge(Ends([0.25] * (ended + more), missing=planned - ended - more), S17).word == "same"
        )
        assert (
            more == 0
            or judge(Ends([0.25] * (ended + more - 1), missing=planned - ended - more + 1), S17).word != "same"
        )


@pytest.mark.parametrize(("diverged", "word"), [(1, "same"), (2, "undecided")])
def test_four_fifths_of_the_runs_must_end(diverged, word):
    assert judge(Ends([0.25] * (5 - diverged), diverged=diverged), S17).word == word


def test_two_seeds_have_no_interval():
    found = judge(Ends([0.24, 0.26]), S17)
    assert math.isnan(found.low)
    assert "2 seeds" in found.reason


@pytest.mark.parametrize("errors", [[0.25, math.nan, 0.25], [-0.1, 0.2, 0.3], [0.2, 0.3, 100.1]])
def test_what_is_no_error_is_refused(errors):
    with pytest.raises(ValueError, match="from 0 to 100"):
        judge(Ends(errors), S17)


def test_an_accuracy_is_refused():
    with pytest.raises(ValueError, match="accuracy"):
        judge(Ends([99.75, 99.7, 99.8]), S17, chance=90)


def test_chance_level_is_no_accuracy():  # 100 - 89.5 is near the published 10.6
    assert judge(Ends([89.2, 89.5, 89.9]), Target(10.6, 0.05, 1.06), chance=90).word == "worse"


def test_few_test_items_widen_the_interval():
    errors = [5.2, 5.3, 5.2, 5.3, 5.2]
    assert judge(Ends(errors), Target(5.2, 0.05, 0.52)).word == "same"
    assert judge(Ends(errors), Target(5.2, 0.05, 0.52), sampling_error=0.7).word == "undecided"  # 1,000 pairs


def test_runs_at_chance_reproduce_nothing():
    found = judge(Ends([0.25, 0.25, 0.26, 0.25, 0.25], stuck=1), S17)
    assert found.word == "undecided"
    assert "1 of 5 stuck at chance" in found.reason
    assert judge(Ends([89.1, 89.5, 89.9], stuck=3), S17).word == "worse"


def test_the_interval_with_a_published_spread_is_welchs():
    errors = [0.27, 0.29, 0.33, 0.28]
    found = judge(Ends(errors), S17)
    ours = summarise(errors)
    test = stats.ttest_ind_from_stats(ours.mean, ours.std, 4, 0.25, 0.005, 3, equal_var=False)
    variances = ours.std**2 / 4, 0.005**2 / 3
    degrees = sum(variances) ** 2 / (variances[0] ** 2 / 3 + variances[1] ** 2 / 2)
    half_width = stats.t.ppf(0.975, degrees) * math.sqrt(sum(variances))
    assert (found.low, found.high) == pytest.approx((ours.mean - 0.25 - half_width, ours.mean - 0.25 + half_width))
    assert (found.low > 0) == (test.pvalue < 0.05)


def test_the_interval_against_one_run_is_a_prediction():
    found = judge(Ends([0.24, 0.25, 0.29]), Target(0.39, 0.005, 0.05))
    std = np.std([0.24, 0.25, 0.29], ddof=1)
    half_width = stats.t.ppf(0.975, 2) * std * math.sqrt(1 + 1 / 3)
    assert found.high == pytest.approx(0.26 - 0.39 + half_width)


def test_a_published_spread_without_a_number_of_trials_is_that_of_one_run():
    errors = [0.24, 0.25, 0.26]
    wide = judge(Ends(errors), Target(0.39, 0.005, 0.05, std=0.05))
    assert wide.high - wide.low == pytest.approx(2 * stats.t.ppf(0.975, 2) * math.sqrt(0.01**2 / 3 + 0.05**2))


@pytest.mark.parametrize(
    ("errors", "said"),
    [([0.19, 0.20, 0.21], "better by at least 0.04"), ([0.49, 0.50, 0.51], "worse by at least 0.14")],
)
def test_at_least_leaves_out_the_rounding_and_is_rounded_down(errors, said):
    found = judge(Ends(errors), Target(0.30, 0.005, 0.05))
    half_width = stats.t.ppf(0.975, 2) * 0.01 * math.sqrt(4 / 3)
    assert found.at_least == pytest.approx(abs(errors[1] - 0.30) - half_width - 0.005)
    assert str(found) == said
    assert float(said.split()[-1]) <= found.at_least


def test_a_bound_that_is_small_is_not_written_as_zero():
    assert str(judge(Ends([0.3007] * 3), Target(0.30, 0.0, 0.0001))) == "worse by at least 0.0007"


def test_equal_errors_have_the_spread_of_the_rounding():
    found = judge(Ends([0.31] * 3), Target(0.25, 0.005, 0.05))
    half_width = stats.t.ppf(0.975, 2) * 0.005 * math.sqrt(4 / 3)
    assert (found.low, found.high) == pytest.approx((0.06 - half_width, 0.06 + half_width))


def test_worse_names_the_runs_at_chance():
    assert "3 of 3 stuck at chance" in judge(Ends([89.1, 89.5, 89.9], stuck=3), S17).reason


def test_undecided_says_how_many_seeds_would_decide():
    errors = [0.24, 0.27, 0.30]
    found = judge(Ends(errors), S17)
    assert found.word == "undecided"
    assert f"{found.seeds_needed} seeds" in str(found)
    more = summarise(errors)
    for n in (found.seeds_needed - 1, found.seeds_needed):  # as many values with the same mean and spread
        offset = more.std * math.sqrt((n - 1) / n)
        values = [more.mean + offset * (-1) ** k for k in range(n - n % 2)] + [more.mean] * (n % 2)
        scale = more.std / np.std(values, ddof=1)
        values = [more.mean + (value - more.mean) * scale for value in values]
        assert (judge(Ends(values), S17).word == "undecided") == (n < found.seeds_needed)


def test_where_no_number_of_seeds_decides_none_is_named():  # the published run is one draw from a wide spread
    found = judge(Ends([0.15, 0.25, 0.35]), ONE_RUN)
    assert (found.word, found.seeds_needed) == ("undecided", None)
    assert str(found) == "undecided"


REPETITIONS = 1000


def _words(n, mean, std, target_std=None):
    """Verdicts on published values drawn from N(0.25, std): from one run, or from three with their spread."""
    draws = np.random.default_rng(n).normal
    for _ in range(REPETITIONS):
        theirs = draws(0.25, std, 3 if target_std else 1)
        spread = {"std": theirs.std(ddof=1), "n": 3} if target_std else {}
        target = Target(float(theirs.mean()), 0.0, 0.05, **spread)
        yield judge(Ends(np.clip(draws(mean, std, n), 0, 100).tolist()), target).word


@pytest.mark.parametrize("n", [3, 10, 100])
@pytest.mark.parametrize("welch", [False, True])
@pytest.mark.parametrize("std", [0.02, 0.06])
def test_a_perfect_reproduction_is_rarely_called_different(n, welch, std):
    words = list(_words(n, 0.25, std, welch))
    false = sum(word in ("better", "worse") for word in words) / REPETITIONS
    assert false <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPETITIONS)  # three standard errors of the simulation


@pytest.mark.parametrize("n", [3, 10, 100])
def test_a_difference_as_large_as_the_margin_is_rarely_called_the_same(n):
    false = sum(word == "same" for word in _words(n, 0.30, 0.02, True)) / REPETITIONS
    assert false <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPETITIONS)


def test_a_perfect_reproduction_with_a_small_spread_is_mostly_called_the_same():
    assert sum(word == "same" for word in _words(5, 0.25, 0.01)) / REPETITIONS > 0.8
