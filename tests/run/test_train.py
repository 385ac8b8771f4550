import logging
import math
import os

import pytest
import torch
from small_runs import Stop, go, metrics, plan_of, run_of, same_weights, stop_after, weights

from capsbench.data.tasks.task import Task
from capsbench.errors import InputError, RunError
from capsbench.models.capsnet import CapsNet
from capsbench.registry import MODELS
from capsbench.run import train as module
from capsbench.run.folder import RunFolder
from capsbench.run.metrics import coupling_entropy


def test_a_run_leaves_a_whole_folder(tmp_path):
    run = run_of(tmp_path)
    status, folder = go(run, tmp_path / "r")
    assert status == "ok"
    names = {p.name for p in folder.path.iterdir() if p.suffix != ".lock" and p.name != ".lock"}
    assert names == {"run.yaml", "metrics.csv", "model.pt", "checkpoint.pt"}
    record = folder.read_record()
    assert record["status"] == "ok"
    assert record["data"]["train_images"] == 96
    assert record["data"]["validation_images"] == 50
    assert len(record["data"]["fingerprint"]) == 64
    assert record["config"] == run.model_dump(
        mode="json", include={"data", "model", "options", "training", "matched_digest"}
    )
    assert {"torch", "python", "torchvision"} <= set(record["versions"])
    assert record["parameters"] == sum(w.numel() for w in weights(folder).values())
    assert (record["epochs"], record["steps"], record["images"]) == (3, 9, 288)
    rows = metrics(folder)
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    for name in (
        "learning_rate",
        "gradient_norm",
        "train_margin_loss",
        "train_reconstruction_loss",
        "train_accuracy",
        "right_capsule_length",
        "wrong_capsule_length",
        "coupling_entropy",
        "validation_accuracy",
    ):
        assert all(math.isfinite(float(row[name])) for row in rows)
    total = float(rows[0]["train_margin_loss"]) + float(rows[0]["train_reconstruction_loss"])
    assert float(rows[0]["train_loss"]) == pytest.approx(total)


def test_a_cnn_has_no_capsule_diagnostics(tmp_path):
    _, folder = go(run_of(tmp_path, "cnn_matched"), tmp_path / "r")
    assert {metrics(folder)[0][k] for k in ("right_capsule_length", "coupling_entropy")} == {""}


@pytest.mark.slow
def test_it_learns(tmp_path):
    run = run_of(tmp_path, data={"train_images": None}, epochs=6, learning_rate=0.005)
    _, folder = go(run, tmp_path / "r")
    rows = metrics(folder)
    assert float(rows[-1]["train_loss"]) < 0.5 * float(rows[0]["train_loss"])
    assert float(rows[-1]["validation_accuracy"]) > 0.7
    assert float(rows[-1]["right_capsule_length"]) > 2 * float(rows[-1]["wrong_capsule_length"])


@pytest.mark.parametrize("model", ["capsnet", "cnn_matched"])
def test_the_same_run_twice_gives_the_same_bytes(tmp_path, model):
    run = run_of(tmp_path, model)
    first, second = go(run, tmp_path / "a")[1], go(run, tmp_path / "b")[1]
    assert metrics(first) == metrics(second)
    assert same_weights(weights(first), weights(second))
    assert first.model_path.read_bytes() == second.model_path.read_bytes()


def test_another_seed_gives_another_run(tmp_path):
    a, b = plan_of(tmp_path).runs
    assert metrics(go(a, tmp_path / "r")[1]) != metrics(go(b, tmp_path / "r")[1])


@pytest.mark.parametrize("model", ["capsnet", "cnn_matched"])
def test_divergence_is_a_result(tmp_path, model):
    run = run_of(tmp_path, model, learning_rate=1e30, epochs=5)
    status, folder = go(run, tmp_path / "r")
    assert status == "diverged"
    record = folder.read_record()
    assert record["status"] == "diverged"
    step, *parts = record["divergence"]
    assert record["divergence"][step] >= 1
    assert "gradient_norm" in parts
    assert not all(math.isfinite(record["divergence"][part]) for part in parts)
    assert folder.model_path.exists()
    assert record["epochs"] == len(metrics(folder)) < 5


