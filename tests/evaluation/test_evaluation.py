import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import capsbench.evaluation.context as context
from capsbench import registry as protocols
from capsbench.data import load, make_task, read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.readers.raw import Raw
from capsbench.errors import InputError
from capsbench.evaluation import Predictions, collect_predictions, evaluate
from capsbench.evaluation.accuracy import count_errors
from capsbench.evaluation.reconstruction import reconstruction
from capsbench.models import Network, Output, build_model
from capsbench.run import provenance
from capsbench.run.code_version import evaluation_version
from capsbench.run.folder import RunFolder
from capsbench.run.train import train
from capsbench.study import Data, load_plan

CPU = torch.device("cpu")
PROTOCOLS = ["accuracy", "reconstruction"]
NOWHERE = Path("nowhere")


def run_of(tmp_path, model="capsnet", data=None, **training):
    options = {
        "capsnet": {"conv_channels": 8, "primary_types": 2},
        "cnn_matched": {"matched_to": {"name": "resnet20", "widths": [20, 40], "blocks": 1}},
    }[model]
    study = {
        "name": "study", "seeds": [0], "training": {"epochs": 1, "batch_size": 32, "device": "cpu", **training},
        "experiments": {"digits": {"data": {"name": "digits", "train_images": 320, **(data or {})}}},
        "variants": {"v": {"model": model, "options": options}},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    return load_plan(tmp_path / "study.yaml").runs[0]


def trained(tmp_path, *arguments, **options):
    run = run_of(tmp_path, *arguments, **options)
    train(run, tmp_path / "r", NOWHERE, tracking=False)
    return run, RunFolder.of(tmp_path / "r", run.study, run.key)


def predictions(scores, labels, errors=None):
    images = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    return Predictions(torch.tensor(scores), torch.tensor(labels), 4, errors, images, images, None)


def given(*arguments):
    """Return a context that has predictions and nothing else."""
    return SimpleNamespace(predictions=lambda: predictions(*arguments))


def test_error_is_counted_over_all_images_at_once():
    found = count_errors(predictions([[1.0, 0], [1, 0], [0, 1], [1, 0], [1, 0]], [0, 0, 1, 1, 0]))
    assert (found["errors"], found["images"], found["error"], found["accuracy"]) == (1, 5, 20.0, 80.0)
    assert found["error_by_class"] == {"0": 0.0, "1": 50.0}


def test_both_scores_of_pairs_are_counted_under_names_of_their_own():
    # both right; one of two right; both wrong; both right, the other way round
    scores = [[0.9, 0.8, 0, 0], [0.9, 0, 0.8, 0], [0, 0, 0.9, 0.8], [0.8, 0.9, 0, 0]]
    found = count_errors(predictions(scores, [[0, 1]] * 4))
    assert (found["pair_exact_error"], found["per_digit_error"]) == (50.0, 37.5)
    assert found["error"] == found["pair_exact_error"]
    assert found["error_by_class"] == {"0": 25.0, "1": 50.0}


def test_reconstruction_error_is_a_sum_per_image_and_a_mean_over_pixels():
    found = reconstruction(given([[1.0, 0]] * 2, [0, 0], torch.tensor([2.0, 4.0])))
    assert (found["squared_error"], found["mean_squared_error"]) == (3.0, 0.75)
    assert reconstruction(given([[1.0, 0]], [0]))["status"] == "not applicable"


@pytest.mark.slow
def test_evaluation_agrees_with_the_network_one_image_at_a_time(tmp_path):
    run, folder = trained(tmp_path)
    found = evaluate(run, tmp_path / "r", NOWHERE, PROTOCOLS)
    test = load("digits", NOWHERE, "test")
    model = build_model("capsnet", (1, 28, 28), 10, **run.options)
    model.load_state_dict(torch.load(folder.model_path, weights_only=True))
    model.eval()
    wrong, squares = 0, 0.0
    with torch.no_grad():
        for image, label in zip(test.images, test.labels, strict=True):
            x = image.unsqueeze(0) / 255
            output = model(x)
            wrong += int(output.scores.argmax() != label)
            squares += float((output.reconstructions - x).square().sum())
    assert found["accuracy"]["errors"] == wrong
    assert found["accuracy"]["images"] == len(test.images)
    assert found["reconstruction"]["squared_error"] == pytest.approx(squares / len(test.images), rel=1e-4)
    assert found["accuracy"]["commit"] == provenance.commit()
    for protocol in PROTOCOLS:
        written = json.loads(folder.evaluation_path(protocol).read_text())
        assert written.pop("checksum") and written == found[protocol]
    with np.load(folder.predictions_path) as arrays:
        assert arrays["scores"].shape == (539, 10)
        assert (arrays["scores"].argmax(1) != arrays["labels"]).sum() == wrong
        assert arrays["sample_images"].shape == arrays["sample_reconstructions"].shape == (10, 1, 28, 28)
        assert arrays["sample_images"].dtype == np.uint8


def test_samples_are_the_first_image_of_each_class():
    images = torch.randint(0, 256, (30, 1, 28, 28), dtype=torch.uint8)
    model = build_model("capsnet", (1, 28, 28), 10, conv_channels=4, primary_types=1)
    raw = Raw(images.numpy(), np.arange(30) % 10)
    found = collect_predictions(model, make_task(Data(name="digits"), raw, "test", CPU))
    assert torch.equal(found.sample_images, images[:10])
    expected = model(images[:10] / 255.0).reconstructions * 255
    assert (found.sample_reconstructions - expected).abs().max() <= 0.51


def test_a_cnn_has_nothing_to_reconstruct(tmp_path):
    run, folder = trained(tmp_path, "cnn_matched")
    found = evaluate(run, tmp_path / "r", NOWHERE, PROTOCOLS)
    assert found["reconstruction"]["status"] == "not applicable"
    assert found["accuracy"]["status"] == "ok"
    with np.load(folder.predictions_path) as arrays:
        assert "sample_reconstructions" not in arrays


def test_evaluating_twice_gives_the_same(tmp_path):
    run, folder = trained(tmp_path)
    first = evaluate(run, tmp_path / "r", NOWHERE, PROTOCOLS)
    content = folder.evaluation_path("accuracy").read_bytes()
    assert evaluate(run, tmp_path / "r", NOWHERE, PROTOCOLS) == first
    assert folder.evaluation_path("accuracy").read_bytes() == content


def test_a_diverged_run_gets_files_without_numbers(tmp_path):
    run, folder = trained(tmp_path, learning_rate=1e30)
    found = evaluate(run, tmp_path / "r", NOWHERE, PROTOCOLS)
    record = folder.read_record()
    weights = record["files"]["model.pt"]
    about = {"commit": provenance.commit(), "training_started": record["started"], "weights": weights}
    codes = {name: found[name].pop("code") for name in PROTOCOLS}
    assert codes == {name: evaluation_version(run, [protocols.PROTOCOLS.options(name)()]) for name in PROTOCOLS}
    assert found == {name: {"status": "diverged", **about} for name in PROTOCOLS}
    assert folder.predictions_path.exists()


def test_what_is_not_finished_or_is_of_another_study_is_refused(tmp_path):
    run = run_of(tmp_path)
    with pytest.raises(InputError, match="the run is not there"):
        evaluate(run, tmp_path / "r", NOWHERE, PROTOCOLS)
    trained(tmp_path)
    with pytest.raises(InputError, match="another configuration"):
        evaluate(run_of(tmp_path, epochs=2), tmp_path / "r", NOWHERE, PROTOCOLS)


def test_both_digits_of_pairs_are_reconstructed(tmp_path):
    run, folder = trained(tmp_path, data={"name": "multidigits", "options": {"train_pairs": 300, "test_pairs": 120}})
    found = evaluate(run, tmp_path / "r", NOWHERE, ["accuracy", "familiar", "reconstruction"])
    assert found["accuracy"]["images"] == 120
    assert found["accuracy"]["per_digit_error"] <= found["accuracy"]["pair_exact_error"]
    assert found["familiar"]["status"] == "not applicable"
    test = load("multidigits", NOWHERE, "test", test_pairs=120)
    with np.load(folder.predictions_path) as arrays:
        assert arrays["labels"].shape == (120, 2)
        assert arrays["sample_images"].shape[1:] == (1, 36, 36)
        assert arrays["sample_targets"].shape == arrays["sample_reconstructions"].shape
        assert arrays["sample_targets"].shape[1:] == (2, 1, 36, 36)
    model = build_model("capsnet", (1, 36, 36), 10, **run.options)
    model.load_state_dict(torch.load(folder.model_path, weights_only=True))
    with torch.no_grad():
        images, sources = test.images / 255.0, test.sources / 255.0
        predicted = model(images).scores.topk(2, dim=1).indices.sort(dim=1).values
        squares = (model(images, predicted).reconstructions - sources).square().sum() / 120
    assert found["reconstruction"]["squared_error"] == pytest.approx(float(squares), rel=1e-4)
    assert found["accuracy"]["errors"] == int((predicted != test.labels.nonzero()[:, 1].view(120, 2)).any(dim=1).sum())


@pytest.mark.parametrize(
    ("chosen", "familiar", "test"),
    [
        pytest.param({"name": "affdigits", "options": {"transforms_per_image": 2}}, 539, 1078, id="affine"),
        pytest.param(
            {"name": "toynorb", "options": {"lightings": 1, "view": "azimuth"}},
            1350,
            2700,
            id="views",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_novel_and_familiar_images_are_both_measured(tmp_path, chosen, familiar, test):
    run, folder = trained(tmp_path, "cnn_matched", data=chosen)
    found = evaluate(run, tmp_path / "r", NOWHERE, ["accuracy", "familiar"])
    assert (found["familiar"]["images"], found["accuracy"]["images"]) == (familiar, test)
    assert found["accuracy"]["unofficial"] == []
    items = {"test": found["accuracy"]["data_fingerprint"], "familiar": found["familiar"]["data_fingerprint"]}
    assert items["test"] != items["familiar"]
    shown = folder.read_record()["data"]["shown"]
    assert {split: shown[split] for split in items} == items
    with np.load(folder.predictions_path) as arrays:
        assert {"test": str(arrays["fingerprint"]), "familiar": str(arrays["familiar_fingerprint"])} == items
        wrong = arrays["familiar_scores"].argmax(1) != arrays["familiar_labels"]
        assert wrong.sum() == found["familiar"]["errors"]
        cluster = "digits" if "digits" in arrays else "factor_instance"
        assert arrays[cluster].shape == (test,)
        assert arrays[f"familiar_{cluster}"].shape == (familiar,)


def test_run_yaml_names_the_files_of_the_test_that_are_not_official(tmp_path, monkeypatch):
    run, folder = trained(tmp_path, "cnn_matched")
    assert folder.read_record()["data"]["unofficial"] == []

    def copy(data, root, split):
        return dataclasses.replace(read_split(data, root, split), unofficial=(f"{split}.mat: md5 1",))

    monkeypatch.setattr(context, "read_split", copy)
    found = evaluate(run, tmp_path / "r", NOWHERE, PROTOCOLS)
    assert found["accuracy"]["unofficial"] == ["test.mat: md5 1"]
    assert folder.read_record()["data"]["unofficial"] == ["test.mat: md5 1"]


class Rule(Network):
    """Scores that follow from the mean of an image, with activations or without."""

    def __init__(self, activations: bool):
        super().__init__()
        self.has_activations = activations

    def forward(self, images, labels=None):
        first = images[:, 0, :8].abs().mean(dim=(1, 2))
        scores = torch.stack([5 * first, first**2, 1 - first], dim=1)
        return Output(scores, activations=scores.sigmoid() if self.has_activations else None)


def several_crops(views):
    images = np.random.default_rng(0).integers(0, 256, (30, 2, 48, 48), dtype=np.uint8)
    images[:, :, 10:20] //= 3
    data = Data(name="smallnorb", options=CATALOGUE["smallnorb"].options(test_crops=views))
    return make_task(data, Raw(images, np.arange(30) % 3), "test", CPU)


@pytest.mark.parametrize("activations", [True, False])
def test_the_shares_of_several_crops_are_averaged(activations):
    task, model = several_crops(13), Rule(activations)
    each = []
    for view in range(13):
        output = model(task.eval_batch(torch.arange(30), view).images)
        summed = output.activations / output.activations.sum(1, keepdim=True) if activations else None
        each.append(summed if activations else output.scores.exp() / output.scores.exp().sum(1, keepdim=True))
    found = collect_predictions(model, task).scores
    torch.testing.assert_close(found, torch.stack(each).mean(dim=0))
    torch.testing.assert_close(found.sum(dim=1), torch.ones(30))
    assert torch.stack(each).std(dim=0).max() > 1e-3


@pytest.mark.parametrize("activations", [True, False])
def test_the_scores_of_one_crop_stay_as_they_are(activations):
    task, model = several_crops(1), Rule(activations)
    assert torch.equal(
        collect_predictions(model, task).scores, model(task.eval_batch(torch.arange(30), 0).images).scores
    )
