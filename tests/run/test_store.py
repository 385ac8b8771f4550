"""What a person finds in MLflow: a study, its variants, their seeds, what they were tested on, files, models."""

import json
import math
import shutil
import sqlite3
import statistics
import threading
from contextlib import closing
from pathlib import Path

import pytest
from filelock import FileLock

from capsbench.run.folder import RunFolder, write_json
from capsbench.run.store import Store, store_uri
from capsbench.run.store_contents import flat_parameters, same_but, saved_views, search_for
from capsbench.run.tracking import track_study
from capsbench.study import load_plan

NOWHERE = Path("nowhere")  # the digits are embedded
SMALL = {"conv_channels": 4, "primary_types": 1, "decoder": None}
ERRORS = {"em": (4.0, 6.0, 8.0), "dynamic-iterations1": (1.0, 2.0), "cnn": ()}


def write_study(path, description="Is *EM* better?", seeds=(0, 1, 2)):
    study = {
        "name": "small",
        "description": description,
        "seeds": list(seeds),
        "training": {"epochs": 1, "batch_size": 32, "device": "cpu"},
        "experiments": {"digits": {"data": {"name": "digits", "train_images": 64}}},
        "variants": {
            "dynamic": {"model": "capsnet", "options": SMALL, "grid": {"routing.iterations": [1, 3]}},
            "em": {"model": "capsnet", "label": "EM routing", "options": {**SMALL, "routing": "em"}},
            "em_spread": {"model": "capsnet", "options": {**SMALL, "routing": "em", "loss": "spread"}},
            "decoded": {"model": "capsnet", "options": {**SMALL, "decoder": "fully_connected"}},
            "cnn": {"model": "cnn_matched", "options": {"matched_to": {"name": "resnet20", "widths": [4, 16]}}},
        },
    }
    path.write_text(json.dumps(study))
    return load_plan(path)


@pytest.fixture
def plan(tmp_path):
    return write_study(tmp_path / "study.yaml")


@pytest.fixture(scope="module")
def new_store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    Store(folder)
    return folder / "mlflow.db"


@pytest.fixture
def results(tmp_path, new_store) -> Path:
    (tmp_path / "r").mkdir()
    shutil.copy(new_store, tmp_path / "r/mlflow.db")
    return tmp_path / "r"


def leave(results, run, error=None, status="ok", started="2026-01-01T10:00:00Z", commit="a" * 40):
    """Write what a finished run leaves, without a training."""
    folder = RunFolder.of(results, run.study, run.key)
    folder.write_record(
        {
            "status": status, "digest": run.digest, "started": started, "finished": "2026-01-01T11:30:00Z",
            "seconds": 60.0, "commit": commit, "parameters": 1234,
            "data": {"fingerprint": "f" * 64, "train_images": 64},
        }
    )  # fmt: skip
    folder.write_metrics([{"epoch": 1, "step": 2, "train_loss": 0.5, "validation_loss": None, "seconds": 60.0}])
    if error is not None:
        found = {"status": "ok", "error": error, "accuracy": 100 - error, "images": 539, "errors": 7}
        extra = {"data_fingerprint": "e" * 64, "training_started": started}
        write_json(folder.evaluation_path("accuracy"), found | extra)
    return folder


@pytest.fixture
def filled(plan, results):
    for variant, errors in ERRORS.items():
        for seed, error in enumerate(errors):
            leave(results, plan.cell("digits", variant, seed), error)
    leave(results, plan.cell("digits", "dynamic-iterations1", 2), status="diverged")
    track_study(plan, results)
    return plan


def client_of(results):
    from mlflow import MlflowClient

    return MlflowClient(store_uri(results))


def found(results, search=""):
    """Return the runs that a search finds, by name."""
    client = client_of(results)
    experiment = client.get_experiment_by_name("small")
    runs = client.search_runs([experiment.experiment_id], search)
    assert len({run.info.run_name for run in runs}) == len(runs)
    return {run.info.run_name: run for run in runs}


