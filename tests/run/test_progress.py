import os
from contextlib import ExitStack

import pytest

from capsbench.run.folder import RunFolder
from capsbench.run.progress import COUNTED, count_named, counted, planned_runs, study_progress


@pytest.fixture
def study(tmp_path):
    """Writes records of runs; those that run are locked."""
    with ExitStack() as stack:

        def write(*runs: tuple[str, float | None], killed: bool = False):
            for number, (status, seconds) in enumerate(runs):
                record = {"status": status, "digest": "d"} | ({} if seconds is None else {"seconds": seconds})
                folder = RunFolder.of(tmp_path, "study", f"e/v/seed{number}")
                folder.write_record(record)
                if status == "running" and not killed:
                    stack.enter_context(folder.locked())
            return tmp_path / "study"

        yield write


def test_a_run_that_was_killed_does_not_run(study):
    found = study_progress(study(("ok", 60.0), ("running", None), killed=True), 3)
    assert (found.running, found.seconds_left) == (0, 120.0)


def test_a_study_that_has_not_begun(study):
    found = study_progress(study(), 4)
    assert (found.ended, found.running, found.failed, found.seconds_left) == (0, 0, 0, None)
    assert str(found) == "0 of 4 runs"


def test_runs_are_counted_by_status(study):
    found = study_progress(study(("ok", 60.0), ("diverged", 30.0), ("running", None), ("failed", None)), 9)
    assert (found.planned, found.ended, found.running, found.failed) == (9, 2, 1, 1)
    assert "2 of 9 runs, 1 running, 1 failed" in str(found)


def test_what_is_left_takes_as_long_as_what_has_ended_shared_by_those_that_run(study):
    """Six of nine are open, 45 s each, two at a time: 135 s."""
    found = study_progress(study(("ok", 60.0), ("ok", 30.0), ("running", None), ("running", None), ("failed", None)), 9)
    assert found.seconds_left == pytest.approx(45 * 6 / 2)
    assert str(found).endswith("about 2 min left")


@pytest.mark.parametrize(("seconds", "said"), [(5, "5 s"), (60, "1 min"), (3600 * 2, "2 h 0 min")])
def test_times_are_for_people(study, seconds, said):
    assert f"about {said} left" in str(study_progress(study(("ok", float(seconds)), ("running", None)), 2))


def test_runs_that_left_the_study_are_not_counted(study):
    """Seeds 0 and 1 are of a variant that the study no longer has; seed 4 has not begun."""
    folder = study(("ok", 600.0), ("failed", None), ("ok", 60.0), ("running", None))
    with planned_runs(f"e/v/seed{number}" for number in (2, 3, 4)):
        found = study_progress(folder, 3)
    assert (found.planned, found.ended, found.running, found.failed) == (3, 1, 1, 0)
    assert found.seconds_left == pytest.approx(60 * 2)
    assert study_progress(folder, 3).ended == 2  # nothing is known of the plan any more


def test_a_run_that_is_no_text_stops_no_other(tmp_path):
    (tmp_path / "study/runs/e/v/seed0").mkdir(parents=True)
    (tmp_path / "study/runs/e/v/seed0/run.yaml").write_bytes(b"status: ok\nseconds: 2.5\n\xff")
    assert study_progress(tmp_path / "study", 2).ended == 1


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["v/seed1/model.pt", "v/seed1/evaluations/accuracy.json", "w/seed0/model.pt"], ["e/v/seed1", "e/w/seed0"]),
        (["m/seed0/model.pt"], ["e/m/seed0", "e/v/seed0"]),  # with the run that it is matched to
        ([], []),
        (["v/seed1/model.pt", "../../../tables/cost.md"], []),
    ],
)
def test_a_workflow_that_is_asked_for_files_of_runs_counts_these(monkeypatch, targets, expected):
    monkeypatch.setenv(COUNTED, "of/another/call")
    matched = dict.fromkeys(["e/v/seed0", "e/v/seed1", "e/v/seed10", "e/w/seed0"]) | {"e/m/seed0": "e/v/seed0"}
    paths = [os.path.normpath(f"results/s/runs/e/{target}") for target in targets]
    count_named(paths, matched, "results/s")
    assert os.environ[COUNTED].split() == expected
    for key in matched:
        these = set(expected) if key in expected else set(matched)
        assert set(counted(list(matched), key)) == these


def test_more_runs_than_an_environment_can_name_are_all_counted(monkeypatch):
    monkeypatch.setenv(COUNTED, "")
    keys = [f"experiment/variant/seed{number}" for number in range(4000)]
    count_named([f"results/s/runs/{key}/model.pt" for key in keys[:3999]], dict.fromkeys(keys), "results/s")
    assert counted(keys, keys[0]) == keys
