"""A part of a study is made alone, and what one study has trained another one takes."""

import json
import re
import shlex
import subprocess

import pytest
from projects import LEAN, ROOT, Project


@pytest.mark.slow
def test_a_part_of_a_study_is_made_alone_and_its_copy_trains_only_what_is_new(tmp_path):
    study = LEAN.replace("seeds: [0]", "seeds: [0, 1]")
    project = Project.create(tmp_path, study)
    targets = project.capsbench("plan", "study.yaml", "--variant", "caps", "--targets").split()
    done = project.snakemake(*targets)
    assert done.returncode == 0, done.output
    assert re.search(r"of 2 runs, [12] running", done.output)  # progress counts what was asked for
    assert project.capsbench("status", "study.yaml").startswith("4 runs: 2 done, 2 missing\n")

    (project.path / "copy.yaml").write_text(study.replace("name: tiny", "name: copy"))
    done = project.snakemake(study="copy.yaml")
    assert done.returncode == 0, done.output
    assert "digits/caps/seed0: trained by another study already" in done.output
    assert project.capsbench("status", "copy.yaml") == "4 runs: 4 done\n"
    assert "Nothing to be done" in project.snakemake("--dry-run", study="copy.yaml").output  # copies are not outdated
    found = project.path.glob("results/*/runs/digits/caps/seed0/evaluations/accuracy.json")
    errors = [json.loads(path.read_text())["error"] for path in found]
    assert len(errors) == 2 and errors[0] == errors[1]


@pytest.mark.slow
def test_make_takes_a_selection(tmp_path):
    command = ["make", "--dry-run", "study", "ONLY=--variant 'caps*'", "STUDY=configs/cpu.yaml"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    expected = (
        "targets=$(capsbench plan 'configs/cpu.yaml' --variant 'caps*' --targets) && "
        "snakemake --cores all $targets --configfile 'configs/cpu.yaml'"
    )
    assert expected in said


def test_the_name_of_a_study_is_no_command_for_make():
    command = ["make", "--dry-run", "study", "STUDY=it's; touch INJECTED; #.yaml"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    (line,) = [line for line in said.splitlines() if "--configfile" in line]
    assert shlex.split(line)[-1] == "it's; touch INJECTED; #.yaml"
