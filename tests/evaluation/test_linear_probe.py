"""A linear probe finds what is linear, and pixels are its yardstick."""

from types import SimpleNamespace

import pytest
import torch
from small_tasks import task_of

from capsbench.evaluation import collect_predictions
from capsbench.evaluation.accuracy import count_errors
from capsbench.evaluation.linear_probe import linear_probe, probe
from capsbench.models import Network, Output, build_model


def given(training, test, model):
    return SimpleNamespace(training_images=lambda: training, task=lambda: test, model=model)


def test_a_linear_code_is_read_and_noise_is_not():
    labels = torch.arange(300) % 3
    code = torch.eye(3)[labels] @ torch.randn(3, 20) + 0.05 * torch.randn(300, 20)
    assert probe(code[:150], labels[:150], code[150:], labels[150:]) == (100.0, True)
    noise = torch.randn(300, 20)
    assert probe(noise[:150], labels[:150], noise[150:], labels[150:])[0] < 55


def test_values_are_standardised():
    labels = torch.arange(200) % 2
    value = torch.randn(200, 3)
    value[:, 0] = 1e-4 * (2 * labels - 1) + 1e-5 * torch.randn(200)
    assert probe(value[:100], labels[:100], value[100:], labels[100:])[0] == 100


def test_a_class_without_training_images_is_never_said():
    labels = torch.tensor([0, 2] * 20)
    code = torch.eye(5)[labels]
    accuracy, _ = probe(code, labels, torch.eye(5)[[0, 2, 4, 1]], torch.tensor([0, 2, 4, 1]))
    assert accuracy == 50


def test_both_classes_of_a_pair_are_told():
    pairs = torch.tensor([[a, b] for a in range(4) for b in range(a + 1, 4)]).repeat(20, 1)
    code = torch.eye(4)[pairs].sum(dim=1) + 0.05 * torch.randn(len(pairs), 4)
    accuracy, _ = probe(code[:60], pairs[:60], code[60:], pairs[60:])
    assert accuracy == 100
    wrong = pairs[60:].clone()
    wrong[:30] = torch.tensor([[0, 1], [2, 3]])[(wrong[:30, :1] == 0).long().squeeze(1)]
    expected = 100 * float((wrong == pairs[60:]).all(dim=1).double().mean())
    assert expected < 100
    assert probe(code[:60], pairs[:60], code[60:], wrong)[0] == pytest.approx(expected)


class Knows(Network):
    """Its poses hold the class, which its pixels hide in one grey modulo 5; it says class 0 itself."""

    def forward(self, images, labels=None):
        hidden = (images[:, 0, 0, 0] * 255).round().long() % 5
        poses = torch.eye(5)[hidden][:, None].repeat(1, 5, 1)
        scores = torch.eye(5)[torch.zeros_like(hidden)]
        return Output(scores, poses=poses, activations=scores)


def test_the_probe_on_poses_is_compared_with_pixels_and_the_network():
    training, test = task_of(images=200), task_of(images=60)
    for task in (training, test):
        task.images = torch.randint(0, 256, task.images.shape, dtype=torch.uint8)
        task.images[:, 0, 0, 0] = (task.labels + 5 * torch.randint(0, 50, task.labels.shape)).to(torch.uint8)
    found = linear_probe(given(training, test, Knows()), train_images=100, images=50)
    assert (found["of"], found["images"]) == ("poses", 50)
    assert found["sizes"] == {"train_images": 100, "values": 25, "pixels": 784}
    assert found["accuracy"] == 100
    assert found["pixels_accuracy"] < 60
    assert found["network_accuracy"] == 20


def test_features_of_a_cnn_and_its_own_accuracy():
    task = task_of(images=60)
    model = build_model("resnet20", (1, 28, 28), 10, widths=(4, 8), blocks=1).eval()
    found = linear_probe(given(task, task, model), train_images=60, images=1000)
    assert found["of"] == "features" and found["sizes"]["values"] == 8
    assert found["network_accuracy"] == count_errors(collect_predictions(model, task))["accuracy"]
    assert found["pixels_accuracy"] == 100  # it has seen them
