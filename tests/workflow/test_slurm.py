import fcntl
import json
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from projects import Project
from slurm_cluster import NODES, Cluster, why_not

PROFILE = ("--workflow-profile", "profiles/slurm")
POLLING = (
    "--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "2", "--latency-wait", "20",
)  # fmt: skip
STUDY = """
name: nodes
seeds: [0, 1]
training: {epochs: 40, batch_size: 16, device: auto}
tracking: false
evaluations: [accuracy]
plots: []
experiments:
  digits: {data: {name: digits, train_images: 320, validation_images: 50}}
variants:
  caps: {model: capsnet, options: {conv_channels: 4, primary_types: 1, decoder: null}}
"""
SEEDS = ("0", "1")


@pytest.fixture
def cluster(tmp_path_factory, monkeypatch):
    if reason := why_not():
        pytest.skip(reason)
    with Path(tempfile.gettempdir(), "capsbench-slurm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time on a machine: its ports, /etc/slurm
        cluster = Cluster(tmp_path_factory.mktemp("slurm"))
        for name, value in cluster.environment.items():
            monkeypatch.setenv(name, value)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, list]:
    """What the runs of the study are when nothing happens to them, on this machine."""
    if reason := why_not():
        pytest.skip(reason)
    project = Project.create(tmp_path_factory.mktemp("undisturbed"), STUDY)
    done = project.snakemake("--until", "evaluate")
    assert done.returncode == 0, done.output
    return results(project)


def results(project: Project) -> dict[str, list]:
    """Return metrics but for times, weights and what the evaluation found, by run."""
    found = {}
    for seed in SEEDS:
        folder = project.path / f"results/nodes/runs/digits/caps/seed{seed}"
        header, *lines = (line.split(",") for line in (folder / "metrics.csv").read_text().splitlines())
        assert header[-2:] == ["seconds", "images_per_second"]
        errors = json.loads((folder / "evaluations/accuracy.json").read_text())["error"]
        found[seed] = [[line[:-2] for line in lines], (folder / "model.pt").read_bytes(), errors]
    return found


def wait_for(what: Callable[[], object], seconds: float = 120):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)
    return found


def training(cluster: Cluster, project: Project) -> dict[str, dict] | None:
    """Return the jobs in which both runs train, by seed, once each has a checkpoint; None before."""
    if len(list(project.path.glob("results/nodes/runs/*/*/*/checkpoint.pt"))) < len(SEEDS):
        return None
    jobs = {job["Comment"][-1]: job for job in cluster.jobs() if job["Comment"].startswith("rule_train")}
    assert sorted(jobs) == list(SEEDS) and all(job["JobState"] == "RUNNING" for job in jobs.values())
    return jobs


def finish(cluster: Cluster, process: subprocess.Popen) -> dict[str, dict]:
    """Wait for Snakemake -> all jobs that ran meanwhile, as they were last seen."""
    printed = []
    reader = threading.Thread(target=lambda: printed.extend(process.stdout))
    reader.start()
    seen = {}
    while process.poll() is None:
        seen |= {job["JobId"]: job for job in cluster.jobs()}
        time.sleep(0.2)
    reader.join()
    assert process.returncode == 0, "".join(printed) + cluster.log()
    return seen


def log_of(project: Project, seed: str) -> str:
    return (project.path / f"results/nodes/logs/train/digits/caps/seed{seed}.log").read_text()


@pytest.mark.slow
def test_a_lost_node_and_a_cancelled_job_lose_nothing(cluster, tmp_path, undisturbed):
    project = Project.create(tmp_path, STUDY, own_worker=True)
    process = project.start(*PROFILE, *POLLING)
    jobs = wait_for(lambda: training(cluster, project))
    assert {job["TresPerJob"] for job in jobs.values()} == {"gres:gpu:1"}  # for `auto`, and no GPU is here
    assert {(job["MinMemoryNode"], job["TimeLimit"]) for job in jobs.values()} == {("16000M", "00:31:00")}
    (lost, cancelled), nodes = SEEDS, {seed: job["NodeList"] for seed, job in jobs.items()}
    assert sorted(nodes.values()) == list(NODES)
    cluster.command("scontrol", "update", f"NodeName={nodes[lost]}", "State=DOWN", "Reason=test")
    cluster.command("scancel", jobs[cancelled]["JobId"])
    number = jobs[lost]["JobId"]
    wait_for(lambda: any(job["JobId"] == number and job["JobState"] == "PENDING" for job in cluster.jobs()))
    cluster.command("scontrol", "update", f"JobId={number}", "StartTime=now")  # Slurm would wait for two minutes
    later = finish(cluster, process)
    assert later[number]["Restarts"] == "1"  # Slurm's own doing
    assert later[number]["NodeList"] == nodes[cancelled]
    again = [job for job in later.values() if job["Comment"].endswith(f"rule_train_wildcards_digits_caps_{cancelled}")]
    assert {job["TimeLimit"] for job in again if job["JobId"] != jobs[cancelled]["JobId"]} == {"01:02:00"}
    for seed in SEEDS:
        assert re.search(r"continues after epoch \d", log_of(project, seed))
    assert results(project) == undisturbed
    assert "Nothing to be done" in project.snakemake(*PROFILE, *POLLING).output


@pytest.mark.slow
def test_a_killed_main_process_loses_nothing(cluster, tmp_path, undisturbed):
    project = Project.create(tmp_path, STUDY.replace("[accuracy]", "[accuracy, cost]"), own_worker=True)
    process = project.start(*PROFILE, *POLLING)
    wait_for(lambda: training(cluster, project))
    process.kill()
    process.communicate()
    assert project.snakemake(*PROFILE, "--unlock").returncode == 0
    later = finish(cluster, project.start(*PROFILE, *POLLING))
    assert results(project) == undisturbed
    # what measures time has its node for itself
    assert {job["OverSubscribe"] for job in later.values() if job["Comment"].endswith("cost")} == {"NO"}
