"""Calibration against hand arrays and scikit-learn, and how the scores of each kind of network are read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss
from small_runs import run_of

from capsbench.evaluation import Context
from capsbench.evaluation.accuracy import count_errors
from capsbench.evaluation.calibration import brier_score, calibration, kind_of, readings, reliability
from capsbench.models import Output, build_model

CPU = torch.device("cpu")


def context_of(tmp_path, model="capsnet", data=None, **options):
    run = run_of(tmp_path, data=data)
    if model == "capsnet":
        options = {"conv_channels": 4, "primary_types": 1, "decoder": None, **options}
    network = build_model(model, run.data.image_shape, 10, **options).eval()
    return Context(run, network, CPU, tmp_path, Path("nowhere"))


def test_ece_by_hand():
    # bins of 0.5: 0.4 twice, one right; 0.6 twice and 1.0, two right
    confidence, right = torch.tensor([0.4, 0.4, 0.6, 0.6, 1.0]), torch.tensor([True, False, True, False, True])
    found = reliability(confidence, right, bins=2)
    assert found["ece"] == pytest.approx(100 * (abs(1 - 0.8) + abs(2 - 2.2)) / 5)
    assert found["overconfidence"] == pytest.approx(0, abs=1e-4)
    assert [row["predictions"] for row in found["bins"]] == [2, 3]
    assert found["bins"][1]["confidence"] == pytest.approx(100 * 2.2 / 3)
    assert found["bins"][1]["accuracy"] == pytest.approx(200 / 3)


def test_known_confidences():
    right = torch.arange(1000) % 10 < 7
    assert reliability(torch.full((1000,), 0.7), right, 15)["ece"] == pytest.approx(0, abs=1e-5)
    sure = reliability(torch.ones(1000), right, 15)
    assert (sure["ece"], sure["overconfidence"]) == (pytest.approx(30), pytest.approx(30))
    assert reliability(torch.zeros(1000), right, 15)["overconfidence"] == pytest.approx(-70)


def test_an_edge_belongs_to_the_bin_below():
    found = reliability(torch.tensor([0.0, 0.25, 0.26, 0.5, 1.0], dtype=torch.float64), torch.ones(5).bool(), 4)
    assert [row["predictions"] for row in found["bins"]] == [2, 2, 1]


def test_bins_are_those_of_scikit_learn():
    rng = np.random.default_rng(0)
    confidence = rng.random(2000)
    right = rng.random(2000) < confidence**2
    found = reliability(torch.from_numpy(confidence), torch.from_numpy(right), 15)["bins"]
    accuracy, mean = calibration_curve(right, confidence, n_bins=15)
    assert_allclose([row["accuracy"] for row in found], 100 * accuracy)
    assert_allclose([row["confidence"] for row in found], 100 * mean)
    assert len(found) == 15


def test_brier_score_by_hand_and_by_scikit_learn():
    assert brier_score(torch.tensor([[1.0, 0], [0.5, 0.5], [1, 0]]), torch.tensor([0, 0, 1])) == pytest.approx(2.5 / 3)
    assert brier_score(torch.tensor([[1.0, 0.5, 0.2]]), torch.tensor([[0, 1]])) == pytest.approx(0.25 + 0.04)
    rng = np.random.default_rng(0)
    labels, shares = rng.integers(0, 4, 300), rng.dirichlet(np.ones(4), 300)
    expected = sum(brier_score_loss(labels == k, shares[:, k]) for k in range(4))
    assert brier_score(torch.from_numpy(shares), torch.from_numpy(labels)) == pytest.approx(expected)


def test_scores_are_read_as_what_they_are():
    lengths = torch.tensor([[0.9, 0.3, 0.3]])
    found = readings(lengths, "activations")
    assert_allclose(found["activations"], lengths, rtol=1e-6)
    assert_allclose(found["shares"], [[0.6, 0.2, 0.2]], rtol=1e-6)
    assert found.keys() == {"activations", "shares"}
    assert_allclose(readings(lengths.logit(), "logits of activations")["shares"], [[0.6, 0.2, 0.2]], rtol=1e-5)
    assert_allclose(readings(lengths.log(), "logs of activations")["shares"], [[0.6, 0.2, 0.2]], rtol=1e-5)
    assert readings(lengths, "logits").keys() == {"logits"}
    assert_allclose(readings(lengths, "logits")["logits"], lengths.softmax(1), rtol=1e-6)
    assert readings(lengths, "shares").keys() == {"shares"}


def test_of_several_objects_each_is_present_or_not():
    values = torch.tensor([[0.9, 0.8, 0.1]])
    assert readings(values, "activations", 2).keys() == {"activations"}
    assert_allclose(readings(values, "logits", 2)["logits"], values.sigmoid(), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("capsnet", {}, "activations"),
        ("capsnet", {"routing": "em"}, "logits of activations"),
        ("capsnet", {"routing": "heinsen"}, "logits of activations"),
        ("self_routing_capsnet", {"types": 2, "widths": (4, 8), "blocks": 1}, "logs of activations"),
        ("cnn_sabour_mnist", {"conv_channels": (4, 4, 4), "hidden": (8, 8)}, "logits"),
    ],
)
def test_networks_say_what_their_scores_are(name, options, kind):
    if name == "capsnet":
        options = {"conv_channels": 4, "primary_types": 1, "decoder": None, **options}
    network = build_model(name, (1, 28, 28), 10, **options).eval()
    with torch.no_grad():
        assert kind_of(network(torch.rand(2, 1, 28, 28))) == kind


def test_activations_that_follow_in_no_known_way_leave_the_scores():
    assert kind_of(Output(torch.tensor([[1.0, 2.0]]), activations=torch.tensor([[0.2, 0.1]]))) == "logits"


def test_the_protocol_has_the_accuracy_of_accuracy(tmp_path):
    context = context_of(tmp_path)
    found = calibration(context)
    assert found["accuracy"] == pytest.approx(count_errors(context.predictions())["accuracy"])
    assert {"ece_activations", "ece_shares", "brier_shares"} <= found.keys()
    assert "ece_logits" not in found
    assert [line["name"] for line in found["curves"]] == ["activations", "shares"]
    by_bin = found["readings"]["shares"]["bins"]
    assert sum(row["predictions"] for row in by_bin) == 539
    right = sum(row["predictions"] * row["accuracy"] / 100 for row in by_bin)
    assert right == pytest.approx(count_errors(context.predictions())["accuracy"] * 539 / 100)
    assert found["curves"][1]["x"] == sorted(found["curves"][1]["x"])
    assert len(calibration(context, bins=1)["readings"]["shares"]["bins"]) == 1


def test_of_pairs_each_digit_that_is_said_counts(tmp_path):
    data = {"name": "multidigits", "options": {"test_pairs": 60, "train_pairs": 60}}
    context = context_of(tmp_path, data=data)
    found = calibration(context)
    assert found["accuracy"] == pytest.approx(100 - count_errors(context.predictions())["per_digit_error"])
    assert sum(row["predictions"] for row in found["readings"]["activations"]["bins"]) == 120
    assert "ece_shares" not in found


def test_a_cnn_has_logits_alone(tmp_path):
    context = context_of(tmp_path, "cnn_sabour_mnist", conv_channels=(4, 4, 4), hidden=(8, 8))
    found = calibration(context)
    shares = context.predictions().scores.double().softmax(1)
    right = shares.argmax(1) == context.predictions().labels
    assert found["ece_logits"] == pytest.approx(reliability(shares.max(1).values, right, 15)["ece"])
    assert found["readings"].keys() == {"logits"}
