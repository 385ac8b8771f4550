"""Contrasts of finished runs: known answers, dropped seeds, and sentences."""

import math
from pathlib import Path

import pandas as pd
import pytest

from capsbench.analysis.collect import collect
from capsbench.analysis.contrasts import at_chance_text, compare, is_same, is_shown, label_of, sentence
from capsbench.analysis.statistics import PairedSummary, summarise_pairs
from capsbench.analysis.tables import write_table
from capsbench.analysis.tables.contrasts import contrasts_table
from capsbench.study import Contrast

REFERENCE = Path(__file__).parents[2] / "results/reference"


@pytest.fixture(scope="module")
def reference() -> pd.DataFrame:
    """The committed runs of the study fair, five seeds each."""
    return pd.read_csv(REFERENCE / "fair/runs.csv", low_memory=False)


@pytest.fixture
def compared(five, write_run, results):
    """Compare after runs have ended: variant -> what each seed ended with, an error or a status."""

    def compare_after(stuck: tuple[str, ...] = (), **ends: list[float | str]) -> pd.DataFrame:
        for run in five.runs:
            end = ends.get(run.variant.removeprefix("capsnet-"), ["missing"] * 5)[run.seed]
            if isinstance(end, float):
                write_run(run, error=end)
            elif end != "missing":
                write_run(run, end)
        runs = collect(five, results)
        return compare(five.contrasts, runs.assign(stuck_at_chance=runs["key"].isin(stuck)))

    return compare_after


@pytest.mark.parametrize(
    ("experiment", "a", "b", "mean", "low", "high"),
    [
        ("mnist", "em-iterations3", "dynamic-iterations3", -0.508, -0.699, -0.317),
        ("mnist", "bayes", "dynamic-iterations3", -0.558, -0.938, -0.178),
        ("smallnorb", "cnn", "dynamic-iterations3", -8.725, -11.266, -6.184),
        ("smallnorb", "dynamic_threads", "dynamic-iterations3", 0.0132, -0.0214, 0.0477),
    ],
)
def test_known_answers_from_the_committed_runs(reference, experiment, a, b, mean, low, high):
    (row,) = compare([Contrast("f", experiment, a, b)], reference).itertuples()
    assert (row.n, row.planned, row.dropped) == (5, 5, "")
    assert (row.mean, row.low, row.high) == pytest.approx((mean, low, high), abs=0.0006)
    assert (row.p < 0.05) == (low > 0 or high < 0)
    assert row.p_holm == row.p  # alone in its family
    assert (row.p_better > 0.5) == (mean < 0)


def test_swapped_variants_change_the_signs_and_no_more(reference):
    one, other = (
        next(compare([Contrast("f", "smallnorb", a, b)], reference).itertuples())
        for a, b in (("dynamic-iterations3", "cnn"), ("cnn", "dynamic-iterations3"))
    )  # fmt: skip
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    assert one.p == pytest.approx(other.p)
    assert one.p_better == pytest.approx(1 - other.p_better)
    assert one.shows.replace("higher", "lower") == other.shows


def test_variants_that_are_equal_in_every_seed_are_called_identical():
    runs = pd.read_csv(REFERENCE / "claims/runs.csv", low_memory=False)
    with_decoder, without = (f"capsnet-iterations1-{decoder}" for decoder in ("fully_connected", "no_decoder"))
    first, second = ((runs["experiment"] == "digits") & (runs["variant"] == name) for name in (with_decoder, without))
    runs.loc[first, "test_error"] = runs.loc[second, "test_error"].to_numpy()
    (row,) = compare([Contrast("f", "digits", with_decoder, without)], runs).itertuples()
    assert row.shows == "identical in all five seeds"
    assert row.mean == 0
    assert all(map(math.isnan, (row.low, row.high, row.p, row.p_better)))


def test_p_values_are_adjusted_within_their_family_only(reference):
    em = [Contrast("em", "mnist", name, "dynamic-iterations3") for name in ("em-iterations3", "em_cross_entropy")]
    pair = Contrast("em", "mnist", "em_cross_entropy", "em-iterations3")
    identical = Contrast("em", "mnist", "em-iterations3", "em-iterations3")
    together = compare([*em, pair, identical, Contrast("other", pair.experiment, pair.a, pair.b)], reference)
    assert list(together["tests"]) == [3, 3, 3, 3, 1]  # identical runs are no test
    p = list(together["p"])
    assert p[0] < p[1] < p[2]
    assert together["p_holm"][0] == pytest.approx(3 * p[0])
    assert together["p_holm"][1] == pytest.approx(2 * p[1])
    assert together["p_holm"][4] == pytest.approx(p[2])


