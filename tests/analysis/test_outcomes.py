"""What became of contrasts, as a grid: the same in words and marks as the rows that it is made of."""

import pytest

from capsbench.analysis.collect import collect
from capsbench.analysis.contrasts import compare, contrasts_of_begun, is_shown
from capsbench.analysis.outcomes import (
    OUTCOMES,
    SAME,
    TOO_FEW,
    asked_rows,
    family_grid,
    outcome_of,
    question_grid,
)
from capsbench.analysis.tables import build_table

STUDY = """\
name: asked
seeds: [0, 1, 2, 3, 4]
training: {epochs: 2}
contrasts:
  first:
    - {a: near, b: one, experiment: digits, name: near}
  second:
    - {a: near, b: one, experiment: pairs, name: near on pairs}
    - {a: far, b: one, name: far, post_hoc: true}
experiments:
  digits: {data: {name: digits}}
  pairs: {data: {name: multidigits}}
variants:
  one: {model: capsnet, options: {conv_channels: 32}}
  near: {model: capsnet, options: {conv_channels: 33}}
  far: {model: capsnet, options: {conv_channels: 34}}
questions:
  Does it help?:
    a little: [near, near on pairs]
    a lot: [far]
"""
STEADY = [5.0, 5.1, 5.2, 5.0, 5.1]
NEAR = [0.0, 0.6, 0.3, 0.5, 0.2]  # p = 0.04: shown alone and as the last of a family, not where there are two of it


@pytest.fixture
def ended(make_plan, write_run, results):
    """The study after its runs have ended, and the rows of its contrasts."""
    plan = make_plan(STUDY)
    for run in plan.runs:
        more = {"one": 0.0, "near": NEAR[run.seed], "far": 2.0 + NEAR[run.seed] / 10}[run.variant]
        write_run(run, error=STEADY[run.seed] + more)
    runs = collect(plan, results)
    return plan, runs, list(compare(plan.contrasts, runs).itertuples())


TITLES = {"digits": "digits", "pairs": "pairs"}


@pytest.mark.parametrize(
    ("errors", "word", "text"),
    [
        ([6.0, 6.2, 6.1, 6.0, 6.1], "higher", "+1.00"),
        ([4.0, 4.2, 4.1, 4.0, 4.1], "lower", "−1.00"),
        ([5.1, 5.0, 5.3, 5.0, 5.1], SAME, "≈ +0.02"),
        (STEADY, "identical", "identical"),
        ([2.0, 9.0, 4.0, 8.0, 3.5], "undecided", "undecided"),
        ([6.0, 6.2], TOO_FEW, TOO_FEW),
    ],
)
def test_a_row_has_one_outcome(make_plan, write_run, results, errors, word, text):
    plan = make_plan(STUDY)
    for run in plan.runs:
        if run.variant == "one":
            write_run(run, error=STEADY[run.seed])
        elif run.variant == "near" and run.seed < len(errors):
            write_run(run, error=errors[run.seed])
    rows = list(compare(plan.contrasts, collect(plan, results)).itertuples())
    (near,) = [row for row in rows if row.contrast == "near"]
    assert outcome_of(near) == word
    assert sum(outcome(near) for outcome in OUTCOMES.values()) == 1 or word == TOO_FEW
    (line,) = family_grid([near], TITLES).texts()
    assert line == f"near: digits {text}"


def test_a_run_at_chance_has_no_number(make_plan, write_run, results):
    plan = make_plan(STUDY)
    for run in plan.runs:
        stuck = run.variant == "near" and run.seed == 0
        write_run(run, error=90.0 if stuck else STEADY[run.seed], stuck_at_chance=stuck, diagnostics=[])
    runs = collect(plan, results)
    rows = list(compare(plan.contrasts, runs).itertuples())
    assert family_grid(rows, TITLES).texts()[0] == "near: digits at chance in 1 of 5"
    table = build_table("questions", plan, runs)
    assert table.grids[0].rows[0].texts[1:] == ("at chance in 1 of 5",) * 2
    assert set(table.numbers["at_chance"]) == {0, 1}


def test_seeds_that_are_missing_stand_beside_the_errors(make_plan, write_run, results):
    plan = make_plan(STUDY)
    for run in plan.runs:
        if run.variant == "one" or run.seed < 4:
            write_run(run, error=STEADY[run.seed] + (run.variant != "one"))
    rows = list(compare(plan.contrasts, collect(plan, results)).itertuples())
    cells = [found for _, line in family_grid(rows, TITLES).lines for found in line if found]
    assert all(cell.beside.endswith("(4 of 5 seeds)") for cell in cells)


