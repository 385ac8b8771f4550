"""Poses of class capsules, or what a CNN's last linear layer is given."""

import pytest
import torch
from torch import nn

from capsbench.evaluation.representation import represent
from capsbench.models import Network, Output, build_model

SMALL = {"conv_channels": 4, "primary_types": 1}


def test_capsules_give_their_poses_and_activations():
    model = build_model("capsnet", (1, 28, 28), 10, **SMALL).eval()
    images = torch.rand(3, 1, 28, 28)
    found, output = represent(model, images), model(images)
    assert found.kind == "poses"  # though a decoder ends in a linear layer
    torch.testing.assert_close(found.values, output.poses)
    torch.testing.assert_close(found.presence, output.activations)
    torch.testing.assert_close(
        found.of_classes(torch.tensor([4, 0, 9])), torch.stack([output.poses[i, k] for i, k in enumerate((4, 0, 9))])
    )


@pytest.mark.parametrize(
    ("name", "options", "width"),
    [
        ("cnn_hinton_norb", {"conv_channels": (4, 4), "hidden": 12}, 12),
        ("resnet20", {"widths": (4, 8), "blocks": 1}, 8),
        ("cnn_sabour_mnist", {"conv_channels": (4, 4, 4), "hidden": (9, 7)}, 7),
    ],
)
def test_a_cnn_gives_what_its_last_layer_is_given(name, options, width):
    model = build_model(name, (1, 28, 28), 10, **options).eval()
    images = torch.rand(3, 1, 28, 28)
    found = represent(model, images)
    assert found.kind == "features" and found.values.shape == (3, width)
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    torch.testing.assert_close(last(found.values), found.scores)
    torch.testing.assert_close(found.presence.sum(dim=1), torch.ones(3))
    assert not any(module._forward_hooks for module in model.modules())


class Late(Network):
    """Its last linear layer by order of construction runs first, and gives no scores."""

    def __init__(self):
        super().__init__()
        self.second = nn.Linear(6, 3)
        self.first = nn.Linear(4, 6)

    def forward(self, images, labels=None):
        return Output(self.second(self.first(images.flatten(1))))


def test_the_last_layer_is_the_one_that_runs_last():
    model, images = Late(), torch.rand(2, 1, 2, 2)
    torch.testing.assert_close(represent(model, images).values, model.first(images.flatten(1)))


def test_a_network_may_have_neither():
    model = build_model("self_routing_capsnet", (1, 28, 28), 10, types=2, pose_dim=4, widths=(4, 4), blocks=1).eval()
    assert represent(model, torch.rand(2, 1, 28, 28)).values is None