def test_an_unknown_cell_is_a_key_error(reference):
    with pytest.raises(KeyError, match="mnist/dynamic-iterations9"):
        compare([Contrast("f", "mnist", "dynamic-iterations9", "dynamic-iterations3")], reference)


def test_seeds_are_paired_by_number_not_by_order(reference):
    contrast = Contrast("f", "smallnorb", "em-iterations3", "dynamic-iterations3")
    (usual,) = compare([contrast], reference).itertuples()
    (shuffled,) = compare([contrast], reference.iloc[::-1]).itertuples()
    assert (shuffled.low, shuffled.high) == pytest.approx((usual.low, usual.high))
    assert shuffled.differences == usual.differences


def test_a_seed_without_both_results_is_dropped_and_counted(compared):
    table = compared(
        iterations1=[2.0, 3.0, 4.0, 5.0, "failed"],
        iterations2=[1.5, "diverged", 3.4, 4.2, 9.0],
    )
    row = table.iloc[0]
    assert (row["n"], row["planned"]) == (3, 5)
    assert row["differences"] == pytest.approx({0: -0.5, 2: -0.6, 3: -0.8})
    for reason in (
        "CapsNet, iterations 2 diverged in 1 seed",
        "CapsNet, iterations 1 failed in 1 seed",
    ):
        assert reason in row["dropped"]
        assert reason in row["shows"]
    last = table.iloc[1]  # nothing has run
    assert (last["n"], last["planned"]) == (0, 5)
    assert math.isnan(last["mean"])
    assert "CapsNet, iterations 3 is missing in 4 seeds" in last["dropped"]
    assert "iterations 3 is missing and CapsNet, iterations 1 failed in 1 seed" in last["dropped"]


def test_a_seed_whose_familiar_errors_are_not_matched_is_dropped(five, write_run, results):
    for run in five.runs:
        write_run(run, error=1.0 + run.seed)
    runs = collect(five, results)
    apart = (runs["variant"] == "capsnet-iterations2") & (runs["seed"] == 3)
    runs["overshoot"] = apart.map({True: -0.3, False: 0.05})
    row = compare(five.contrasts, runs).iloc[0]
    assert sorted(row["differences"]) == [0, 1, 2, 4]
    assert "CapsNet, iterations 2 is not matched in familiar error in 1 seed" in row["dropped"]


def test_a_seed_that_stayed_at_chance_counts_and_is_named(compared):
    table = compared(
        iterations1=[2.0, 3.0, 4.0, 5.0, 6.0],
        iterations2=[90.0, 2.5, 3.5, 4.5, 5.5],
        stuck=("digits/capsnet-iterations2/seed0",),
    )
    row = table.iloc[0]
    assert row["differences"] == pytest.approx({0: 88.0, 1: -0.5, 2: -0.5, 3: -0.5, 4: -0.5})
    assert row["dropped"] == ""
    assert row["stuck"] == "CapsNet, iterations 2 stayed at chance in 1 of 5 seeds"
    assert row["stuck"] in row["shows"]
    assert row["at_chance"] == 1
    assert at_chance_text(row) == "at chance in 1 of 5 seeds"


def test_a_difference_from_runs_at_chance_is_not_shown_however_large(compared):
    """Three of five seeds at chance, and the others little better: the interval is far from zero."""
    ends = {"iterations1": [2.0, 2.2, 2.1, 2.3, 2.0], "iterations2": [80.0, 80.0, 80.0, 78.0, 77.5]}
    row = next(compared(**ends).itertuples())
    assert row.low > 70 and row.p_holm < 0.001
    assert is_shown(row)
    assert "error of the first higher by" in row.shows
    stuck = tuple(f"digits/capsnet-iterations2/seed{seed}" for seed in range(3))
    row = next(compared(stuck, **ends).itertuples())
    assert row.low > 70 and row.p_holm < 0.001  # the numbers stay
    assert not is_shown(row)
    assert "stayed at chance in 3 of 5 seeds" in row.shows
    assert "higher" not in row.shows and "no difference was shown" not in row.shows