def test_seeds_are_the_children_of_a_run_per_experiment_and_variant(filled, results):
    runs = found(results)
    parents = {name for name, run in runs.items() if run.data.tags["kind"] == "variant"}
    assert parents == {"digits/em", "digits/dynamic-iterations1"}  # nothing of cnn is there
    for name, run in runs.items():
        if run.data.tags["kind"] == "seed":
            parent = name.rsplit("/", 1)[0]
            assert run.data.tags["mlflow.parentRunId"] == runs[parent].info.run_id
    assert len(runs) == 2 + 3 + 3
    assert "seed" not in runs["digits/em"].data.params
    assert runs["digits/em"].data.params["routing"] == "em"


def test_a_variant_has_mean_deviation_and_number_of_its_seeds(filled, results):
    runs = found(results)
    em, dynamic = runs["digits/em"].data.metrics, runs["digits/dynamic-iterations1"].data.metrics
    assert em["test_error"] == statistics.fmean(ERRORS["em"])
    assert em["test_error_std"] == pytest.approx(2.0)
    assert em["test_error_n"] == 3
    half = 4.302652729 * 2.0 / math.sqrt(3)  # the quantile of t for two degrees of freedom
    assert em["test_error_low"] == pytest.approx(em["test_error"] - half, abs=1e-4)
    assert em["test_error_high"] == pytest.approx(em["test_error"] + half, abs=1e-4)
    assert "test_error_low" not in dynamic  # of two seeds
    assert dynamic["test_error"] == 1.5  # the diverged seed has no error
    assert dynamic["test_error_n"] == 2
    assert runs["digits/em/seed0"].data.metrics["test_error"] == 4.0


def test_one_seed_has_no_deviation(plan, results):
    leave(results, plan.cell("digits", "em", 0), 4.0)
    track_study(plan, results)
    metrics = found(results)["digits/em"].data.metrics
    assert metrics["test_error_n"] == 1
    assert "test_error_std" not in metrics


def test_the_numbers_of_a_variant_follow_its_seeds(filled, results):
    leave(results, filled.cell("digits", "em", 1), 9.0)
    counts = track_study(filled, results)
    assert counts["written"] == 1
    runs = found(results)
    parent = runs["digits/em"]
    assert parent.data.metrics["test_error"] == pytest.approx(7.0)
    client = client_of(results)
    assert [m.value for m in client.get_metric_history(parent.info.run_id, "test_error")] == [7.0]
    assert {runs[f"digits/em/seed{n}"].data.tags["mlflow.parentRunId"] for n in range(3)} == {parent.info.run_id}
    leave(results, filled.cell("digits", "em", 1), status="diverged").evaluation_path("accuracy").unlink()
    track_study(filled, results)
    assert found(results)["digits/em"].data.metrics["test_error"] == 6.0  # of 4 and 8
    assert found(results)["digits/em"].data.metrics["test_error_n"] == 2


def test_a_second_time_there_is_nothing_to_do(filled, results):
    (results / "small/report.html").write_text("x")
    track_study(filled, results)
    before = {name: run.info.run_id for name, run in found(results).items()}
    stamps = {name: run.data.tags["capsbench.contents"] for name, run in found(results).items()}
    counts = track_study(filled, results)
    assert counts == {"current": 6, "absent": len(filled.runs) - 6}
    assert {name: run.info.run_id for name, run in found(results).items()} == before
    assert {name: run.data.tags["capsbench.contents"] for name, run in found(results).items()} == stamps


def test_runs_that_left_the_folder_leave_its_store_and_no_other_one(filled, results, monkeypatch):
    names = set(found(results))
    em = results / "small/runs/digits/em"
    shutil.rmtree(em / "seed0")
    shutil.rmtree(results / "small/runs/digits/dynamic-iterations1")
    monkeypatch.setattr(Store, "is_in_results", False)  # a server, where others may log runs of this study
    assert "removed" not in track_study(filled, results)
    assert set(found(results)) == names
    monkeypatch.undo()
    gone = {"digits/em/seed0"} | {name for name in names if name.startswith("digits/dynamic-iterations1")}
    assert track_study(filled, results)["removed"] == len(gone)
    assert set(found(results)) == names - gone  # the other seed of the variant stays, and so does the variant
    assert "removed" not in track_study(filled, results)


