import fcntl
import json
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from projects import Project
from slurm_cluster import Cluster, why_not

PROFILE = ("--workflow-profile", "profiles/slurm")
POLLING = (
    "--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "2", "--latency-wait", "20",
)  # fmt: skip
STUDY = """
name: nodes
seeds: [0, 1]
training: {epochs: 30, batch_size: 16, device: auto}
tracking: false
plots: []
experiments:
  digits: {data: {name: digits, train_images: 320, validation_images: 50}}
variants:
  caps: {model: capsnet, options: {conv_channels: 4, primary_types: 1, decoder: null}}
"""
RUNS = ("seed0", "seed1")


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    if reason := why_not():
        pytest.skip(reason)
    with Path(tempfile.gettempdir(), "capsbench-slurm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time on a machine: its ports, /etc/slurm
        cluster = Cluster(tmp_path / "slurm")
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, list[dict]]:
    """What the runs of the study are when nothing happens to them, on this machine."""
    if reason := why_not():
        pytest.skip(reason)
    project = Project.create(tmp_path_factory.mktemp("undisturbed"), STUDY)
    done = project.snakemake()
    assert done.returncode == 0, done.output
    return results(project)


def results(project: Project) -> dict[str, list]:
    """Return metrics but for times, and the evaluation, by run."""
    found = {}
    for seed in RUNS:
        folder = project.path / "results/nodes/runs/digits/caps" / seed
        header, *lines = (line.split(",") for line in (folder / "metrics.csv").read_text().splitlines())
        times = {"seconds", "images_per_second"}
        metrics = [{k: v for k, v in zip(header, line, strict=True) if k not in times} for line in lines]
        found[seed] = [metrics, json.loads((folder / "evaluations/accuracy.json").read_text())]
    return found


def wait_for(what: Callable[[], object], seconds: float = 90):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)
    return found


def trainings(cluster: Cluster) -> dict[str, dict]:
    """Return the jobs that train now, by seed; a checkpoint is there."""
    jobs = cluster.jobs()
    return {job["Comment"][-1]: job for job in jobs}
