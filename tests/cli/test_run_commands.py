"""status, plan, redo, clean: what they print, and what they leave."""

import io
import json
import re
from pathlib import Path

import pytest
from small_project import KEYS

from capsbench.cli import main
from capsbench.run.folder import RunFolder
from capsbench.run.owner import claim
from capsbench.run.record import first_record
from capsbench.study import load_plan


@pytest.fixture
def failed(project) -> RunFolder:
    """The first run of the study, failed."""
    run = load_plan(Path("configs/small.yaml")).runs[0]
    claim(load_plan(Path("configs/small.yaml")), Path("results"))
    folder = RunFolder.of(Path("results"), run.study, run.key)
    folder.write_record({**first_record(run), "status": "failed", "problem": "OSError: no space left"})
    return folder


def printed(capsys, *arguments: str, code: int = 0) -> str:
    assert main(arguments) == code
    captured = capsys.readouterr()
    return captured.out if code == 0 else captured.err


def test_status_counts_and_says_why(capsys, failed):
    out = printed(capsys, "status", "small")
    assert out.splitlines() == [
        "4 runs: 3 missing, 1 failed",
        "  failed  digits/capsnet-iterations1, seed 0: OSError: no space left",
        "time left: not known before a run has ended",
    ]


def test_status_lists_every_run_where_asked_seeds_together(capsys, failed):
    out = printed(capsys, "status", "small", "--runs")
    assert "  missing  digits/capsnet-iterations3, seeds 0, 1\n" in out


def test_status_for_programs(capsys, failed):
    states = json.loads(printed(capsys, "status", "small", "--json"))
    assert [state["key"] for state in states] == KEYS
    assert states[0]["state"] == "failed" and states[0]["trains"] is True
    assert set(states[0]) == {"key", "state", "why", "trains", "protocols", "seconds"}


def test_plan_lists_what_would_run(capsys, project):
    out = printed(capsys, "plan", "small", "--variant", "*3")
    assert out.startswith("2 runs to train and evaluate, 0 to evaluate only\n")
    assert "  missing  digits/capsnet-iterations3, seeds 0, 1\n" in out


def test_plan_prints_the_files_of_a_selection_in_one_line(capsys, project):
    Path("elsewhere").mkdir()
    out = printed(capsys, "plan", "small", "--variant", "*3", "--targets", "--results", "elsewhere")
    assert len(out.splitlines()) == 1
    names = [f"{name}.json" for name in ("accuracy", "familiar", "reconstruction")]
    files = ["model.pt", *(f"evaluations/{name}" for name in names)]
    assert out.split() == [f"elsewhere/small/runs/{key}/{name}" for key in KEYS[2:] for name in files]


def test_a_selection_of_nothing_is_bad_input(capsys, project):
    error = printed(capsys, "plan", "small", "--variant", "capsnt", code=2)
    assert "no variant 'capsnt'; did you mean capsnet?" in error


def test_redo_leaves_a_run_that_is_missing(capsys, failed):
    out = printed(capsys, "redo", str(failed.path))
    assert f"{failed.path}: deleted" in out
    assert printed(capsys, "status", "small").startswith("4 runs: 4 missing\n")


def test_clean_asks_first(capsys, failed, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert "nothing was deleted; --yes" in printed(capsys, "clean", "small", code=2)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))  # nobody to ask, as in a script
    assert "nothing was deleted; --yes" in printed(capsys, "clean", "small", code=2)
    assert failed.record_path.exists()
    out = printed(capsys, "clean", "small", "--yes")
    assert re.search(r"^results/small\ndeleted, 0\.0 MiB$", out, re.M)
    assert not Path("results/small").exists()
    assert printed(capsys, "clean", "small", "--yes") == "results/small: nothing to delete\n"


def test_clean_of_orphans_leaves_the_runs_of_the_study(capsys, failed):
    old = Path("results/small/runs/digits/old/seed0")
    old.mkdir(parents=True)
    (old / "model.pt").write_bytes(bytes(2**20))
    out = printed(capsys, "clean", "small", "--orphans", "--yes")
    assert out == f"{old}\ndeleted, 1.0 MiB\n"
    assert failed.record_path.exists() and not old.exists()


def test_evaluate_without_a_run_names_what_is_to_come_first(capsys, project):
    error = printed(capsys, "evaluate", "small", code=2)
    assert "no run is trained as the study has it now; 'capsbench status' says why" in error


def test_another_study_of_the_same_name_is_neither_shown_nor_deleted(capsys, failed):
    text = Path("configs/small.yaml").read_text()
    Path("other.yaml").write_text(text.replace("seeds: [0, 1]", "seeds: [0, 1]\ntraining: {epochs: 3}"))
    commands = ("status", "plan", "evaluate", "tables", "plots", "report", "track", "reference")
    for command in (["clean", "--yes"], *([name] for name in commands)):
        assert "another study of this name" in printed(capsys, *command, "other.yaml", code=2)
    assert failed.record_path.exists()


def test_a_folder_behind_a_link_is_not_deleted(capsys, failed):
    Path("results/small").rename("disk")
    Path("results/small").symlink_to(Path("disk").resolve(), target_is_directory=True)
    assert "is a link; delete what it points to yourself" in printed(capsys, "clean", "small", "--yes", code=2)
    assert Path("disk").exists()
