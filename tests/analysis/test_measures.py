"""What protocols found, from run folders and from the file of a reference."""

import pytest

from capsbench.analysis.measures import NAME, load_measures, read_measures, write_measures
from capsbench.errors import InputError
from capsbench.run.folder import write_json

STUDY = """\
name: measured
seeds: [0, 1]
training: {epochs: 2}
experiments: {digits: {data: {name: digits}}}
variants: {cnn: {model: cnn_matched}}
evaluations: [accuracy, calibration, {name: transforms, images: 100}]
"""
STARTED = "2026-01-01T00:00:00Z"


@pytest.fixture
def measured(make_plan, write_run):
    """Two runs: both calibrated, the second by an earlier training of it; the first under transforms."""
    plan = make_plan(STUDY)
    for run, started in zip(plan.runs, (STARTED, "2025-01-01T00:00:00Z"), strict=True):
        folder = write_run(run)
        about = {"commit": "c" * 40, "training_started": started}
        write_json(folder.evaluation_path("calibration"), {"status": "ok", "ece_logits": 12.5} | about)
    not_there = {"status": "not applicable", "reason": "too dark", "commit": "c" * 40, "training_started": STARTED}
    write_json(folder.evaluation_path("transforms"), not_there)
    return plan


def test_results_of_an_earlier_training_are_left_out(measured, results):
    first, second = (run.key for run in measured.runs)
    assert read_measures(measured, results) == {
        first: {"calibration": {"status": "ok", "ece_logits": 12.5}},
        second: {"transforms": {"status": "not applicable", "reason": "too dark"}},
    }


def test_protocols_whose_numbers_are_in_runs_csv_are_left_out(make_plan, write_run, results):
    plan = make_plan(STUDY.replace(", calibration, {name: transforms, images: 100}", ""))
    write_run(plan.runs[0])
    assert read_measures(plan, results) == {}


def test_a_protocol_of_one_experiment_is_read_there_alone(make_plan, write_run, results):
    text = STUDY.replace("{digits: {", "{aside: {data: {name: digits}}, digits: {evaluations: [cost], ")
    plan = make_plan(text)
    for run in plan.runs:
        folder = write_run(run)
        about = {"commit": "c" * 40, "training_started": STARTED}
        write_json(folder.evaluation_path("cost"), {"status": "ok", "forward_ms": 1.5} | about)
    found = read_measures(plan, results)
    assert {key for key, each in found.items() if "cost" in each} == {"digits/cnn/seed0", "digits/cnn/seed1"}
    assert "cost" in plan.study.protocols
    assert [options.name for options in plan.study.evaluations_of("aside")] == ["accuracy", "calibration", "transforms"]


def test_a_reference_gives_back_what_was_written(measured, results, tmp_path):
    found = read_measures(measured, results)
    write_measures(found, tmp_path / NAME)
    assert load_measures(tmp_path / NAME) == found
    assert len((tmp_path / NAME).read_text().splitlines()) == 2 + len(found)  # a line per run
    assert load_measures(tmp_path / "elsewhere" / NAME) == {}


@pytest.mark.parametrize("content", ["{", "[1]", '{"a": 1}'])
def test_a_damaged_file_is_one_line(content, tmp_path):
    (tmp_path / NAME).write_text(content)
    with pytest.raises(InputError, match=r"measures\.json: damaged"):
        load_measures(tmp_path / NAME)
