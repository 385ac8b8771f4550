"""The baseline CNNs of S17 on MNIST and MultiMNIST and of H18 on smallNORB."""

import pytest
import torch
from separable import losses_on_separable_data

from capsbench.models import build_model, count_parameters

SMALL = {
    "cnn_sabour_mnist": {"conv_channels": (4, 4, 4), "hidden": (32, 32), "dropout": 0.0},
    "cnn_hinton_norb": {"conv_channels": (4, 8), "hidden": 32, "dropout": 0.0},
    "cnn_sabour_multimnist": {"conv_channels": (4, 8), "hidden": 32},
}
PAPERS = {
    "cnn_sabour_mnist": ((1, 28, 28), 10, 35_445_522),
    "cnn_hinton_norb": ((2, 32, 32), 5, 4_253_349),
    "cnn_sabour_multimnist": ((1, 36, 36), 10, 24_563_978),
}


def build(name, **options):
    torch.manual_seed(0)
    shape, num_classes, _ = PAPERS[name]
    return build_model(name, image_shape=shape, num_classes=num_classes, **{**SMALL[name], **options})


@pytest.mark.parametrize("name", PAPERS)
def test_published_parameter_counts_are_met_exactly(name):
    shape, num_classes, parameters = PAPERS[name]
    with torch.device("meta"):
        assert count_parameters(build_model(name, image_shape=shape, num_classes=num_classes)) == parameters


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("size", [1, 3])
def test_scores_are_logits_of_the_classes(name, size):
    shape, num_classes, _ = PAPERS[name]
    output = build(name)(torch.rand(size, *shape))
    assert output.scores.shape == (size, num_classes)
    assert output.scores.min() < 0
    assert output.poses is output.reconstructions is output.couplings is None


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("name", PAPERS)
def test_the_loss_falls_on_separable_data(name, pairs):
    shape, num_classes, _ = PAPERS[name]
    losses = losses_on_separable_data(build(name), shape, num_classes, pairs, steps=15, learning_rate=0.005)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("name", ["cnn_hinton_norb", "cnn_sabour_mnist"])
def test_dropout_acts_in_training_alone(name):
    model, images = build(name, dropout=0.5), torch.rand(8, *PAPERS[name][0])
    assert not torch.equal(model(images).scores, model(images).scores)
    model.eval()
    assert torch.equal(model(images).scores, model(images).scores)


@pytest.mark.parametrize("name", ["cnn_hinton_norb", "cnn_sabour_multimnist"])
def test_images_that_are_too_small_are_refused(name):
    with pytest.raises(ValueError, match="needs images of at least 4x4, not 3x32"):
        build_model(name, image_shape=(1, 3, 32), num_classes=5, **SMALL[name])