def test_a_variant_is_finished_when_all_its_seeds_are(filled, results):
    assert found(results)["digits/em"].info.status == "FINISHED"
    leave(results, filled.cell("digits", "em_spread", 0), 3.0)
    leave(results, filled.cell("digits", "decoded", 0), 3.0)
    for seed in (1, 2):
        leave(results, filled.cell("digits", "decoded", seed), status="failed")
    track_study(filled, results)
    runs = found(results)
    assert runs["digits/em_spread"].info.status == "SCHEDULED"  # two seeds have not begun
    assert runs["digits/decoded"].info.status == "FAILED"


def test_durations_are_those_of_the_training(filled, results):
    run = found(results)["digits/em/seed0"]
    assert run.info.end_time - run.info.start_time == 90 * 60 * 1000
    variant = found(results)["digits/em"]  # other trainings may lie between its seeds
    assert variant.info.end_time - variant.info.start_time == 3 * 60 * 1000
    (point,) = client_of(results).get_metric_history(run.info.run_id, "training/train_loss")
    assert point.timestamp - run.info.start_time == 60 * 1000
    assert point.step == 1


def test_data_sets_are_inputs_with_their_fingerprints(filled, results):
    for name in ("digits/em/seed0", "digits/em"):
        inputs = found(results)[name].inputs.dataset_inputs
        by_context = {entry.tags[0].value: entry.dataset for entry in inputs}
        assert all(entry.tags[0].key == "mlflow.data.context" for entry in inputs)
        assert {k: (d.name, d.digest) for k, d in by_context.items()} == {
            "training": ("digits", "f" * 8),
            "test": ("digits", "e" * 8),
        }
        assert json.loads(by_context["training"].profile)["num_rows"] == 64
        assert json.loads(by_context["test"].profile)["fingerprint"] == "e" * 64


def test_source_commit_and_user_are_there(filled, results):
    leave(results, filled.cell("digits", "em_spread", 0), 4.0, commit="unknown", started="2026-01-02T10:00:00Z")
    track_study(filled, results)
    runs = found(results)
    tags = runs["digits/em/seed1"].data.tags
    assert tags["mlflow.source.git.commit"] == "a" * 40
    assert tags["mlflow.source.git.dirty"] == "False"
    assert tags["mlflow.source.name"] == "capsbench train small"
    assert tags["mlflow.source.type"] == "LOCAL"
    assert tags["mlflow.user"]
    assert "mlflow.source.git.commit" not in runs["digits/em_spread/seed0"].data.tags


def test_a_commit_with_changes_is_told_apart(plan, results):
    leave(results, plan.cell("digits", "em", 0), 4.0, commit="b" * 40 + "+changes")
    leave(results, plan.cell("digits", "em", 1), 4.0)
    track_study(plan, results)
    runs = found(results)
    tags = runs["digits/em/seed0"].data.tags
    assert (tags["mlflow.source.git.commit"], tags["mlflow.source.git.dirty"]) == ("b" * 40, "True")
    assert "mlflow.source.git.commit" not in runs["digits/em"].data.tags  # its seeds differ in it