def test_the_table_of_a_question_has_the_data_sets_that_it_is_about(make_plan, write_run, results):
    plan = make_plan(STUDY + "  And on digits?: {a little: [near]}\n")
    for run in plan.runs:
        write_run(run, error=STEADY[run.seed] + (run.variant != "one"))
    first, second = build_table("questions", plan, collect(plan, results)).grids
    assert len(first.columns) == 3 and {len(row.texts) for row in first.rows} == {3}
    assert second.columns == first.columns[:2]
    assert [len(row.texts) for row in second.rows] == [2]


def test_a_contrast_without_a_name_answers_no_question(make_plan, write_run, results):
    text = STUDY.replace("  second:\n", "  other:\n    - {a: far, b: one, experiment: digits}\n  second:\n")
    plan = make_plan(text)
    for run in plan.runs:
        write_run(run, error=STEADY[run.seed])
    rows = list(compare(plan.contrasts, collect(plan, results)).itertuples())
    asked = asked_rows(plan, rows)["Does it help?"]
    assert [row.family for own in asked.values() for row in own] == ["first", "second", "second", "second"]


def test_what_is_the_same_in_its_family_alone_is_marked(make_plan, write_run, results):
    near = [5.6, 4.9, 5.5, 4.9, 5.3]  # p (same) is 0.03
    plan = make_plan(STUDY)
    for run in plan.runs:
        write_run(run, error={"one": STEADY, "near": near, "far": [9.0, 3.0, 8.0, 2.0, 7.0]}[run.variant][run.seed])
    rows = list(compare(plan.contrasts, collect(plan, results)).itertuples())
    row = rows[0]
    assert 0.0125 < row.p_same_raw == row.p_same < 0.05  # of a family of one
    lines = dict(question_grid(asked_rows(plan, rows), TITLES).lines)
    assert lines["a little"][0].text == "≈ +0.16†"


def test_what_falls_to_the_correction_over_the_question_is_marked(ended):
    plan, _, rows = ended
    (near,) = [row for row in rows if row.contrast == "near"]
    assert is_shown(near)
    assert near.tests == 1
    grid = question_grid(asked_rows(plan, rows), TITLES)
    (heading, lines) = grid.parts[0]
    assert heading == "Does it help?"
    assert [name for name, _ in lines] == ["a little", "a lot"]
    shown = [[cell.text for cell in cells if cell] for _, cells in lines]
    assert shown == [["+0.32†", "+0.32†"], ["+2.032‡", "+2.032‡"]]
    assert [meaning[0] for meaning in grid.meanings()] == ["†", "‡"]
    assert "†" not in " ".join(family_grid([near], TITLES).texts())  # a family has a correction of its own


def test_a_grid_has_a_column_per_experiment_and_blanks_where_nothing_is_compared(ended):
    _, _, rows = ended
    grid = family_grid(rows, TITLES)
    assert grid.columns == ("digits", "pairs")
    lines = dict(grid.lines)
    assert [cell is None for cell in lines["near"]] == [False, True]
    assert [cell is None for cell in lines["near on pairs"]] == [True, False]
    cell = lines["far"][0]
    assert (cell.errors, cell.kind, cell.seeds) == ("7.11 − 5.08", "worse", 5)
    assert cell.more.startswith("95 % interval [+2.0")


def test_the_table_of_questions_has_means_with_intervals_and_their_numbers(ended):
    plan, runs, rows = ended
    table = build_table("questions", plan, runs)
    (grid,) = table.grids
    assert grid.heading == "Does it help?"
    (near,) = [row for row in rows if row.contrast == "near"]
    assert grid.rows[0].texts[1] == f"+0.32*† [+{near.low:.2f}, +{near.high:.2f}]"
    assert len(table.numbers) == 4
    assert set(table.numbers["row"]) == {"a little", "a lot"}
    assert "†: in its family alone" in table.caption


def test_a_question_without_answers_says_so(make_plan, results):
    plan = make_plan(STUDY)
    runs = collect(plan, results)
    table = build_table("questions", plan, runs)
    assert table.grids[0].rows[0].texts[1:] == (TOO_FEW, TOO_FEW)


def test_an_experiment_that_has_not_begun_has_no_column(make_plan, write_run, results):
    plan = make_plan(STUDY + "  On pairs alone?:\n    pairs: [near on pairs]\n")
    for run in plan.runs:
        if run.experiment == "digits":
            write_run(run, error=STEADY[run.seed])
    runs = collect(plan, results)
    found = asked_rows(plan, list(compare(contrasts_of_begun(plan, runs), runs).itertuples()))
    assert list(found) == ["Does it help?"]
    assert question_grid(found, TITLES).columns == ("digits",)
