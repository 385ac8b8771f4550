from contextlib import ExitStack

import pytest

from capsbench.run.folder import RunFolder
from capsbench.run.progress import COUNTED, counted, keys_named, planned_runs, study_progress


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


def test_a_call_that_names_files_of_runs_counts_these(monkeypatch):
    keys = ["e/v/seed0", "e/v/seed1", "e/v/seed10", "e/w/seed0"]
    words = ["snakemake", "results/s/runs/e/v/seed1/model.pt", "results/s/runs/e/w/seed0/evaluations/accuracy.json"]
    words.append("results/other/runs/e/v/seed0/model.pt")
    assert keys_named(words, keys, "results/s") == ["e/v/seed1", "e/w/seed0"]
    monkeypatch.setenv(COUNTED, "e/v/seed1 e/w/seed0 e/w/seed9")
    assert counted(keys) == ["e/v/seed1", "e/w/seed0"]


@pytest.mark.parametrize("said", ["", "of/another/study"])
def test_a_call_that_names_none_counts_all(monkeypatch, said):
    assert keys_named(["snakemake", "--cores", "2", "all"], ["e/v/seed0"], "results/s") == []
    monkeypatch.setenv(COUNTED, said)
    assert counted(["e/v/seed0"]) == ["e/v/seed0"]
