import math

import numpy as np
import pytest
import torch
from torch import nn

from capsbench.data import make_task, read_split
from capsbench.evaluation import collect_predictions
from capsbench.evaluation.accuracy import count_errors
from capsbench.models import Network, Output
from capsbench.run.metrics import chance, classification_error, never_left_chance, sums_over_images
from capsbench.study import Data, catalogue


def test_chance_is_the_most_frequent_class_or_any_classes_of_several():
    assert chance(np.array([0, 1, 1, 2]), objects=1, classes=3) == 0.5
    assert chance(np.array([0, 1, 1, 2]), objects=2, classes=10) == 0.2


@pytest.mark.parametrize(
    ("accuracies", "images", "guessed", "stuck"),
    [
        ([0.2, 0.2, 0.2], 10_000, 0.2, True),
        ([0.2, 0.219, 0.2], 100_000, 0.2, True),  # five standard errors are 0.006: two points are more
        ([0.2, 0.221, 0.2], 100_000, 0.2, False),  # one epoch is enough
        ([0.279], 625, 0.2, True),  # five standard errors are 0.08
        ([0.281], 625, 0.2, False),
        ([0.02, 0.0], 1000, 0.1, True),  # worse than guessing
        ([1.0], 1000, 0.1, False),
        ([], 1000, 0.1, False),  # nothing was trained
    ],
)
def test_a_training_that_was_never_better_than_guessing(accuracies, images, guessed, stuck):
    assert never_left_chance(accuracies, [images] * len(accuracies), guessed) is stuck


def test_a_cut_epoch_of_few_images_has_a_wide_margin():
    assert never_left_chance([0.1, 0.3], [10_000, 32], 0.1)
    assert not never_left_chance([0.1, 0.3], [10_000, 10_000], 0.1)


def test_sums_over_images_of_one_class_and_of_several():
    activations = torch.tensor([[0.9, 0.1, 0.2, 0.0], [0.3, 0.5, 0.1, 0.1]])
    scores = torch.special.logit(activations, eps=1e-6)  # the prediction is the same, the lengths are not
    correct, found, right, wrong = sums_over_images(scores, activations, torch.tensor([0, 2])).tolist()
    assert (correct, found) == (1, 1)
    assert (right, wrong) == pytest.approx((0.9 + 0.1, 0.3 / 3 + 0.9 / 3))
    labels = torch.tensor([[0, 2], [0, 2]])  # both found; one of two
    correct, found, right, wrong = sums_over_images(scores, activations, labels).tolist()
    assert (correct, found) == (1, 1.5)
    assert (right, wrong) == pytest.approx((1.1 / 2 + 0.4 / 2, 0.1 / 2 + 0.6 / 2))


class Linear(Network):
    """A network that is not trained, and yet does not predict the same class for all images."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.classes = nn.Linear(math.prod(image_shape), num_classes)

    def forward(self, images, labels=None):
        return Output(self.classes(images.flatten(1)))


@pytest.mark.parametrize("crops", [1, 13])
def test_the_familiar_error_in_training_is_that_of_the_evaluation(tmp_path, crops):
    options = catalogue()["toynorb"].options(lightings=1, view="azimuth", test_crops=crops)
    data = Data(name="toynorb", options=options)
    task = make_task(data, read_split(data, tmp_path, "familiar"), "familiar", torch.device("cpu"))
    assert task.views == crops
    model = Linear(data.image_shape, 5)
    found = classification_error(model, task)
    assert found == count_errors(collect_predictions(model, task))["error"]
    task.views = 1
    one = count_errors(collect_predictions(model, task))["error"]
    assert 0 < one < 100
    assert (found == one) is (crops == 1)
