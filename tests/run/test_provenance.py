"""What run.yaml says of the study file, of memory and of the images that were drawn."""

import subprocess
from pathlib import Path

import pytest
import torch
from small_runs import go, plan_of, run_of

from capsbench.models import build_model
from capsbench.run import provenance
from capsbench.run.multiply_adds import count_multiply_adds
from capsbench.run.record import first_record

CPU = torch.device("cpu")


@pytest.fixture
def repository(tmp_path) -> Path:
    """A git repository with a committed study.yaml."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "study.yaml").write_text("name: a")
    (folder / "other.yaml").write_text("name: b")
    git(folder, "init", "-q")
    git(folder, "add", "study.yaml")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "-m", "a")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit_of(path: Path) -> str:
    with provenance.study_file(path):
        return provenance.study_commit()


def test_the_commit_of_a_study_file_says_whether_the_file_differs(repository):
    head = git(repository, "rev-parse", "HEAD")
    assert commit_of(repository / "study.yaml") == head  # an untracked file beside it does not matter
    assert commit_of(repository / "other.yaml") == f"{head}+changes"
    (repository / "study.yaml").write_text("name: changed")
    assert commit_of(repository / "study.yaml") == f"{head}+changes"


def test_a_study_file_that_git_ignores_is_not_committed(repository):
    (repository / ".git" / "info" / "exclude").write_text("other.yaml\n")
    assert commit_of(repository / "other.yaml").endswith("+changes")


def test_outside_git_the_commit_of_a_study_file_is_unknown(tmp_path):
    (tmp_path / "study.yaml").write_text("name: a")
    assert commit_of(tmp_path / "study.yaml") == "unknown"
    assert provenance.study_commit() == "unknown"  # no file is known


def test_a_record_names_the_commit_of_its_study_file(repository, tmp_path):
    run = run_of(tmp_path)
    with provenance.study_file(repository / "study.yaml"):
        assert first_record(run)["study_commit"] == git(repository, "rev-parse", "HEAD")
    assert first_record(run)["study_commit"] == "unknown"


def test_a_finished_run_names_its_peak_memory(tmp_path):
    record = go(run_of(tmp_path, epochs=1), tmp_path / "r")[1].read_record()
    assert record["peak_memory_of"] == "the whole process"
    assert 100 < record["peak_memory_mb"] < 100_000  # torch alone takes hundreds


def test_peak_memory_is_that_of_large_arrays(tmp_path):
    before, after = {}, {}
    provenance.note_peak_memory(before, CPU)
    held = torch.ones(int(before["peak_memory_mb"]) + 300, 2**18)  # 1 MB a row: surely above the peak
    provenance.note_peak_memory(after, CPU)
    assert after["peak_memory_mb"] - before["peak_memory_mb"] > 200
    del held


def test_a_finished_run_notes_the_multiply_adds_that_are_counted_elsewhere(tmp_path):
    run = run_of(tmp_path, epochs=1)
    record = go(run, tmp_path / "r")[1].read_record()
    model = build_model(run.model, run.data.image_shape, 10, **run.options)
    assert record["multiply_adds"] == count_multiply_adds(model, run.data.image_shape) > 1e5


def test_counting_draws_no_random_number_and_stops_no_run(tmp_path):
    run, record = run_of(tmp_path), {}
    torch.manual_seed(1)
    provenance.note_multiply_adds(record, run)
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))
    assert record.keys() == {"multiply_adds"}
    wrong = run.model_copy(update={"options": run.options | {"nosuch": 1}})
    provenance.note_multiply_adds(none := {}, wrong)
    assert none == {}


def test_a_fingerprint_of_the_training_images_follows_the_draw(tmp_path):
    def shown(number, **data):
        run = plan_of(tmp_path, data=data, epochs=1).runs[0]
        return go(run, tmp_path / str(number))[1].read_record()["data"]["shown"]

    first, again = shown(0), shown(1)
    assert first == again
    other = shown(2, split_seed=1)
    assert other["train"] != first["train"] and other["validation"] != first["validation"]
    fewer = shown(3, train_images=64)
    assert fewer["train"] != first["train"]
    assert fewer["validation"] == first["validation"]  # drawn before the cut
    assert "validation" not in shown(4, validation_images=0)


def test_split_per_seed_gives_each_seed_its_own_images(tmp_path):
    plan = plan_of(tmp_path, data={"split": "per_seed"}, epochs=1)
    records = [go(run, tmp_path / "r")[1].read_record() for run in plan.runs]
    assert [record["config"]["data"]["split_seed"] for record in records] == [0, 1]
    assert records[0]["data"]["shown"]["train"] != records[1]["data"]["shown"]["train"]
    # seed 1 is trained on what split_seed 1 draws
    fixed = plan_of(tmp_path, data={"split_seed": 1}, epochs=1).runs[1]
    assert go(fixed, tmp_path / "s")[1].read_record()["data"]["shown"] == records[1]["data"]["shown"]
