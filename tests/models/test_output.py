"""What is predicted from a network's output."""

import torch
from small_networks import build_small

from capsbench.models import count_parameters, predict, predicted_classes


def test_the_prediction_of_several_objects_is_the_highest_scores_ascending():
    scores = torch.tensor([[0.1, 0.9, 0.0, 0.5], [0.7, 0.1, 0.8, 0.2]])
    assert predicted_classes(scores, 2).tolist() == [[1, 3], [0, 2]]
    assert predicted_classes(scores).tolist() == [1, 2]


def test_a_prediction_draws_the_classes_that_it_predicts():
    model, images = build_small("capsnet", weight_std=1.0).eval(), torch.rand(3, 1, 28, 28)
    one, two = predict(model, images), predict(model, images, objects=2)
    torch.testing.assert_close(one.reconstructions, model(images, one.scores.argmax(dim=1)).reconstructions)
    labels = predicted_classes(one.scores, 2)
    assert two.reconstructions.shape == (3, 2, 1, 28, 28)
    torch.testing.assert_close(two.reconstructions, model(images, labels).reconstructions)
    torch.testing.assert_close(two.scores, one.scores)


def test_a_prediction_without_a_decoder_is_one_pass():
    model, calls = build_small("resnet20").eval(), []
    model.register_forward_hook(lambda module, inputs, output: calls.append(inputs))
    assert predict(model, torch.rand(2, 1, 28, 28), objects=2).reconstructions is None
    assert [len(inputs) for inputs in calls] == [1]  # images, no labels


def test_frozen_parameters_are_not_counted():
    layer = torch.nn.Linear(3, 4)
    assert count_parameters(layer) == 16
    layer.bias.requires_grad_(False)
    assert count_parameters(layer) == 12
