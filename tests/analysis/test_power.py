import math

import pytest

from capsbench.analysis.collect import collect
from capsbench.analysis.power import (
    after_the_runs,
    before_the_runs,
    half_width,
    in_words,
    largest_spread,
    seeds_for_same,
)
from capsbench.analysis.verdicts import Ends, Target, judge
from tests.analysis.studies import FULL, MULTIDIGITS

ONE_RUN = Target(0.25, 0.005, 0.05)


def test_half_widths_are_those_of_the_t_table():
    assert half_width(3) == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert half_width(5) == pytest.approx(2.7764 / math.sqrt(5), rel=1e-4)
    assert math.isnan(half_width(2))


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("target", [ONE_RUN, Target(0.25, 0.005, 0.05, 0.005, 3)])
def test_the_largest_spread_is_where_the_verdict_changes(n, target):
    std = largest_spread(n, target)
    for share, word in ((0.99, "same"), (1.01, "undecided")):
        offset = share * std * math.sqrt((n - 1) / 2)  # two values off the mean, the others on it
        errors = [target.error - offset, target.error + offset] + [target.error] * (n - 2)
        assert judge(Ends(errors), target).word == word


def test_more_seeds_allow_a_larger_spread_up_to_a_limit():
    assert seeds_for_same(0.02, ONE_RUN) == 4  # 2.35 x 0.02 x sqrt(1 + 1/4) = 0.053 of 0.055; with 3: 0.067
    assert seeds_for_same(0.04, ONE_RUN) is None


def test_before_the_runs_a_study_says_what_its_seeds_can_show(make_plan):
    lines = before_the_runs(make_plan(FULL))
    assert "3 seeds" in lines[0]
    assert "2.48" in lines[0]
    (mnist,) = [line for line in lines if line.startswith("mnist")]
    assert "margin 0.05" in mnist
    assert f"below {largest_spread(3, Target(0.25, 0.005, 0.05, 0.005, 3)):.2g}" in mnist


def test_a_published_spread_that_leaves_no_room_is_named(make_plan, monkeypatch):
    monkeypatch.setattr("capsbench.analysis.power.largest_spread", lambda n, target: 0.0)
    assert before_the_runs(make_plan(FULL))[1].endswith("; 0: the published spread leaves no room")


def test_one_seed_concludes_nothing(make_plan):
    (line,) = before_the_runs(make_plan(MULTIDIGITS))
    assert line.startswith("1 seed gives no interval")


def test_after_the_runs_each_cell_has_its_width_and_the_seeds_it_needs(make_plan, write_run, results):
    plan = make_plan(FULL)
    for run, error in zip(plan.runs, (0.24, 0.25, 0.29), strict=True):
        write_run(run, error=error)
    (row,) = after_the_runs(plan, collect(plan, results)).to_dict("records")
    assert row["half_width"] == pytest.approx(row["std"] * half_width(3))
    assert row["margin"] == pytest.approx(0.05)
    assert row["seeds_for_same"] == seeds_for_same(row["std"], Target(0.25, 0.005, 0.05, 0.005, 3))
    width, needed = in_words(plan, collect(plan, results))
    assert f"3 seeds: intervals of ±{row['half_width']:.2g} points" in width
    assert "margin of 0.05 points takes at least" in needed
