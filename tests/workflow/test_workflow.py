import json
import os
import re
import resource
import subprocess
import sys
import time

import pytest
import torch._inductor.runtime.cache_dir_utils
import yaml
from projects import LEAN, STUDY, Project

from capsbench.cli.worker import _THREADS, VARIABLE, run_in_worker
from capsbench.run.owner import claim
from capsbench.study import load_plan

WITHOUT_PLOTS = {"tables": 1, "study_report": 1, "all": 1}
REPORT = {"plots": 1, **WITHOUT_PLOTS}


def test_a_study_leaves_what_the_house_promises(finished):
    results = finished.path / "results/tiny"
    for run in ("digits/caps/seed0", "digits/cnn/seed0"):
        for name in ("run.yaml", "metrics.csv", "model.pt", "predictions.npz", "evaluations/accuracy.json"):
            assert (results / "runs" / run / name).stat().st_size > 0
    for ending in ("csv", "md", "tex"):
        assert (results / f"tables/sabour-table1.{ending}").exists()
    for plot in ("learning_curves", "error_by_variant", "accuracy_cost", "reconstructions"):
        assert (results / f"plots/{plot}.png").exists()
        assert (results / f"plots/{plot}.svg").exists()
    assert (results / "runs.csv").exists()
    assert (results / "report.html").exists()
    assert (finished.path / "results/mlflow.db").exists()


def test_a_study_shows_its_progress_and_ends_with_a_summary(finished):
    assert "of 2 runs, " in finished.said
    assert "epoch 1/1  loss" in finished.said
    end = finished.said[finished.said.index("digits: handwritten digits") :]
    assert "2 of 2 runs have a result" in end
    assert "results/tiny/report.html" in end
    page = "http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning"
    assert re.search(rf"/results/mlflow.db: 2 written\n'make ui', then {re.escape(page)}\n", end)
    assert max(map(len, end[end.index("network") : end.index("2 of 2 runs")].splitlines())) <= 100


def test_protocols_that_ask_nothing_of_the_network_are_in_the_log_alone(finished):
    assert len(re.findall(r"^digits/(?:caps|cnn)/seed0  ", finished.said, re.M)) == 2  # the test errors
    log = (finished.path / "results/tiny/logs/evaluate/digits/cnn/seed0.log").read_text()
    assert "digits/cnn/seed0  familiar: not applicable: digits has no familiar test" in log
    assert re.search(r"^digits/cnn/seed0  test error \d", log, re.M)


def test_only_the_runs_say_how_far_a_study_is(finished):
    for of_snakemake in ("Select jobs", "Execute ", "Finished job", "steps (", "Using shell"):
        assert of_snakemake not in finished.said
    assert not re.search(r"^\[\w{3} \w{3} +\d+ [\d:]+ \d{4}\]", finished.said, re.M)  # its timestamps


def test_snakemake_says_again_what_it_does_when_asked(project):
    (project.path / "results/tiny/tables/sabour-table1.tex").unlink()
    done = project.snakemake("--quiet", "host")
    assert done.returncode == 0
    assert [word for word in ("rule tables:", "Finished job", "steps (100%) done") if word not in done.output] == []


def test_a_dry_run_lists_what_would_run(project):
    (project.path / "results/tiny/tables/sabour-table1.tex").unlink()
    output = project.snakemake("--dry-run").output
    assert re.search(r"^tables +1$", output, re.M)
    assert "dry-run" in output


def test_a_second_call_does_nothing(project):
    assert project.planned() == {}
    process = project.start()  # a process of its own, with another order of sets than that of the first call
    output = process.communicate()[0]
    assert process.returncode == 0
    assert "Nothing to be done" in output


def test_another_protocol_trains_nothing(project):
    protocols = "evaluations: [accuracy, familiar, reconstruction, {}]\n"
    project.write_study(STUDY + protocols.format("linear_probe"))
    assert project.planned() == {"measure": 2, **REPORT}
    project.write_study(
        STUDY.replace("digits:\n    data: {", "digits:\n    evaluations: [linear_probe]\n    data: {", 1)
    )
    assert project.planned() == {"measure": 2, **REPORT}
    project.write_study(STUDY + protocols.format("confusion"))  # from scores, as accuracy: one pass serves both
    assert project.planned() == {"evaluate": 2, **REPORT}


