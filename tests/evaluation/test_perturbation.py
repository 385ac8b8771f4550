"""Poses changed value by value: the middle step is the reconstruction, and decoders with known effects."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from small_runs import run_of
from torch import nn

from capsbench.evaluation import Context
from capsbench.evaluation.perturbation import changes, perturbation, perturbed_images
from capsbench.layers.decoders import Decoder
from capsbench.models import Network, Output, build_model

CPU = torch.device("cpu")
DECODER = {"name": "fully_connected", "hidden": (16, 32)}
NETWORKS = {
    "capsnet": {"conv_channels": 4, "primary_types": 1, "decoder": DECODER},
    "capsnet, EM": {"conv_channels": 4, "primary_types": 1, "decoder": DECODER, "routing": "em"},
    "efficient_capsnet": {"conv_channels": (8, 8, 8, 16), "decoder": DECODER},
    "deepcaps": {"conv_channels": 8, "cell_types": (2, 2), "cell_dims": (4, 4), "class_dim": 6, "input_side": 32},
}


class OneValue(Decoder):
    """Every pixel is 0.5 + value 0 of the chosen capsule + half of value 1; the others do nothing."""

    def __init__(self):
        super().__init__("selected", 0.0, "sum")

    def decode(self, values):
        brightness = 0.5 + values[..., 0] + values[..., 1] / 2
        return brightness[..., None, None, None].expand(*brightness.shape, 1, 4, 4)


class Fixed(Network):
    """Poses of 4 values, all 0, and the class that the first pixel tells."""

    def __init__(self):
        super().__init__()
        self.decoder = OneValue()

    def forward(self, images, labels=None):
        scores = nn.functional.one_hot(images[:, 0, 0, 0].long(), 3).float()
        poses = torch.zeros(len(images), 3, 4)
        return Output(scores, poses, self.decoder(poses, scores, labels))


def context_of(tmp_path, model="capsnet", options=None, data=None):
    run = run_of(tmp_path, data=data)
    network = build_model(model, run.data.image_shape, 10, **(options or NETWORKS[model])).eval()
    return Context(run, network, CPU, tmp_path, Path("nowhere"))


def test_a_decoder_of_known_effect():
    images = torch.tensor([2.0, 0.0])[:, None, None, None].expand(2, 1, 4, 4)
    found, said = perturbed_images(Fixed(), images, 0.25)
    assert found.shape == (2, 4, 11, 1, 4, 4)
    assert said.tolist() == [2, 0]
    steps = torch.linspace(-0.25, 0.25, 11)
    torch.testing.assert_close(found[1, 0, :, 0, 3, 3], 0.5 + steps)
    torch.testing.assert_close(found[0, 1, :, 0, 0, 0], 0.5 + steps / 2)
    assert (found[:, 2:] == 0.5).all()
    torch.testing.assert_close(changes(found), torch.tensor([[0.25, 0.125, 0, 0]] * 2).double())


def test_the_protocol_counts_values_without_effect(tmp_path):
    context = context_of(tmp_path)
    object.__setattr__(context, "model", Fixed())
    # of the digits the first pixel is 0: all samples are said to be of class 0
    found = perturbation(context, reach=0.2)
    assert found["dead_dimensions"] == 50.0
    assert found["change_by_dimension"] == pytest.approx([20, 10, 0, 0], abs=1e-4)
    assert (found["strongest_change"], found["change"]) == (pytest.approx(20), pytest.approx(7.5))
    assert found["curves"][0]["y"] == pytest.approx([20, 10, 0, 0], abs=1e-4)
    assert found["steps"] == pytest.approx([-0.2, -0.16, -0.12, -0.08, -0.04, 0, 0.04, 0.08, 0.12, 0.16, 0.2])
    assert set(found["sample_predictions"]) == {0} and found["sample_labels"] == list(range(10))


@pytest.mark.parametrize("name", list(NETWORKS))
def test_the_middle_column_is_the_reconstruction(tmp_path, name):
    context = context_of(tmp_path, name.split(",")[0], NETWORKS[name])
    found = perturbation(context)
    images = found["perturbed"]
    dim = 6 if name == "deepcaps" else 16
    assert (images.shape, images.dtype) == ((10, dim, 11, 1, 28, 28), np.uint8)
    expected = context.predictions().sample_reconstructions
    for d in range(dim):
        assert_array_equal(images[:, d, 5], expected)
    assert found["change"] > 0


def test_only_the_winning_capsule_is_changed(tmp_path):
    """The image of a step is what the decoder makes of the pose with that value changed."""
    network = build_model("capsnet", (1, 28, 28), 10, **NETWORKS["capsnet"]).eval()
    images = torch.rand(3, 1, 28, 28)
    found, said = perturbed_images(network, images, 0.25)
    with torch.no_grad():
        output = network(images)
        poses = output.poses.clone()
        poses[torch.arange(3), said, 7] += 0.15
        torch.testing.assert_close(found[:, 7, 8], network.decoder(poses, output.scores, None))
        assert torch.equal(found[:, 0, 5], output.reconstructions)
    assert not network.decoder._forward_hooks


def test_a_larger_reach_changes_more(tmp_path):
    context = context_of(tmp_path)
    assert perturbation(context, reach=0.5)["change"] > 1.5 * perturbation(context)["change"]


def test_in_a_pair_the_strongest_class_is_decoded(tmp_path):
    context = context_of(tmp_path, data={"name": "multidigits", "options": {"test_pairs": 60, "train_pairs": 60}})
    found = perturbation(context)
    both = context.predictions().sample_reconstructions  # [P, 2, 1, 36, 36]
    middle = torch.from_numpy(found["perturbed"][:, 0, 5])
    assert (both.eq(middle.unsqueeze(1)).flatten(2).all(dim=2).any(dim=1)).all()


@pytest.mark.parametrize("name", ["capsnet", "cnn_sabour_mnist"])
def test_no_decoder_has_nothing_to_show(tmp_path, name):
    options = {"capsnet": {"conv_channels": 4, "primary_types": 1, "decoder": None},
               "cnn_sabour_mnist": {"conv_channels": (4, 4, 4), "hidden": (8, 8)}}[name]  # fmt: skip
    found = perturbation(context_of(tmp_path, name, options))
    assert found["status"] == "not applicable" and "decoder" in found["reason"]