def test_seeds_in_which_both_sides_stayed_at_chance_count_once(compared):
    stuck = tuple(f"digits/capsnet-iterations{n}/seed{seed}" for n, seed in ((1, 0), (2, 0), (2, 3)))
    row = compared(stuck, iterations1=[80.0, 2.0, 2.1, 2.3, 2.2], iterations2=[80.0, 2.1, 2.4, 80.0, 2.5]).iloc[0]
    assert row["at_chance"] == 2
    assert "iterations 1 stayed at chance in 1 of 5" in row["stuck"]
    assert "iterations 2 stayed at chance in 2 of 5" in row["stuck"]


def test_tables_say_which_side_stayed_at_chance(five, write_run, results):
    for run in five.runs:
        stuck = run.variant == "capsnet-iterations2" and run.seed < 3
        error = (80.0 if stuck else 2.0) + run.seed / 10
        write_run(run, error=error, stuck_at_chance=stuck, diagnostics=[])
    _, md, tex = write_table(contrasts_table(five, collect(five, results)), results / "tables")
    for path in (md, tex):
        text = path.read_text(encoding="utf-8").replace("~", " ")
        assert "5 of 5, 3 at chance" in text
        assert "CapsNet, iterations 2 stayed at chance in 3 of 5 seeds" in text
        assert "does not count as shown" in text


def test_enough_seeds_that_are_left_give_an_interval(compared):
    errors = [2.0, 3.0, 4.0, 5.0, 6.0]
    table = compared(iterations1=errors, iterations2=[1.1, 2.0, "diverged", 3.8, 5.1])
    row = table.iloc[0]
    expected = summarise_pairs([1.1, 2.0, 3.8, 5.1], [2.0, 3.0, 5.0, 6.0])
    assert (row["n"], row["low"], row["high"], row["p"]) == (4, expected.low, expected.high, expected.p)
    assert row["shows"].startswith("error of the first lower by ")
    assert "four seeds, paired; dropped: CapsNet, iterations 2 diverged in 1 seed" in row["shows"]


LOWER = PairedSummary(5, -2.3, 0.9, -3.4, -1.2, 0.004, 0.95)
UNCLEAR = PairedSummary(5, 0.2, 0.5, -0.4, 0.8, 0.4, 0.37)


@pytest.mark.parametrize(
    ("found", "p_holm", "said"),
    [
        (LOWER, 0.008, "error of the first lower by 1.20 to 3.40 points (five seeds, paired)"),
        (
            PairedSummary(12, 2.3, 0.9, 1.2, 3.4, 0.004, 0.05),
            0.008,
            "error of the first higher by 1.20 to 3.40 points (12",
        ),
        (UNCLEAR, 0.8, "no difference was shown: between −0.40 and +0.80 points (five seeds, paired)"),
        (
            PairedSummary(3, -0.357, 0.01, -0.385, -0.328, 0.001, 0.99),
            0.01,
            "error of the first lower by 0.328 to 0.385 points",
        ),
        (
            PairedSummary(3, -1.0, 0.4, -2.0, -0.0004, 0.049, 0.8),
            0.049,
            "error of the first lower by 0.0004 to 2.0000 points",
        ),
        (PairedSummary(3, 0.0, 0.0, identical=True), math.nan, "identical in all three seeds"),
        (PairedSummary(1, 0.0, math.nan, identical=True), math.nan, "identical in the one seed"),
        (PairedSummary(2, -0.3, 0.1), math.nan, "−0.30 points: too few seeds for an interval (two seeds, paired)"),
        (PairedSummary(3, 0.1, 0.0, constant=True), math.nan, "+0.10 points in every seed: no interval"),
        (PairedSummary(0, math.nan, math.nan), math.nan, "no seed to compare"),
    ],
)
def test_a_sentence_claims_no_more_than_the_interval(found, p_holm, said):
    assert sentence(found, p_holm, 2).startswith(said)


def test_a_sentence_says_within_what_two_are_the_same():
    said = sentence(UNCLEAR, 0.8, 2, same_within=1.24)
    assert said == "the same within 1.2 points: between −0.40 and +0.80 points (five seeds, paired)"
    small = sentence(LOWER, 0.062, 2, same_within=5.3)  # not shown after Holm's correction
    assert small.startswith("the same within 5.3 points: between −3.40 and −1.20 points (five seeds, paired); a diff")
    assert small.endswith("a difference was not shown after Holm's correction for 2 contrasts (p = 0.062)")
    assert "same" not in sentence(UNCLEAR, 0.8, 2, stuck="a stayed at chance in 1 of 5 seeds", same_within=1.24)