def test_a_protocol_waits_for_the_network_that_it_takes_beside(project):
    project.write_study(STUDY + "evaluations: [accuracy, {name: adversarial, transfer_from: cnn}]\n")
    (project.path / "results/tiny/runs/digits/cnn/seed0/model.pt").unlink()
    output = project.snakemake("--dry-run", "--quiet", "host").output
    job = next(part for part in output.split("rule ") if part.startswith("measure") and "digits/caps" in part)
    assert "digits/cnn/seed0/model.pt" in job
    project.write_study(STUDY + "evaluations: [accuracy, {name: adversarial, transfer_from: cmn}]\n")
    assert "no variant 'cmn'; did you mean cnn?" in project.snakemake("--dry-run").output


def test_a_protocol_that_measures_time_has_all_cores(project):
    project.write_study(STUDY + "evaluations: [accuracy, linear_probe, cost]\n")
    output = project.snakemake("--dry-run", "--quiet", "host").output
    jobs = [part for part in output.split("rule ") if part.startswith("measure")]
    found = sorted(("/cost.json" in job, "threads: 2" in job) for job in jobs)  # of two cores
    assert found == [(False, False)] * 2 + [(True, True)] * 2


@pytest.mark.slow
def test_changing_one_variant_reruns_it_and_what_depends_on_it(project):
    project.write_study(STUDY.replace("widths: [4, 16]", "widths: [8, 16]"))
    assert project.planned() == {"train": 1, "evaluate": 1, **REPORT}


@pytest.mark.slow
def test_adding_a_variant_reruns_no_other(project):
    project.write_study(
        STUDY + "  more: {model: cnn_matched, options: {matched_to: {name: capsnet, conv_channels: 4}}}\n"
    )
    assert project.planned() == {"train": 1, "evaluate": 1, **REPORT}


def edit(project, name, old, new):
    path = project.with_package().path / "capsbench" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new", "planned"),
    [
        ("analysis/collect.py", 'max(record["seconds"], 1e-9)', 'max(record["seconds"], 1e-8)', REPORT),
        ("analysis/report.html.j2", "<h2>provenance</h2>", "<h2>Provenance</h2>", {"study_report": 1, "all": 1}),
        ("analysis/published.yaml", 'printed: "0.39"', 'printed: "0.38"', REPORT),
        ("evaluation/accuracy.py", "100 * errors / images", "101 * errors / images", {"evaluate": 2, **REPORT}),
        ("losses.py", "(1 - targets) * (lengths", "(2 - targets) * (lengths", {"train": 1, "evaluate": 1, **REPORT}),
        ("losses.py", "torch.ones_like(costs)", "2 * torch.ones_like(costs)", {}),  # of a loss that no run uses
        (
            "run/train.py",
            "STEPS_BETWEEN_CHECKS = 50",
            "STEPS_BETWEEN_CHECKS = 49",
            {"train": 2, "evaluate": 2, **REPORT},
        ),
        ("run/tracking.py", "SECONDS_TO_CLOSE = 120.0", "SECONDS_TO_CLOSE = 121.0", {}),
    ],
)
def test_an_edit_reruns_what_rests_on_it(project, name, old, new, planned):
    edit(project, name, old, new)
    assert project.planned() == planned


@pytest.mark.slow
def test_prose_in_every_file_plans_nothing_and_voids_no_checkpoint(project):
    for path in (project.with_package().path / "capsbench").rglob("*.py"):
        path.write_text(re.sub(r'"""(?=[A-Z])', '"""In other words: ', path.read_text()) + "\n\n# an edit\n")
    for name in ("published.yaml",):
        path = project.path / "capsbench/analysis" / name
        path.write_text("# a comment\n" + path.read_text())
    assert project.planned() == {}
    folder = project.path / "results/tiny/runs/digits/caps/seed0"
    (folder / "model.pt").unlink()  # the run is made again, from a checkpoint that still counts
    done = project.snakemake()
    assert done.returncode == 0, done.output
    assert "continues after epoch 1" in done.output
    assert "afresh" not in done.output


@pytest.mark.slow
def test_touching_a_source_reruns_nothing(project):
    time.sleep(0.01)
    (project.with_package().path / "capsbench/run/train.py").touch()
    assert project.planned() == {}


BROKEN = '''
"""A network that fails."""
import torch
from torch import nn
from capsbench.registry import MODELS, Count
@MODELS.register("broken")
class Broken(nn.Module):
    """Takes no memory on the meta device, and too much on a real one."""
    def __init__(self, image_shape, num_classes, *, width: Count = 1):
        super().__init__()
        if torch.empty(1).is_cpu:
            raise RuntimeError("CUDA out of memory")
'''