def test_study_and_variants_are_described(filled, results):
    experiment = client_of(results).get_experiment_by_name("small")
    assert "Is *EM* better?" in experiment.tags["mlflow.note.content"]
    view = "capsbench-test-errors-digits"
    link = f"(#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={view})"
    assert link in experiment.tags["mlflow.note.content"]
    assert f"mlflow.sharedViewState.{view}" in experiment.tags
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    assert experiment.tags["mlflow.experiment.primaryMetric.name"] == "test_error"
    note = found(results)["digits/dynamic-iterations1"].data.tags["mlflow.note.content"]
    assert "Is *EM* better?" in note
    assert "| 1 | ok | 2.00 % |" in note
    assert "| 2 | diverged |  |" in note
    assert "EM routing" in found(results)["digits/em"].data.tags["mlflow.note.content"]
    seeds = [found(results)[f"digits/dynamic-iterations1/seed{n}"].data.tags["mlflow.note.content"] for n in (1, 2)]
    assert "seed 1: test error 2.00 %" in seeds[0]
    assert "seed 2: diverged" in seeds[1]


def test_a_new_description_reaches_the_store(filled, results, tmp_path):
    counts = track_study(write_study(tmp_path / "other.yaml", "Another question"), results)
    assert "written" not in counts
    experiment = client_of(results).get_experiment_by_name("small")
    assert "Another question" in experiment.tags["mlflow.note.content"]
    assert "Another question" in found(results)["digits/em"].data.tags["mlflow.note.content"]