@pytest.mark.parametrize("what", ["weights", "validation_loss"])
def test_divergence_in_the_last_step_is_divergence(tmp_path, monkeypatch, what):
    """Every loss was finite, but what the last step of the second epoch left is not."""
    seen = []

    def validate(model, validation, objects):
        seen.append(None)
        last = len(seen) == 2
        if last and what == "weights":
            with torch.no_grad():
                next(model.parameters()).view(-1)[0] = math.inf
        return {"loss": math.inf if last and what == "validation_loss" else 0.5, "accuracy": 0.5}

    monkeypatch.setattr(module, "validate", validate)
    status, folder = go(run_of(tmp_path, epochs=2), tmp_path / "r")
    record = folder.read_record()
    assert status == record["status"] == "diverged"
    assert record["divergence"]["step"] == 6 and not math.isfinite(record["divergence"][what])
    assert len(metrics(folder)) == 1


def test_divergence_names_the_first_bad_step(tmp_path, monkeypatch):
    run = run_of(tmp_path, data={"train_images": 320}, batch_size=32)
    calls = []

    def parts_with_nan(self, output, targets, labels):
        calls.append(1)
        factor = math.nan if len(calls) == 7 else 1.0
        return {"good": output.scores.sum() * 0 + 1, "bad": output.scores.mean() * factor}

    monkeypatch.setattr(CapsNet, "loss", parts_with_nan)
    status, folder = go(run, tmp_path / "r")
    found = folder.read_record()["divergence"]
    assert (status, found["step"], found["good"]) == ("diverged", 7, 1.0)
    assert math.isnan(found["bad"])


def test_a_fault_of_the_machine_is_a_failure(tmp_path, monkeypatch):
    def no_memory(*arguments, **options):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore lines")

    monkeypatch.setattr(type(MODELS), "build", no_memory)
    run = run_of(tmp_path)
    with pytest.raises(RunError, match="out of memory") as caught:
        go(run, tmp_path / "r")
    assert "\n" not in str(caught.value)
    record = RunFolder.of(tmp_path / "r", run.study, run.key).read_record()
    assert record["status"] == "failed"
    assert "out of memory" in record["problem"]


@pytest.fixture
def splits_read(monkeypatch) -> list[str]:
    """The splits that a training reads, in order."""
    splits = []
    read = module.read_split
    monkeypatch.setattr(module, "read_split", lambda data, root, split: splits.append(split) or read(data, root, split))
    return splits


def test_training_never_sees_the_test_set(tmp_path, splits_read):
    go(run_of(tmp_path, early_stopping=1), tmp_path / "r")
    assert splits_read == ["train"]


def test_variants_at_one_seed_see_the_same_batches(tmp_path, monkeypatch):
    seen = {}
    train_batches = Task.train_batches

    def spy(*arguments):
        for batch in train_batches(*arguments):
            seen[key].append(batch)
            yield batch

    monkeypatch.setattr(Task, "train_batches", spy)
    once = {"routing": {"iterations": 1}}
    for key, model, options in (("a", "capsnet", {}), ("b", "capsnet", once), ("c", "cnn_matched", {})):
        seen[key] = []
        go(run_of(tmp_path, model, options), tmp_path / key)
    assert seen["a"]
    for other in ("b", "c"):
        assert all(
            torch.equal(x, y) for pair in zip(seen["a"], seen[other], strict=True) for x, y in zip(*pair, strict=True)
        )


@pytest.mark.parametrize(
    ("data", "training", "stuck"),
    [
        ({"train_images": None, "validation_images": 0}, {"learning_rate": 0.005}, False),
        ({"train_images": None, "validation_images": 0}, {"learning_rate": 1e-9, "lr_floor": 0}, True),
        ({"name": "multidigits", "options": {"train_pairs": 1000}}, {"learning_rate": 1e-9, "lr_floor": 0}, True),
    ],
)
def test_a_run_that_learns_nothing_says_so(tmp_path, data, training, stuck):
    _, folder = go(run_of(tmp_path, data={**data}, **training), tmp_path / "r")
    record = folder.read_record()
    assert record["stuck_at_chance"] is stuck
    assert record["data"]["chance"] == pytest.approx(0.2 if "name" in data else 0.1, abs=0.02)


