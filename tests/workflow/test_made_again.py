"""What is lost or replaced is made again, and what is only moved or touched is not."""

import json
import os
import shutil

import pytest
import yaml
from projects import LEAN

SAID = "made again, as it was cut, changed or replaced, or lost its run.yaml"
REPORT = {"tables": 1, "plots": 1, "study_report": 1, "all": 1}


@pytest.mark.slow
def test_a_renamed_study_file_reruns_nothing(project):
    (project.path / "study.yaml").rename(project.path / "renamed.yaml")
    done = project.snakemake("--dry-run", study="renamed.yaml")
    assert "Nothing to be done" in done.output, done.output


@pytest.mark.slow
def test_a_lost_table_is_rebuilt_without_training(project):
    (project.path / "results/tiny/tables/sabour-table1.tex").unlink()
    assert "train" not in project.planned()
    done = project.snakemake()
    assert done.returncode == 0, done.output
    assert (project.path / "results/tiny/tables/sabour-table1.tex").exists()


def test_a_run_that_is_lost_is_made_again(project):
    shutil.rmtree(project.path / "results/tiny/runs/digits/cnn")
    assert project.planned() == {"train": 1, "evaluate": 1, **REPORT}


@pytest.mark.slow
def test_a_run_that_lost_its_record_is_made_again_from_its_checkpoint(project):
    project.write_study(LEAN)
    folder = project.path / "results/tiny/runs/digits/caps/seed0"
    before, weights = yaml.safe_load((folder / "run.yaml").read_text()), (folder / "model.pt").read_bytes()
    (folder / "run.yaml").unlink()
    planned = project.snakemake("--dry-run")
    assert f"{SAID}: results/tiny/runs/digits/caps/seed0/model.pt" in planned.output
    for reading in ("--list-rules", "--unlock"):
        project.snakemake(reading)
    assert (folder / "model.pt").exists()  # what runs no job takes nothing away
    done = project.snakemake()
    assert done.returncode == 0, done.output
    assert "continues after epoch 1" in done.output
    assert (folder / "model.pt").read_bytes() == weights
    after = yaml.safe_load((folder / "run.yaml").read_text())
    assert {name: after[name] for name in ("started", "files")} == {name: before[name] for name in ("started", "files")}
    assert project.planned() == {}


@pytest.mark.slow
def test_raw_files_that_were_touched_rerun_nothing_and_others_rerun_what_rests_on_them(project, monkeypatch):
    monkeypatch.delenv("CAPSBENCH_DATA", raising=False)  # the raw files are those of the project
    raw, manifest = project.path / "data/digits/images", project.path / "results/tiny/data/digits.json"
    raw.parent.mkdir(parents=True)
    raw.touch()  # after the manifest was written
    assert project.planned() == {}
    manifest.write_text(manifest.read_text().replace('"fingerprint": "', '"fingerprint": "0', 1))
    os.utime(manifest, (1, 1))
    assert f"{SAID}: results/tiny/data/digits.json" in project.snakemake("--dry-run").output
    done = project.snakemake("results/tiny/data/digits.json")
    assert done.returncode == 0, done.output
    assert '"fingerprint": "0' not in manifest.read_text()
    assert project.planned() == {}  # since they were trained on what the files have now


@pytest.mark.slow
def test_an_evaluation_that_was_cut_is_measured_again(project):
    project.write_study(LEAN)
    path = project.path / "results/tiny/runs/digits/caps/seed0/evaluations/accuracy.json"
    whole = path.read_text()
    path.write_text(whole[:50])
    done = project.snakemake()
    assert done.returncode == 0, done.output
    assert json.loads(path.read_text())["error"] == json.loads(whole)["error"]
    assert project.planned() == {}


@pytest.mark.slow
def test_a_study_file_with_braces_in_its_name_ends_as_any_other(project):
    (project.path / "study.yaml").rename(project.path / "a{b}.yaml")
    (project.path / "results/tiny/report.html").unlink()
    done = project.snakemake(study="a{b}.yaml")
    assert done.returncode == 0, done.output
    assert "2 of 2 runs have a result" in done.output


@pytest.mark.slow
def test_a_gpu_that_is_not_there_is_missed_before_finished_runs_are_taken_away(project):
    text = (project.path / "study.yaml").read_text()
    project.write_study(text.replace("epochs: 1", "epochs: 2").replace("device: cpu", "device: cuda"))
    done = project.snakemake()
    assert done.returncode == 1
    assert "training.device is cuda, and there is no GPU here" in done.output
    assert len(list(project.path.glob("results/tiny/runs/*/*/*/model.pt"))) == 2
