import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import capsbench
from capsbench.data import Raw, make_task
from capsbench.errors import InputError
from capsbench.evaluation import evaluate
from capsbench.models import build_model
from capsbench.run.folder import RunFolder
from capsbench.run.record import first_record
from capsbench.run.train import train
from capsbench.study import Run, load_plan

PAGE = Path(__file__).parents[1] / "docs/python.md"
KEY = "digits/cnn_matched/seed0"
STUDY = """\
name: quick
seeds: [0, 1]
training: {epochs: 2, batch_size: 32, learning_rate: 0.003, device: cpu}   # learns more than one class
experiments:
  digits:
    data: {name: digits, train_images: 96, validation_images: 50}
    variants: [cnn_matched]
  pairs:
    data: {name: multidigits, train_images: 96, options: {train_pairs: 64, test_pairs: 30}}
    variants: [capsnet]
  stereo: {data: {name: smallnorb, options: {crop: 24}}, variants: [resnet20]}
  stereo13: {data: {name: smallnorb, options: {crop: 24, test_crops: 13}}, variants: [resnet20]}
  tight: {data: {name: smallnorb, options: {crop: 46, test_crops: 13}}, variants: [resnet20]}
  text: {data: {name: smallnorb, options: {crop: 24, augment: after_standardising}}, variants: [resnet20]}
  wide:
    data: {name: toynorb, options: {resize: bilinear_64, crop: 48, standardise_by: training_set, test_crops: 13}}
    variants: [resnet20]
  photographs: {data: {name: cifar10, options: {crop: 24, standardise: true}}, variants: [resnet20]}
variants:
  capsnet: {model: capsnet, label: CapsNet, options: {conv_channels: 8, primary_types: 2, decoder: null}}
  cnn_matched:
    model: cnn_matched
    label: CNN
    options: {matched_to: {name: capsnet, conv_channels: 8, primary_types: 2, decoder: null}}
  resnet20: {model: resnet20, options: {blocks: 1}}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A folder with the finished runs of a small study in results/quick; seed 1 is trained on digits alone."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "study.yaml").write_text(STUDY)
    plan = load_plan(folder / "study.yaml")
    for run in plan.runs:
        if run.experiment in ("digits", "pairs"):
            train(run, folder / "results", Path("nowhere"), tracking=False)
            if run.seed == 0:
                evaluate(run, folder / "results", Path("nowhere"), plan.study.evaluations)
        elif run.seed == 0:
            leave_untrained(run, folder / "results")
    return folder


def leave_untrained(run: Run, results: Path) -> None:
    """Write the folder of a run as if it had been trained, without the files of its data set."""
    folder = RunFolder.of(results, run.study, run.key)
    folder.write_record({**first_record(run), "status": "ok"})
    torch.manual_seed(0)
    model = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)
    torch.save(model.state_dict(), folder.model_path)


@pytest.fixture(autouse=True)
def here(project, monkeypatch) -> Path:
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def copied(project, tmp_path) -> Path:
    """A copy of a run's folder, to be damaged."""
    return Path(shutil.copytree(project / "results/quick/runs" / KEY, tmp_path / "run"))


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("number", range(len(examples())))
def test_the_examples_of_the_docs_run(capsys, number):
    code = examples()[number]
    space: dict[str, object] = {"__name__": "example"}
    exec(compile(code, f"{PAGE}, example {number + 1}", "exec"), space)
    if "confusion_matrix" in code:
        matrix = space["matrix"]
        assert matrix.shape == (10, 10)
        assert matrix.sum() == 539
        assert len(code.strip().splitlines()) <= 12
        assert "test error" in capsys.readouterr().out
    if "loss.backward" in code:
        assert all(parameter.grad is not None for parameter in space["network"].parameters())


def test_the_docs_have_a_confusion_matrix_and_a_network_of_the_readers_own():
    assert sum("confusion_matrix" in code for code in examples()) == 1
    assert sum("ROUTINGS.build" in code and "nn.Module" in code for code in examples()) == 1


def test_a_loaded_run_has_all_that_the_run_left(project):
    run = capsbench.load_run(f"results/quick/runs/{KEY}")
    [planned] = [r for r in load_plan(project / "study.yaml").runs if r.key == KEY]
    assert run.config == planned
    assert run.config.digest == run.record["digest"]
    assert run.record["status"] == "ok"
    assert not run.model.training
    assert list(run.metrics["epoch"]) == [1, 2]
    assert run.predictions["scores"].shape == (539, 10)
    assert run.evaluations["accuracy"]["images"] == 539
    assert KEY in repr(run)


