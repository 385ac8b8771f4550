import math

import pytest

from capsbench.analysis.cells import cells
from capsbench.analysis.collect import collect
from capsbench.analysis.tables import build_tables
from tests.analysis.studies import FULL, NOVEL, PAIRS


@pytest.fixture
def cell_of(make_plan, write_run, results):
    """The first cell of a study whose runs ended with these errors, or with a status instead."""

    def make(ends, text=FULL, **changes):
        plan = make_plan(text)
        for run, end in zip(plan.runs, ends, strict=False):
            if isinstance(end, str):
                write_run(run, status=end)
            else:
                write_run(run, error=end, **changes)
        return cells(plan, collect(plan, results))[0]

    return make


def test_errors_are_by_seed_and_what_is_lost_is_counted(cell_of):
    cell = cell_of([0.25, "diverged", "failed"])
    assert cell.errors == {0: 0.25}
    assert (cell.planned, cell.diverged, cell.failed, cell.missing) == (3, 1, 1, 0)
    assert cell_of([0.25, 0.26]).missing == 0  # the folders of before are there still


def test_a_run_at_the_papers_protocol_has_a_verdict(cell_of):
    cell = cell_of([0.25, 0.255, 0.25])
    assert cell.published.error == 0.25
    assert (cell.verdict.word, cell.deviations) == ("same", ())
    assert cell.verdict.difference == pytest.approx(0.25167 - 0.25, abs=1e-4)


def test_a_deviation_is_named_and_the_difference_stays(cell_of):
    cell = cell_of([0.25, 0.255, 0.25], FULL + "training: {batch_size: 64}\n")
    assert cell.verdict.word == "not comparable"
    assert "batch_size 64, not 128" in cell.verdict.reason
    assert not math.isnan(cell.verdict.difference)


def test_files_that_are_not_official_are_a_reason(cell_of):
    cell = cell_of([0.25, 0.255, 0.25], unofficial=("a copy: md5 1",))
    assert cell.verdict.word == "not comparable"
    assert cell.unofficial == ("a copy: md5 1",)


@pytest.mark.parametrize(
    ("end", "word"), [("diverged", "undecided"), ("failed", "undecided"), ("running", "undecided")]
)
def test_two_of_three_decide_nothing(cell_of, end, word):
    assert cell_of([0.25, 0.25, end]).verdict.word == word


def test_nothing_has_run(make_plan, results):
    plan = make_plan(FULL)
    (cell,) = cells(plan, collect(plan, results))
    assert cell.verdict.word == "not run"
    assert math.isnan(cell.summary.mean)


def test_few_pairs_do_not_decide(make_plan, write_run, results):
    """539 test items: the standard error of 5.2 % is a point, twice the margin."""
    plan = make_plan(PAIRS)
    for run in plan.runs:
        write_run(run, error=5.2, per_digit=2.6)
    assert {cell.verdict.word for cell in cells(plan, collect(plan, results))} == {"undecided"}


@pytest.mark.parametrize(("familiar", "word"), [(3.75, "same"), (3.4, "not comparable")])
def test_familiar_errors_must_match(make_plan, write_run, results, familiar, word):
    plan = make_plan(NOVEL)
    for run in plan.runs:
        capsules = run.variant == "capsules"
        write_run(run, error=13.5 if capsules else 20.0, familiar=familiar if capsules else 3.7)
    found = {cell.variant: cell for cell in cells(plan, collect(plan, results))}
    assert found["capsules"].verdict.word == word
    assert found["capsules"].matching.overshoot == pytest.approx(3.7 - familiar)
    assert found["cnn"].matching is None


def test_an_accuracy_is_named_as_such(cell_of):
    cell = cell_of([99.75, 99.7, 99.8])
    assert cell.verdict.word == "not comparable"
    assert "accuracy" in cell.verdict.reason


@pytest.mark.parametrize("known", [0, 1])
def test_familiar_errors_that_are_not_known_do_not_match(make_plan, write_run, results, known):
    plan = make_plan(NOVEL)
    for run in plan.runs:
        capsules = run.variant == "capsules"
        write_run(run, error=13.5, familiar=3.7 if not capsules or run.seed < known else None)
    capsules = cells(plan, collect(plan, results))[0]
    assert capsules.verdict.word == "not comparable"
    assert f"seed {known}: none is known" in capsules.verdict.reason


def test_a_run_that_ended_must_have_a_number(make_plan, write_run, results):
    plan = make_plan(FULL)
    for run in plan.runs:
        write_run(run, error=0.25)
    runs = collect(plan, results)
    runs.loc[0, "test_error"] = math.nan
    with pytest.raises(ValueError, match="no number"):
        cells(plan, runs)


def test_seeds_of_other_code_or_data_are_told_apart(make_plan, write_run, results):
    plan = make_plan(FULL)
    for run, code, images in zip(plan.runs, ("c" * 16, "d" * 16, "c" * 16), ("f", "f", "e"), strict=True):
        folder = write_run(run, error=0.25, code=code)
        record = folder.read_record()
        folder.write_record(record | {"data": record["data"] | {"fingerprint": images * 64}})
    runs = collect(plan, results)
    (cell,) = cells(plan, runs)
    assert cell.mixed == (
        "trained with 2 versions of the code (seeds 0, 2; 1)",
        "trained on 2 training sets (seeds 0, 1; 2)",
    )
    notes = " ".join(build_tables(plan, runs)["sabour-table1"].notes)
    assert "was trained with 2 versions of the code (seeds 0, 2; 1)." in notes
    later = cells(plan, runs.assign(measured_by=["a", "b", "b"], code="c", training_data="f"))
    assert later[0].mixed == ("measured by 2 versions of the code (seeds 0; 1, 2)",)
    alike = runs.assign(code="c", training_data=math.nan)  # as in files of before these were known
    assert cells(plan, alike)[0].mixed == ()


def test_seeds_of_several_machines_are_named_below_the_table_and_no_reason_to_refuse(make_plan, write_run, results):
    plan = make_plan(FULL)
    for run, device in zip(plan.runs, ("one", "one", "another"), strict=True):
        folder = write_run(run, error=0.25)
        record = folder.read_record()
        folder.write_record(record | {"machine": record["machine"] | {"device": device}})
    runs = collect(plan, results)
    (cell,) = cells(plan, runs)
    assert [machine.split(",")[0] for machine in cell.machines] == ["one", "another"]
    assert cell.mixed == ()
    notes = " ".join(build_tables(plan, runs)["sabour-table1"].notes)
    assert "Trained on several machines, or with several versions (runs.csv names them): " in notes
    one = runs.assign(machines="one, torch 2.14.1, python 3.11.2")
    assert "several machines" not in " ".join(build_tables(plan, one)["sabour-table1"].notes)
