import json
from pathlib import Path

import numpy as np
import pytest
import torch

from capsbench import data
from capsbench.config import load_plan
from capsbench.errors import InputError
from capsbench.evaluation import accuracy, evaluate, reconstruction
from capsbench.evaluation.predictions import Predictions, predict
from capsbench.models import build_model
from capsbench.run_folder import RunFolder
from capsbench.training import train

PROTOCOLS = ["accuracy", "reconstruction"]
NOWHERE = Path("nowhere")


def run_of(tmp_path, model="capsnet", **training):
    options = {"capsnet": {"conv_channels": 8, "primary_types": 2}, "cnn_matched": {"parameters": 3000}}[model]
    study = {
        "name": "study", "seeds": [0], "training": {"epochs": 1, "batch_size": 32, "device": "cpu", **training},
        "experiments": {"digits": {"data": {"name": "digits", "train_images": 320}}},
        "variants": {"v": {"model": model, "options": options}},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    return load_plan(tmp_path / "study.yaml").runs[0]


def trained(tmp_path, *arguments, **options):
    run = run_of(tmp_path, *arguments, **options)
    train(run, tmp_path / "r", NOWHERE, tracking=False, say=lambda text: None)
    return run, RunFolder.of(tmp_path / "r", run.study, run.key)


def predictions(scores, labels, errors=None):
    images = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    return Predictions(torch.tensor(scores), torch.tensor(labels), 4, errors, images, None)


def test_error_is_counted_over_all_images_at_once():
    found = accuracy.measure(predictions([[1.0, 0], [1, 0], [0, 1], [1, 0], [1, 0]], [0, 0, 1, 1, 0]))
    assert (found["errors"], found["images"], found["error"], found["accuracy"]) == (1, 5, 20.0, 80.0)
    assert found["error_by_class"] == {"0": 0.0, "1": 50.0}


def test_reconstruction_error_is_a_sum_an_image_and_a_mean_a_pixel():
    found = reconstruction.measure(predictions([[1.0, 0]] * 2, [0, 0], torch.tensor([2.0, 4.0])))
    assert (found["squared_error"], found["mean_squared_error"]) == (3.0, 0.75)
    assert reconstruction.measure(predictions([[1.0, 0]], [0]))["status"] == "not applicable"


def test_evaluation_agrees_with_the_network_one_image_at_a_time(tmp_path):
    run, folder = trained(tmp_path)
    found = evaluate(run, tmp_path / "r", NOWHERE, PROTOCOLS)
    test = data.load("digits", NOWHERE, "test")
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
    for protocol in PROTOCOLS:
        assert json.loads(folder.evaluation_path(protocol).read_text()) == found[protocol]
    with np.load(folder.predictions_path) as arrays:
        assert arrays["scores"].shape == (539, 10)
        assert (arrays["scores"].argmax(1) != arrays["labels"]).sum() == wrong
        assert arrays["sample_images"].shape == arrays["sample_reconstructions"].shape == (10, 1, 28, 28)
        assert arrays["sample_images"].dtype == np.uint8


def test_samples_are_the_first_image_of_each_class():
    images = torch.randint(0, 256, (30, 1, 28, 28), dtype=torch.uint8)
    labels = torch.arange(30) % 10
    model = build_model("capsnet", (1, 28, 28), 10, conv_channels=4, primary_types=1)
    found = predict(model, images, labels)
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
    started = folder.read_record()["started"]
    assert found == {name: {"status": "diverged", "training_started": started} for name in PROTOCOLS}
    assert folder.predictions_path.exists()


def test_what_is_not_finished_or_is_of_another_study_is_refused(tmp_path):
    run = run_of(tmp_path)
    with pytest.raises(InputError, match="the run is not there"):
        evaluate(run, tmp_path / "r", NOWHERE, PROTOCOLS)
    trained(tmp_path)
    with pytest.raises(InputError, match="trained under another configuration"):
        evaluate(run_of(tmp_path, epochs=2), tmp_path / "r", NOWHERE, PROTOCOLS)