@pytest.mark.slow
def test_a_run_that_fails_leaves_the_rest_going_and_is_marked(tmp_path):
    study = LEAN.replace("variants:", "variants:\n  broken: {model: broken}")
    project = Project.create(tmp_path, study.replace("epochs: 1", "epochs: 1, learning_rate: 1.0e+30"))
    (project.with_package().path / "capsbench/models/broken.py").write_text(BROKEN)
    done = project.snakemake()
    assert done.returncode == 1
    assert "out of memory" in done.output
    assert "failed: train; log: results/tiny/logs/train/digits/broken/seed0.log" in done.output
    assert "out of memory" in (project.path / "results/tiny/logs/train/digits/broken/seed0.log").read_text()
    results = project.path / "results/tiny"
    assert "status: failed" in (results / "runs/digits/broken/seed0/run.yaml").read_text()
    table = (results / "tables/sabour-table1.md").read_text().splitlines()
    assert any("failed" in row and "0 of 1, 1 failed" in row for row in table)
    # the others went on, and diverged, which is a result and not a failure
    assert sum("0 of 1, 1 diverged" in row for row in table) == 2
    assert len(list(results.glob("runs/*/*/*/evaluations/accuracy.json"))) == 2
    # the next call makes it again, though the tables are there, and fails again
    assert project.planned() == {"train": 1, "evaluate": 1, **WITHOUT_PLOTS}
    again = project.snakemake()
    assert again.returncode == 1 and "out of memory" in again.output


@pytest.mark.slow
def test_a_killed_snakemake_can_be_started_again_while_its_trainers_live_on(tmp_path):
    project = Project.create(tmp_path, LEAN.replace("epochs: 1", "epochs: 40"), own_worker=True)
    first = project.start()
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("results/tiny/runs/*/*/*/checkpoint.pt")) and time.monotonic() < deadline:
        time.sleep(0.05)
    first.kill()  # its trainers go on
    first.wait()
    assert project.snakemake("--unlock").returncode == 0
    done = project.snakemake()
    assert done.returncode == 0, done.output
    for path in tmp_path.glob("results/tiny/runs/*/*/*"):
        assert "status: ok" in (path / "run.yaml").read_text()
        assert [line.split(",")[0] for line in (path / "metrics.csv").read_text().split()[1:]] == [
            str(epoch) for epoch in range(1, 41)
        ]
    assert "1 of 1" in done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (STUDY.replace("epochs: 1", "epochs: 0"), "study.yaml: training.epochs: 0 is not allowed"),
        (STUDY.replace("model: capsnet", "model: capsnte"), "no model 'capsnte'"),
        (STUDY.replace("epochs: 1", "epochs: 1, match: caps"), "study.yaml: training.match: the test of digits"),
    ],
)
def test_a_wrong_study_stops_before_the_first_job_with_the_reason(project, text, message):
    project.write_study(text)
    done = project.snakemake()
    assert done.returncode == 1
    assert message in done.output
    assert "Traceback" not in done.output
    assert len(done.output.strip().splitlines()) < 6


def test_a_study_is_one_file(project):
    project.write_study(STUDY)
    done = project.snakemake("--dry-run", more=["configs/quick.yaml"])
    assert done.returncode == 1
    assert "one study at a time" in done.output
    done = project.snakemake("--config", "name=other", "--dry-run")
    assert done.returncode == 1
    assert "one study at a time" in done.output


@pytest.mark.slow
def test_a_gpu_that_is_not_there_is_missed_before_the_first_job(project):
    project.write_study(STUDY.replace("device: cpu", "device: cuda").replace("seeds: [0]", "seeds: [1]"))
    done = project.snakemake()
    assert done.returncode == 1
    assert "study.yaml: training.device is cuda, and there is no GPU here" in done.output
    assert not (project.path / "results/tiny/runs/digits/caps/seed1").exists()


def test_another_study_of_the_same_name_is_refused_before_the_first_job(project):
    claim(load_plan(project.path / "study.yaml"), project.path / "results")
    (project.path / "other.yaml").write_text(STUDY.replace("epochs: 1", "epochs: 2"))
    done = project.snakemake("--dry-run", study="other.yaml")
    assert done.returncode == 1
    assert "other.yaml: results/tiny has the runs of another study of this name" in done.output
    assert project.planned() == {}


