import pytest
from small_runs import plan_of

from capsbench.errors import InputError
from capsbench.run.cleaning import forget, found_orphans, refuse_running, remove, size
from capsbench.run.folder import RunFolder


@pytest.fixture
def study(tmp_path):
    """A study with its two runs, and what it once had: a variant, a protocol, a table, a plot, torn files."""
    plan = plan_of(tmp_path)
    here = tmp_path / "results/study"
    for name in (
        "runs/digits/v/seed0/run.yaml", "runs/digits/v/seed0/evaluations/accuracy.json",
        "runs/digits/v/seed0/evaluations/equivariance.json", "runs/digits/v/seed0/evaluations/equivariance.npz",
        "runs/digits/v/seed1/run.yaml", "runs/digits/v/seed2/run.yaml", "runs/digits/old/seed0/model.pt",
        "runs/digits/old/seed0/.model.pt.12.part",
        "tables/claims.csv", "tables/gone.csv", "plots/error_by_variant.png", "plots/gone.svg", "runs.csv",
        "plots/digits/error_by_variant.png", "plots/digits/gone.svg", "plots/old/error_by_variant.png",
        "plots/mine/fig1.png", "plots/mine/fig1.tex",
        ".study.json",
    ):  # fmt: skip
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("12345")
    return plan, tmp_path / "results"


def test_orphans_are_what_the_study_has_no_more(study):
    plan, results = study
    found = [str(path.relative_to(results / "study")) for path in found_orphans(plan, results, ["claims"])]
    assert found == [
        "runs/digits/old/seed0", "runs/digits/v/seed2",
        "runs/digits/v/seed0/evaluations/equivariance.json", "runs/digits/v/seed0/evaluations/equivariance.npz",
        "plots/old", "tables/gone.csv", "plots/gone.svg", "plots/digits/gone.svg",
    ]  # fmt: skip
    remove(results / "study" / name for name in found)
    assert found_orphans(plan, results, ["claims"]) == []
    assert (results / "study/runs/digits/v/seed0/run.yaml").exists()


def test_the_size_is_that_of_all_files(study):
    assert size(study[1] / "study/runs/digits/old") == 10
    assert size(study[1] / "study/runs.csv") == 5


@pytest.mark.parametrize("key", ["digits/v/seed0", "digits/old/seed0"])
def test_a_run_in_training_is_not_taken_away(study, key):
    plan, results = study
    folder = RunFolder.of(results, "study", key)
    refuse_running(results / "study")
    with folder.locked():
        for place in (results / "study", folder.path):
            with pytest.raises(InputError, match="is being trained now"):
                refuse_running(place)
        with pytest.raises(InputError, match="is being trained now"):
            forget([folder.path])
        if "old" in key:
            with pytest.raises(InputError, match="is being trained now"):
                found_orphans(plan, results, ["claims"])


def test_a_forgotten_run_has_no_files_and_is_marked(study):
    folder = RunFolder.of(study[1], "study", "digits/v/seed0")
    forget([folder.path])
    assert sorted(path.name for path in folder.path.iterdir() if path.name != ".lock") == [".again"]
    assert folder.again_path.exists()


@pytest.mark.parametrize("place", ["precious", "runs/2024/exp/notes", "runs/2024/exp/seed0"])
def test_nothing_else_is_ever_deleted(study, tmp_path, place):
    kept = tmp_path / place
    kept.mkdir(parents=True)
    (kept / "thesis.tex").write_text("")
    (kept / "run.yaml").write_text("")
    with pytest.raises(InputError, match="no run here"):
        forget([study[1] / "study/runs/digits/v/seed0", kept])
    assert (kept / "thesis.tex").exists()
    assert (study[1] / "study/runs/digits/v/seed0/run.yaml").exists()


def test_a_run_that_is_not_there_needs_no_deleting(study):
    with pytest.raises(InputError, match="nothing to delete"):
        forget([study[1] / "study/runs/digits/v/seed7"])
