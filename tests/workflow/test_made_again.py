"""What is lost or replaced is made again, and what is only moved or touched is not."""

import os
import shutil

import pytest
import yaml

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
@pytest.mark.parametrize("left", ["", "status: ok\ndigest: 12\nfiles: {mod"])
def test_a_run_that_lost_its_record_is_made_again_from_its_checkpoint(project, left):
    folder = project.path / "results/tiny/runs/digits/caps/seed0"
    before, weights = yaml.safe_load((folder / "run.yaml").read_text()), (folder / "model.pt").read_bytes()
    (folder / "run.yaml").unlink()
    if left:  # cut
        (folder / "run.yaml").write_text(left)
    planned = project.snakemake("--dry-run")
    assert "is lost, so that the run is made again: results/tiny/runs/digits/caps/seed0" in planned.output
    assert (folder / "model.pt").exists()  # a dry run takes nothing away
    done = project.snakemake()
    assert done.returncode == 0, done.output
    assert "continues after epoch 1" in done.output
    assert (folder / "model.pt").read_bytes() == weights
    after = yaml.safe_load((folder / "run.yaml").read_text())
    assert {name: after[name] for name in ("started", "files")} == {name: before[name] for name in ("started", "files")}
    assert project.planned() == {}


@pytest.mark.slow
def test_raw_files_that_were_touched_rerun_nothing_and_others_rerun_what_rests_on_them(project):
    raw, manifest = project.path / "data/digits/images", project.path / "results/tiny/data/digits.json"
    raw.parent.mkdir(parents=True)
    raw.touch()  # after the manifest was written
    assert project.planned() == {}
    manifest.write_text(manifest.read_text().replace('"fingerprint": "', '"fingerprint": "0', 1))
    os.utime(manifest, (1, 1))
    assert "digits: its raw files were replaced, so that it is made again" in project.snakemake("--dry-run").output
    done = project.snakemake("results/tiny/data/digits.json")
    assert done.returncode == 0, done.output
    assert '"fingerprint": "0' not in manifest.read_text()
    assert project.planned() == {}  # since they were trained on what the files have now