def test_tables_plots_and_report_are_artifacts_of_one_run(filled, results):
    folder = results / "small"
    assert "study small" not in found(results)
    for name in ("report.html", "tables/contrasts.md", "plots/reconstructions.png", "logs/plots.log", "plots/.x.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    track_study(filled, results)
    store = Store(results)
    run = found(results)["study small"]
    experiment = store.client.get_experiment_by_name("small")
    note, link = (
        experiment.tags["mlflow.note.content"],
        f"#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}",
    )
    assert note.startswith(f"[what the study shows]({link}), [digits: test errors")
    assert store.artifacts(run.info.run_id) == {"report.html", "tables/contrasts.md", "plots/reconstructions.png"}
    assert Path(run.info.artifact_uri.removeprefix("file://")).is_relative_to(results.resolve())
    (folder / "tables/contrasts.md").write_text("new")
    track_study(filled, results)
    assert found(results)["study small"].info.run_id == run.info.run_id
    there = store.client.download_artifacts(run.info.run_id, "tables/contrasts.md")
    assert Path(there).read_text() == "new"
    (folder / "plots/reconstructions.png").unlink()
    track_study(filled, results)
    assert store.artifacts(found(results)["study small"].info.run_id) == {"report.html", "tables/contrasts.md"}


def test_the_search_for_same_but_routing_gives_the_runs_that_differ_in_it_alone(filled, results):
    for name in ("dynamic-iterations3", "em_spread", "decoded", "cnn"):
        leave(results, filled.cell("digits", name, 0), 5.0)
    track_study(filled, results)
    mine = found(results)["digits/dynamic-iterations1/seed0"].data.tags["same_but_routing"]
    search = search_for("routing", mine)
    assert search == f"tags.same_but_routing = '{mine}' and tags.kind = 'seed'"
    wanted = {f"digits/{name}" for name in ("dynamic-iterations1", "dynamic-iterations3", "em")}
    assert {name.rsplit("/", 1)[0] for name in found(results, search)} == wanted
    # and what differs is routing, as the parameters have it
    different = set()
    for run in found(results, search).values():
        reference = found(results)["digits/em/seed0"].data.params
        keys = run.data.params.keys() | reference.keys()
        different |= {key for key in keys if run.data.params.get(key) != reference.get(key)}
    assert {key for key in different if not key.startswith("routing")} == {"variant", "label", "seed"}


def test_same_but_tells_everything_else_apart(plan):
    run = plan.cell("digits", "em", 0)
    other = {
        "seed": run.model_copy(update={"seed": 5}),
        "device": run.model_copy(update={"training": run.training.model_copy(update={"device": "cuda"})}),
    }
    assert {same_but(each, "routing") for each in other.values()} == {same_but(run, "routing")}
    changed = [
        run.model_copy(update={"training": run.training.model_copy(update={"batch_size": 33})}),
        run.model_copy(update={"data": run.data.model_copy(update={"train_images": 65})}),
        plan.cell("digits", "em_spread", 0),
        plan.cell("digits", "decoded", 0),
        plan.cell("digits", "cnn", 0),
    ]
    assert len({same_but(each, "routing") for each in [run, *changed]}) == 6
    spread = plan.cell("digits", "em_spread", 0)
    assert same_but(spread, "loss") == same_but(run, "loss")
    decoded, plain = plan.cell("digits", "decoded", 0), plan.cell("digits", "dynamic-iterations3", 0)
    assert same_but(decoded, "decoder") == same_but(plain, "decoder")


def test_seeds_that_draw_their_own_images_are_searched_for_together(tmp_path):
    """One view for all seeds of a group, not one for each seed."""
    path = tmp_path / "study.yaml"
    fixed = write_study(path)

    def drawn(split_seed):
        study = json.loads(path.read_text())
        study["experiments"]["digits"]["data"] |= {"split": "per_seed", "split_seed": split_seed}
        path.write_text(json.dumps(study))
        return load_plan(path)

    plan = drawn(7)
    runs = [plan.cell("digits", "em", seed) for seed in (0, 1, 2)]
    assert len({run.data.split_seed for run in runs}) == 3
    assert len({same_but(run, "routing") for run in runs}) == 1
    assert len(saved_views(plan)) == len(saved_views(fixed))
    assert same_but(drawn(8).cell("digits", "em", 0), "routing") != same_but(runs[0], "routing")


def test_views_are_saved_and_follow_the_study(filled, results, tmp_path):
    def views():
        tags = client_of(results).get_experiment_by_name("small").tags
        return {k: json.loads(v) for k, v in tags.items() if k.startswith("mlflow.sharedViewState.")}

    before = views()
    by_name = {view["name"]: json.loads(view["state"]) for view in before.values()}
    errors = by_name["digits: test errors, mean over seeds"]
    assert "metrics.`test_error`" in errors["selectedColumns"]
    assert set(found(results, errors["searchFilter"])) == {"digits/em", "digits/dynamic-iterations1"}
    (routing,) = [state for name, state in by_name.items() if "only routing differs" in name]
    assert set(found(results, routing["searchFilter"])) == {"digits/em", "digits/dynamic-iterations1"}
    assert len(before) == len(saved_views(filled)) == 4  # test errors, routing, decoder, loss
    study = json.loads((tmp_path / "study.yaml").read_text())
    del study["variants"]["decoded"]
    (tmp_path / "less.yaml").write_text(json.dumps(study))
    track_study(load_plan(tmp_path / "less.yaml"), results)
    assert len(views()) == 3


def test_parameters_name_each_thing_once(plan):
    flat = flat_parameters(plan.cell("digits", "cnn", 0))
    assert flat["data_set"] == "digits"
    assert "data.name" not in flat
    assert (flat["routing"], flat["decoder"]) == ("none", "none")


def test_results_that_follow_from_others_are_left_out(filled, results):
    metrics = found(results)["digits/em/seed0"].data.metrics
    assert {name for name in metrics if "/" not in name} == {"test_error", "trained_parameters"}
    for name in ("digits/em", "digits/em/seed0"):  # the compare page draws the first
        assert next(iter(found(results)[name].data.metrics)) == "test_error"
    assert all(math.isfinite(value) for value in metrics.values())


def test_no_call_is_made_while_another_process_opens_the_store(results):
    store = Store(results)
    run_id = store.create("small", "a run", {}, 0)
    row = {"epoch": 1, "seconds": 1.0, "train_loss": 0.5}
    writing = threading.Thread(target=store.log_rows, args=(run_id, [row]))
    with FileLock(results / ".mlflow.lock"):  # as Store has it while it opens
        writing.start()
        writing.join(0.5)
        assert writing.is_alive()
        with closing(sqlite3.connect(results / "mlflow.db")) as database:
            assert database.execute("select count(*) from metrics").fetchone() == (0,)
    writing.join(30)
    assert len(store.client.get_metric_history(run_id, "training/train_loss")) == 1
