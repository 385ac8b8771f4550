"""What the jobs of a study ask a cluster for, as a dry run shows it: no cluster is needed."""

import re

import pytest
from projects import Project

STUDY = """
name: asking
seeds: [0]
training: {epochs: 5, batch_size: 32}
evaluations: [accuracy, linear_probe, cost]
experiments:
  digits: {data: {name: digits, train_images: 600, validation_images: 50}}
variants:
  auto: {model: capsnet, options: {conv_channels: 4, primary_types: 1}, training: {device: auto}}
  cuda: {model: capsnet, options: {conv_channels: 4, primary_types: 1}, training: {device: cuda}}
  cpu: {model: capsnet, options: {conv_channels: 4, primary_types: 1}, training: {device: cpu}}
"""
PROFILE = ("--workflow-profile", "profiles/slurm")
# 30 minutes, and twice the time of 5 or 10 epochs at 500 images per second on a GPU, and at 10 on a CPU
GPU = {"gpu": "1", "mem_mb": "16000"}
CPU = {"gpu": "0", "mem_mb": "16000"}


def asked(project: Project, *arguments: str) -> dict[tuple[str, str], dict[str, str]]:
    """(rule or protocol, variant) -> its resources, and threads."""
    done = project.snakemake("--dry-run", "--quiet", "host", *arguments)
    assert done.returncode == 0, done.output
    found = {}
    for job in re.findall(r"^rule (?:train|evaluate|measure):\n(?: .*\n)+", done.output, re.M):
        values = dict(word.split("=") for word in re.search(r"resources: (.*)", job)[1].split(", "))
        threads = re.search(r"threads: (\d+)", job)
        kept = ("gpu", "mem_mb", "runtime", "slurm_extra")
        protocol = re.search(r"protocol=(\w+)", job)
        rule = protocol[1] if protocol else re.match(r"rule (\w+)", job)[1]
        found[rule, re.search(r"variant=(\w+)", job)[1]] = {
            **{name: values[name] for name in kept if name in values},
            "threads": threads[1] if threads else "1",
        }
    assert len(found) == 12
    return found


@pytest.fixture
def project(tmp_path) -> Project:
    return Project.create(tmp_path, STUDY)


def test_a_cluster_is_asked_for_what_the_study_needs_whatever_machine_submits(project):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    found = asked(project, *PROFILE)
    for variant, resources, trains, evaluates in (
        ("auto", GPU, "31", "31"),
        ("cuda", GPU, "31", "31"),
        ("cpu", CPU, "40", "50"),
    ):
        evaluation = {**resources, "runtime": evaluates, "threads": "1"}
        assert found["train", variant] == {**resources, "runtime": trains, "threads": "1"}
        assert found["evaluate", variant] == found["linear_probe", variant] == evaluation
        assert found["cost", variant] == {**evaluation, "slurm_extra": "--exclusive"}  # it measures time


def test_a_cluster_without_gpus_and_a_limit_of_ones_own_are_a_line_each(project):
    pytest.importorskip("snakemake_executor_plugin_slurm")
    found = asked(project, *PROFILE, "--resources", "gpu=0", "--set-resources", "train:runtime=7")
    for variant in ("auto", "cpu"):
        assert found["train", variant] == {**CPU, "runtime": "7", "threads": "1"}
        assert found["evaluate", variant] == {**CPU, "runtime": "50", "threads": "1"}


def test_jobs_on_this_machine_ask_for_no_memory_and_no_time(project):
    found = asked(project)
    for (rule, variant), resources in found.items():
        gpu = "1" if variant == "cuda" else "0"
        assert resources == {"gpu": gpu, "mem_mb": "0", "threads": "2" if rule == "cost" else "1"}
    assert asked(project, "--jobs", "2") == found