def test_a_run_is_found_by_its_study_and_its_key(project):
    wanted = capsbench.load_run(f"results/quick/runs/{KEY}").path.resolve()
    for study in ("quick", "results/quick", project / "results/quick"):
        assert capsbench.load_run(study, KEY).path.resolve() == wanted
    with pytest.raises(InputError, match=f"no run '{KEY}0'; there is {KEY}$"):
        capsbench.load_run("quick", f"{KEY}0")
    with pytest.raises(InputError, match="quack: no runs here, nor in results/quack"):
        capsbench.load_run("quack", KEY)
    with pytest.raises(InputError, match=rf"a study; name one of its runs, load_run\('quick', RUN\): .*{KEY}"):
        capsbench.load_run("quick")


@pytest.mark.parametrize("experiment", ["digits", "pairs"])
def test_predict_gives_the_classes_of_the_evaluation(experiment):
    [folder] = Path("results/quick/runs").glob(f"{experiment}/*/seed0")
    run = capsbench.load_run(folder)
    data = run.config.data
    test = capsbench.data.load(data.name, "nowhere", "test", **data.options.model_dump())
    scores = torch.from_numpy(run.predictions["scores"])
    expected = scores.argmax(1) if data.facts.objects == 1 else scores.topk(2, dim=1).indices.sort(dim=1).values
    assert torch.equal(run.predict(test.images), expected)
    assert run.predict(test.images).dtype == torch.int64
    assert len(set(expected.flatten().tolist())) > 1  # a network that always says the same would prove nothing


def test_predict_takes_floats_and_arrays_as_well():
    run = capsbench.load_run(f"results/quick/runs/{KEY}")
    images = capsbench.data.load("digits", "nowhere", "test").images[:20]
    expected = run.predict(images)
    assert torch.equal(run.predict(images.float() / 255), expected)
    assert torch.equal(run.predict(images.numpy()), expected)
    assert torch.equal(run.predict((images / 255).double()), expected)
    assert torch.equal(run.predict(images.numpy()[::-1]), expected.flip(0))
    assert run.predict(images.float().div(255).requires_grad_()).requires_grad is False
    assert run.predict(images[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("experiment", "shape", "views"),
    [
        ("stereo", (2, 48, 48), 1),
        ("stereo13", (2, 48, 48), 13),
        ("tight", (2, 48, 48), 13),
        ("text", (2, 48, 48), 1),
        ("wide", (2, 64, 64), 13),
        ("photographs", (3, 32, 32), 1),
    ],
)
def test_images_are_cropped_and_standardised_as_in_the_test(experiment, shape, views):
    run = capsbench.load_run(f"results/quick/runs/{experiment}/resnet20/seed0")
    images = torch.randint(0, 256, (8, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    raw = Raw(images.numpy(), np.zeros(8, dtype=np.int64), {}, ())
    task = make_task(run.config.data, raw, "test", torch.device("cpu"))
    expected = [task.eval_batch(torch.arange(8), view).images for view in range(task.views)]
    prepared = run.prepare(images)
    assert len(prepared) == len(expected) == views
    assert all(torch.equal(a, b) for a, b in zip(prepared, expected, strict=True))
    with torch.no_grad():
        # a CNN: the shares of several crops are softmaxes
        scores = torch.stack([run.model(view).scores.softmax(dim=1) for view in expected]).mean(dim=0)
    assert torch.equal(run.predict(images), scores.argmax(dim=1))


def test_crops_of_stereo_images_are_standardised_alone():
    run = capsbench.load_run("results/quick/runs/stereo13/resnet20/seed0")
    images = torch.rand(8, 2, 48, 48, generator=torch.Generator().manual_seed(0))
    [seen] = run.prepare(images[:, :, 12:36, 12:36])
    assert torch.equal(seen, run.prepare(images)[0])
    assert torch.allclose(seen.mean(dim=(1, 2, 3)), torch.zeros(8), atol=1e-5)
    for wrong in (images[:, :, :23], images[:, :, :40, :40]):
        with pytest.raises(InputError, match="N x 2 x 24 x 24 or N x 2 x 48 x 48, not 8 x 2 x "):
            run.prepare(wrong)


def test_a_crop_is_refused_where_whole_images_were_standardised():
    run = capsbench.load_run("results/quick/runs/text/resnet20/seed0")
    with pytest.raises(InputError, match="are N x 2 x 48 x 48, not 3 x 2 x 24 x 24"):
        run.predict(torch.zeros(3, 2, 24, 24))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros(2, 1, 32, 32, dtype=torch.uint8), "N x 1 x 28 x 28, not 2 x 1 x 32 x 32"),
        (torch.zeros(1, 28, 28, dtype=torch.uint8), "N x 1 x 28 x 28, not 1 x 28 x 28"),
        (torch.full((2, 1, 28, 28), 255.0), r"in \[0, 1\], not 255 to 255"),
        (torch.full((2, 1, 28, 28), float("nan")), r"in \[0, 1\]"),
        (torch.zeros(2, 1, 28, 28, dtype=torch.int64), "not torch.int64"),
        (np.zeros((2, 1, 28, 28), dtype=bool), "not torch.bool"),
        (torch.zeros(2, 1, 28, 28, dtype=torch.complex64), "not torch.complex64"),
        (np.float32(0.5), "not a number"),
        (np.zeros((0, 3)), "N x 1 x 28 x 28, not 0 x 3"),
        ("images.npy", "array or a tensor .* not str"),
        (None, "array or a tensor .* not NoneType"),
        ([[1, 2], [3]], "array or a tensor .* not list"),
        (np.array([object()]), "array or a tensor .* not ndarray of object"),
        (torch.zeros(2, 1, 28, 28).to_sparse(), "array or a tensor .* not Tensor"),
    ],
    ids=[
        "size", "no batch", "0 to 255", "nan", "integers", "truth values", "complex", "number", "none", "path",
        "nothing", "ragged", "objects", "sparse",
    ],
)  # fmt: skip
def test_images_that_the_network_did_not_learn_are_refused(images, words):
    with pytest.raises(InputError, match=words) as caught:
        capsbench.load_run(f"results/quick/runs/{KEY}").predict(images)
    assert "\n" not in str(caught.value)


