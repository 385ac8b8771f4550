"""A workflow that is killed with all that it started, at any moment, ends as one that was not."""

import json
import os
import random
import shutil
import signal
import time

import pytest
from projects import LEAN, Project

KILLS = 2


def results_of(project: Project) -> dict[str, object]:
    """The weights, and what was measured, of all runs."""
    made: dict[str, object] = {}
    for path in sorted(project.path.glob("results/tiny/runs/*/*/*/**/*.*")):
        if path.name in ("model.pt", "predictions.npz"):
            made[str(path.relative_to(project.path))] = path.read_bytes()
        elif path.suffix == ".json":
            found = json.loads(path.read_text())
            later = ("training_started", "checksum", "commit")
            made[str(path.relative_to(project.path))] = {k: v for k, v in found.items() if k not in later}
    return made


@pytest.mark.slow
def test_a_series_of_kills_of_everything_changes_nothing(finished, tmp_path):
    rng, killed = random.Random(20261122), 0
    project = finished.copy(tmp_path, own_worker=True)
    shutil.rmtree(project.path / "results")
    shutil.rmtree(project.path / ".snakemake")
    project.write_study(LEAN)
    for _ in range(KILLS):
        process = project.start(own_group=True)
        time.sleep(rng.uniform(2, 8))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        assert project.snakemake("--unlock").returncode == 0
    done = project.snakemake()
    assert done.returncode == 0, done.output
    assert killed
    assert results_of(project) == results_of(finished)
    assert project.planned() == {}


@pytest.mark.slow
def test_an_interrupted_call_does_not_exit_as_a_finished_one_and_the_next_goes_on(tmp_path):
    project = Project.create(tmp_path, LEAN.replace("epochs: 1", "epochs: 60"), own_worker=True)
    process = project.start(own_group=True)
    folder = tmp_path / "results/tiny/runs/digits"
    deadline = time.monotonic() + 120
    while not list(folder.glob("*/*/checkpoint.pt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # Ctrl-C reaches the whole group
    output = process.communicate()[0]
    assert process.returncode not in (0, None), output
    begun = [path.parent for path in folder.glob("*/*/checkpoint.pt")]
    assert begun and not any((path / "model.pt").exists() for path in begun), output
    status = project.capsbench("status", "study.yaml", "--runs")
    assert "interrupted" in status, status
    assert project.planned()["train"] == 2
