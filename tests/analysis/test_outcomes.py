"""What became of contrasts, as a grid: the same in words and marks as the rows that it is made of."""

import pytest

from capsbench.analysis.collect import collect
from capsbench.analysis.contrasts import compare, is_shown
from capsbench.analysis.outcomes import OUTCOMES, TOO_FEW, asked_rows, family_grid, outcome_of, question_grid
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


def test_a_row_has_one_outcome(ended):
    _, _, rows = ended
    assert {outcome_of(row) for row in rows} <= {*OUTCOMES, TOO_FEW}
    for row in rows:
        assert sum(outcome(row) for outcome in OUTCOMES.values()) == 1


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
    assert "†: shown in its family" in table.caption


def test_a_question_without_answers_says_so(make_plan, results):
    plan = make_plan(STUDY)
    runs = collect(plan, results)
    table = build_table("questions", plan, runs)
    assert table.grids[0].rows[0].texts[1:] == ("too few seeds", "too few seeds")