def test_the_name_of_a_study_file_is_no_command(project):
    name = "x; touch INJECTED; #.yaml"
    (project.path / name).write_text(STUDY.replace("name: tiny", "name: odd"))
    done = project.snakemake("--until", "data", study=name)
    assert done.returncode == 0, done.output
    assert (project.path / "results/odd/data/digits.json").exists()
    assert not (project.path / "INJECTED").exists()


@pytest.mark.slow
def test_plain_snakemake_plans_the_quick_study(project):
    command = [sys.executable, "-m", "snakemake", "--dry-run"]
    done = subprocess.run(command, cwd=project.path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^train +33$", done.stdout + done.stderr, re.M)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "trainings"),
    [("configs/diagnostics.yaml", 1390), ("configs/paper.yaml", 265)],  # the largest, and the one without its data
)
def test_the_shipped_studies_are_planned_in_seconds(project, study, trainings):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    process = project.start("--dry-run", "--quiet", "host", study=study)
    output = process.communicate()[0]
    assert re.search(rf"^train +{trainings}$", output, re.M)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 30  # of a processor, however busy


@pytest.mark.slow
def test_training_a_finished_run_by_hand_loses_nothing(project):
    folder = project.path / "results/tiny/runs/digits/caps/seed0"
    before = {path.name: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    command = [sys.executable, "-m", "capsbench", "train", "study.yaml", "digits/caps/seed0"]
    done = subprocess.run(command, cwd=project.path, capture_output=True, text=True, check=True)
    assert "already finished (ok)" in done.stdout
    assert {path.name: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()} == before
    assert project.planned() == {}


MATCHED = """
name: matched
seeds: [0, 1]
training: {epochs: 1, batch_size: 64, device: cpu}
tracking: false
plots: []
experiments:
  moved: {data: {name: affdigits, train_images: 320, options: {transforms_per_image: 1}}}
variants:
  caps:
    model: capsnet
    options: {conv_channels: 4, primary_types: 1, decoder: null}
    training: {match: cnn, match_every: 2, steps: 12}
  cnn:
    model: cnn_matched
    options: {matched_to: {name: resnet20, widths: [4, 16]}}
    training: {epochs: 20, learning_rate: 0.003}
"""


@pytest.mark.slow
def test_a_run_trains_after_the_evaluation_of_the_one_that_it_is_matched_to(tmp_path):
    project = Project.create(tmp_path, MATCHED)
    done = project.snakemake()
    assert done.returncode == 0, done.output
    runs = project.path / "results/matched/runs/moved"
    for seed in (0, 1):
        record = yaml.safe_load((runs / f"caps/seed{seed}/run.yaml").read_text())
        error = json.loads((runs / f"cnn/seed{seed}/evaluations/familiar.json").read_text())["error"]
        assert record["match"]["run"] == f"moved/cnn/seed{seed}"
        assert record["match"]["familiar_error"] == error
        assert record["match"]["reached"] is (record["match"]["familiar_error_here"] <= error + 0.1)
        assert record["steps"] % 2 == 0
    assert project.planned() == {}
    project.write_study(MATCHED.replace("primary_types: 1", "primary_types: 2"))
    assert project.planned() == {"train": 2, "evaluate": 2, **WITHOUT_PLOTS}
    project.write_study(MATCHED.replace("widths: [4, 16]", "widths: [8, 16]"))  # of the matched ones: both change
    assert project.planned() == {"train": 4, "evaluate": 4, **WITHOUT_PLOTS}


@pytest.mark.slow
def test_a_run_matched_to_one_that_diverged_fails_in_one_line_and_stops_no_other(tmp_path):
    study = MATCHED.replace("learning_rate: 0.003", "learning_rate: 1.0e+30").replace("[0, 1]", "[0]")
    project = Project.create(tmp_path, study)
    done = project.snakemake()
    assert done.returncode == 1
    assert "moved/caps/seed0: matched to moved/cnn/seed0, which diverged" in done.output
    record = yaml.safe_load((project.path / "results/matched/runs/moved/caps/seed0/run.yaml").read_text())
    assert record["status"] == "failed"


def test_the_worker_of_the_test_session_takes_the_commands_of_a_project(tmp_path, monkeypatch):
    """Else each would import torch, and the tests of workflows take twice as long."""
    if VARIABLE not in os.environ:
        pytest.skip("one process of tests has no worker")
    torch._inductor.runtime.cache_dir_utils.cache_dir()  # what sets a variable of torch, as a test that compiles does
    environment = Project(tmp_path)._environment() | dict.fromkeys(_THREADS, "1")  # which Snakemake adds
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run_in_worker(["--version"]) == 0