def test_loading_changes_no_random_state():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    capsbench.load_run(f"results/quick/runs/{KEY}")
    assert torch.equal(torch.rand(2), expected)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_record(folder: Path, **changes: object) -> None:
    run = RunFolder(folder)
    run.write_record({**run.read_record(), **changes})


def options_of_another_version(folder: Path) -> None:
    record = yaml.safe_load((folder / "run.yaml").read_text())
    change_record(folder, config={**record["config"], "options": {"decoder_hidden": [3]}})


def weights_of_another_network(folder: Path) -> None:
    torch.save({"weight": torch.zeros(3)}, folder / "model.pt")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "run.yaml").unlink(), ["no run.yaml", "results/STUDY/runs"]),
        (lambda folder: (folder / "run.yaml").write_text("- x"), ["run.yaml", "damaged"]),
        (lambda folder: change_record(folder, status="running"), ["not finished", "running"]),
        (lambda folder: change_record(folder, status="failed", problem="no space"), ["failed", "no space"]),
        (lambda folder: change_record(folder, config={}), ["run.yaml", "another version"]),
        (options_of_another_version, ["another version", "decoder_hidden"]),
        (lambda folder: (folder / "model.pt").unlink(), ["model.pt", "train the run again"]),
        (lambda folder: cut(folder / "model.pt"), ["model.pt", "is not the file"]),
        (lambda folder: (folder / "model.pt").write_bytes(b""), ["model.pt", "is not the file"]),
        (weights_of_another_network, ["model.pt", "is not the file that this run wrote"]),
    ],
    ids=["no record", "record", "running", "failed", "no config", "old options", "no weights", "cut", "empty", "other"],
)
def test_what_is_no_finished_run_is_one_line(copied, damage, words):
    damage(copied)
    with pytest.raises(InputError) as caught:
        capsbench.load_run(copied)
    assert [word for word in words if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        (
            "predictions",
            lambda folder: (folder / "predictions.npz").unlink(),
            "npz: not there.*capsbench evaluate",
        ),
        ("predictions", lambda folder: cut(folder / "predictions.npz"), "predictions.npz: is not the file"),
        ("metrics", lambda folder: (folder / "metrics.csv").unlink(), "metrics.csv: not there"),
        ("metrics", lambda folder: (folder / "metrics.csv").write_text(""), "metrics.csv: is not the file"),
        (
            "evaluations",
            lambda folder: (folder / "evaluations/accuracy.json").write_text("{"),
            "accuracy.json: damaged",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "." not in value else "",
)
def test_a_file_that_is_missing_or_damaged_is_named(copied, name, damage, words):
    run = capsbench.load_run(copied)
    damage(copied)
    with pytest.raises(InputError, match=words):
        getattr(run, name)


def test_evaluations_of_an_earlier_training_do_not_count(copied):
    change_record(copied, started="2001-01-01T00:00:00Z")
    assert capsbench.load_run(copied).evaluations == {}


def test_results_has_a_row_per_run():
    frame = capsbench.results("results/quick")
    assert len(frame) == 10
    row = frame.set_index("key").loc[KEY]
    assert (row["status"], row["label"], row["model"], row["data_set"], row["seed"]) == (
        "ok", "CNN", "cnn_matched", "digits", 0,
    )  # fmt: skip
    run = capsbench.load_run(f"results/quick/runs/{KEY}")
    assert row["test_error"] == run.evaluations["accuracy"]["error"]
    assert row["parameters"] == sum(p.numel() for p in run.model.parameters())
    assert row["option.matched_to"] == "capsnet"
    assert row["option.matched_to.conv_channels"] == 8
    not_evaluated = frame.set_index("key").loc["digits/cnn_matched/seed1"]
    assert not_evaluated["status"] == "ok"
    assert pd.isna(not_evaluated["test_error"])


def test_results_show_runs_that_failed(project, tmp_path):
    folder = Path(shutil.copytree(project / "results/quick", tmp_path / "quick"))
    change_record(folder / "runs" / KEY, status="failed")
    frame = capsbench.results(folder)
    assert list(frame.loc[frame["key"] == KEY, "status"]) == ["failed"]
    (folder / "runs" / KEY / "run.yaml").write_text("{status: ok, digest: x}")
    with pytest.raises(InputError, match=r"run\.yaml: damaged"):
        capsbench.results(folder)


def test_results_of_a_folder_without_runs_is_one_line():
    with pytest.raises(InputError, match="results/nosuch: no runs here"):
        capsbench.results("results/nosuch")


def test_the_weights_are_those_that_were_trained():
    run = capsbench.load_run(Path(f"results/quick/runs/{KEY}"))
    saved = torch.load(RunFolder(run.path).model_path, weights_only=True)
    assert all(torch.equal(value, saved[name]) for name, value in run.model.state_dict().items())


def test_load_study_takes_a_path_or_a_name():
    assert capsbench.load_study("study.yaml").study.name == "quick"
    assert capsbench.load_study(Path("study.yaml")).runs
    assert capsbench.load_study("quick").study.name == "quick"  # shipped
    with pytest.raises(InputError, match="no study 'nosuch'"):
        capsbench.load_study("nosuch")


def test_arrays_are_plain_numpy():
    run = capsbench.load_run(f"results/quick/runs/{KEY}")
    assert all(isinstance(array, np.ndarray) for array in run.predictions.values())


def test_import_is_light_and_packages_come_when_they_are_used():
    code = """\
import sys
import capsbench
light = sorted({"torch", "numpy", "pandas", "pydantic", "mlflow", "click"} & sys.modules.keys())
print("loaded:", *light)
print(capsbench.routing.dynamic_routing.__name__, capsbench.data.load.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["loaded:", "dynamic_routing load"]
    assert {"load_run", "data", "routing"} <= set(dir(capsbench))
    with pytest.raises(AttributeError, match="nosuch"):
        _ = capsbench.nosuch


def test_the_package_has_a_version_and_says_that_it_is_typed():
    assert re.fullmatch(r"\d+\.\d+\.\d+", capsbench.__version__)
    assert Path(os.fspath(capsbench.__file__)).with_name("py.typed").exists()


def test_a_run_that_diverged_loads_with_what_there_is(copied):
    change_record(copied, status="diverged", files={})
    np.savez(copied / "predictions.npz")
    run = capsbench.load_run(copied)
    assert run.record["status"] == "diverged"
    assert list(run.metrics["epoch"]) == [1, 2]
    assert run.predictions == {}
