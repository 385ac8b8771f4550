"""Which GPUs the jobs of a study ask for, and how many share one."""

import re

import pytest
from projects import STUDY


@pytest.mark.slow
@pytest.mark.parametrize(("device", "requests"), [("cuda", {"1"}), ("cpu", {"0"}), ("auto", {"0"})])
def test_gpus_are_asked_for_by_the_study_and_not_by_the_machine_that_submits(project, device, requests):
    project.write_study(STUDY.replace("device: cpu", f"device: {device}").replace("seeds: [0]", "seeds: [1]"))
    output = project.snakemake("--dry-run", "--quiet", "host").output
    for rule in ("train", "evaluate"):
        jobs = [job for job in output.split("\nrule ")[1:] if job.startswith(f"{rule}:")]
        assert len(jobs) == 2
        assert {re.search(r"gpu=(\d)", job)[1] if "gpu=" in job else "0" for job in jobs} == requests


@pytest.mark.slow
@pytest.mark.parametrize(("given", "trainings"), [([], 2), (["gpu_share=3"], 6), (["gpu=5", "gpu_share=3"], 5)])
def test_each_gpu_takes_as_many_trainings_as_its_share(project, given, trainings):
    (project.path / "Snakefile").open("a").write('print("gpu:", getattr(GIVEN["gpu"], "value", GIVEN["gpu"]))\n')
    resources = ["--resources", *given] if given else []
    output = project.snakemake("--dry-run", *resources, gpus="0,1").output
    assert f"\ngpu: {trainings}\n" in f"\n{output}"