def test_two_are_the_same_where_the_interval_lies_within_a_tenth_of_the_second(compared):
    """Differences of −0.1 and +0.1 around 0.02: the half width of the 90 % interval is 0.104."""
    ends = {"iterations2": [2.0, 2.3, 2.0, 2.3, 2.2], "iterations3": [2.1, 2.2, 2.1, 2.2, 2.1]}
    table = compared(iterations1=[2.1, 2.2, 2.1, 2.2, 2.1], **ends)
    one, other = table.itertuples()
    assert one.margin == pytest.approx(0.214)
    assert (is_same(one), is_shown(one)) == (True, False)
    assert one.shows.startswith("the same within 0.21 points: between −")
    assert (other.shows, is_same(other)) == ("identical in all five seeds", True)
    narrower = compared(iterations1=[0.3, 0.4, 0.3, 0.4, 0.3], iterations2=[0.2, 0.5, 0.2, 0.5, 0.4])
    assert (narrower.margin[0], is_same(narrower.iloc[0])) == (pytest.approx(0.034), False)
    assert narrower.shows[0].startswith("no difference was shown: between −")


def test_what_is_said_to_be_the_same_is_corrected_within_its_family(five, write_run, results):
    """At a margin of 0.5 the p of the second is 0.044 alone: in a family of two it may not decide."""
    ends = {
        "iterations1": [5.0] * 5,
        "iterations2": [5.1, 4.9, 5.1, 4.9, 5.1],
        "iterations3": [5.5, 4.7, 5.5, 4.7, 5.1],
    }
    for run in five.runs:
        write_run(run, error=ends[run.variant.removeprefix("capsnet-")][run.seed])
    runs = collect(five, results)
    steady, wide = compare(five.contrasts, runs).itertuples()
    (alone,) = compare(five.contrasts[1:], runs).itertuples()
    assert (steady.family, wide.family) == (alone.family,) * 2
    assert 0.025 < alone.p_same < 0.05
    assert wide.p_same == alone.p_same  # the larger of two is not multiplied
    thrice = compare([five.contrasts[1]] * 2, runs)
    assert list(thrice["p_same"]) == pytest.approx([2 * alone.p_same] * 2)
    assert [is_same(row) for row in thrice.itertuples()] == [False, False]
    assert is_same(alone)


def test_runs_at_chance_are_never_the_same(compared):
    ends = {name: [80.0, 80.1, 80.0, 80.2, 80.1] for name in ("iterations1", "iterations3")}
    stuck = tuple(f"digits/capsnet-iterations2/seed{seed}" for seed in range(5))
    row = next(compared(stuck, iterations2=[80.1, 80.0, 80.0, 80.1, 80.2], **ends).itertuples())
    assert row.p_same < 0.001
    assert not is_same(row)
    assert "the same" not in row.shows


def test_a_difference_that_does_not_survive_its_family_is_not_claimed():
    assert "Holm" not in sentence(LOWER, 0.049, 4)
    said = sentence(LOWER, 0.062, 4)
    assert "not shown after Holm's correction for 4 contrasts (p = 0.062)" in said
    assert "Holm" not in sentence(UNCLEAR, 1.0, 4)  # nothing was claimed


@pytest.mark.parametrize(
    ("a", "b", "label"),
    [
        ("Caps, decoder, iterations 3", "Caps, decoder, iterations 1", "Caps, decoder: iterations 3 against 1"),
        ("caps-iterations3-no_decoder", "caps-iterations1-no_decoder", "caps, no_decoder: iterations 3 against 1"),
        ("caps-em", "caps-dynamic", "caps: em against dynamic"),
        ("Caps, EM, iterations 2", "Caps, iterations 3", "Caps, EM, iterations 2 against Caps, iterations 3"),
        ("caps-em-iterations2", "caps-dynamic-iterations3", "caps-em-iterations2 against caps-dynamic-iterations3"),
        ("cnn", "capsnet", "cnn against capsnet"),
    ],
)  # fmt: skip
def test_what_both_variants_share_is_said_once(a, b, label):
    assert label_of(a, b) == label