@pytest.mark.parametrize("model", ["capsnet", "cnn_matched"])
@pytest.mark.parametrize(
    ("name", "options", "epoch_images"),
    [
        ("multidigits", {"train_pairs": 200}, 200),
        ("affdigits", {}, 96),
        pytest.param("toynorb", {"lightings": 1}, 96, marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_task_trains_and_continues_where_it_was(tmp_path, model, name, options, epoch_images):
    data = {"name": name, "options": options, "train_images": 96, "validation_images": 50}
    options = {"matched_to": {"widths": [20, 40]}} if model == "cnn_matched" else {}
    run = run_of(tmp_path, model, options, data, epochs=2)
    _, folder = go(run, tmp_path / "r")
    rows = metrics(folder)
    assert float(rows[1]["train_loss"]) < float(rows[0]["train_loss"])
    record = folder.read_record()
    assert record["data"] | {"fingerprint": "", "unofficial": []} == {
        "fingerprint": "", "train_images": 96, "validation_images": 50, "epoch_images": epoch_images, "unofficial": [],
        "files": {}, "chance": record["data"]["chance"],  # embedded: no files
        "shown": record["data"]["shown"], "validation_by": "object" if name == "toynorb" else "image",
    }  # fmt: skip
    assert record["data"]["shown"].keys() == {"train", "validation"}
    with pytest.raises(Stop):
        go(run, tmp_path / "s", reached=stop_after(1))
    resumed = go(run, tmp_path / "s")[1]
    assert metrics(resumed) == rows
    assert same_weights(weights(resumed), weights(folder))


def test_coupling_entropy_is_one_for_uniform_and_zero_for_collapsed_couplings():
    assert coupling_entropy(torch.full((2, 3, 10), 0.1)) == pytest.approx(1, abs=1e-6)
    assert coupling_entropy(torch.eye(10).repeat(2, 1, 1)) == 0
    half = torch.zeros(1, 1, 4)
    half[..., :2] = 0.5
    assert coupling_entropy(half) == pytest.approx(0.5)


def test_threads_and_deterministic_reach_torch(tmp_path):
    go(run_of(tmp_path, epochs=1, threads=2, deterministic=True), tmp_path / "r")
    assert torch.get_num_threads() == 2
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    go(run_of(tmp_path, epochs=1), tmp_path / "s")
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_gpu_that_is_not_there_is_a_problem_of_input(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InputError, match="torch sees no GPU here"):
        go(run_of(tmp_path, device="cuda"), tmp_path / "r")


def test_progress_lines_show_where_a_run_is(tmp_path, caplog):
    caplog.set_level(logging.INFO, "capsbench")
    run = run_of(tmp_path)
    go(run, tmp_path / "r", runs_in_study=4)
    assert caplog.messages[-1].startswith(f"[0 of 4 runs, 1 running] {run.key}  epoch 3/3  loss ")
    assert "accuracy" in caplog.messages[-1]
    assert caplog.messages[-1].endswith("left")
    assert [record.passing for record in caplog.records if "epoch" in record.message][-1] is False  # it stays


def test_a_run_alone_says_nothing_of_a_study(tmp_path, caplog):
    caplog.set_level(logging.INFO, "capsbench")
    run = run_of(tmp_path)
    go(run, tmp_path / "r")
    assert caplog.messages[-1].startswith(f"{run.key}  epoch")


def test_a_finished_run_is_left_as_it_is_and_again_trains_it_afresh(tmp_path):
    run = run_of(tmp_path)
    _, folder = go(run, tmp_path / "r")
    (folder.path / "evaluations").mkdir()
    folder.predictions_path.write_text("predictions")
    folder.evaluation_path("accuracy").write_text("{}")
    before = folder.model_path.stat().st_mtime_ns
    assert go(run, tmp_path / "r")[0] == "ok"
    assert folder.model_path.stat().st_mtime_ns == before
    assert folder.predictions_path.exists()
    assert folder.evaluation_path("accuracy").exists()
    first = weights(folder)
    assert go(run, tmp_path / "r", again=True)[0] == "ok"
    assert folder.model_path.stat().st_mtime_ns > before
    assert not folder.predictions_path.exists()  # they were of the training before
    assert not folder.evaluation_path("accuracy").exists()
    assert same_weights(weights(folder), first)
