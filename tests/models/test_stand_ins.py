"""Every network learns on the stand-in of its data set, capsnet under every routing: the loss falls in a few steps."""

import functools

import pytest
import torch
from small_networks import SMALL

from capsbench.data import load
from capsbench.models import build_model
from capsbench.registry import MODELS, ROUTINGS

pytestmark = pytest.mark.slow

STAND_INS = {"matrix_capsnet": "toynorb", "cnn_hinton_norb": "toynorb", "cnn_sabour_multimnist": "multidigits"}
OPTIONS = {"toynorb": {"lightings": 1}, "multidigits": {"train_pairs": 64, "test_pairs": 1}}
# of those whose activations are not lengths, the loss of the paper; of others, the margin loss
LOSSES = {"em": "spread", "heinsen": "spread", "variational_bayes": "spread", "self": "share_likelihood"}


@functools.cache
def items(stand_in):
    """64 images [64, C, H, W] in [0, 1], their labels [64] or [64, 2], the number of classes."""
    raw = load(stand_in, ".", "train", **OPTIONS.get(stand_in, {}))
    images, labels = torch.as_tensor(raw.images[:64]) / 255, torch.as_tensor(raw.labels[:64])
    if stand_in == "toynorb":
        images = images[:, :, 8:40, 8:40]  # as the papers' centre crop
    if labels.ndim == 2:  # multi-hot
        return images, labels.nonzero()[:, 1].view(-1, 2), labels.shape[1]
    return images, labels, int(torch.as_tensor(raw.labels).max()) + 1


def losses(name, stand_in, steps=20, **options):
    images, labels, num_classes = items(stand_in)
    targets = images if labels.ndim == 1 else images.unsqueeze(1).expand(-1, 2, -1, -1, -1)
    torch.manual_seed(0)
    model = build_model(name, image_shape=tuple(images.shape[1:]), num_classes=num_classes, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    found = []
    for _ in range(steps):
        loss = sum(model.loss(model(images, labels), targets, labels).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("name", MODELS.names())
def test_every_network_learns_on_the_stand_in_of_its_data_set(name):
    found = losses(name, STAND_INS.get(name, "digits"), **SMALL.get(name, {}))
    assert found[-1] < 0.8 * found[0]


@pytest.mark.parametrize("routing", ROUTINGS.names())
def test_capsnet_learns_under_every_routing(routing):
    options = {"routing": routing, "loss": LOSSES.get(routing, "margin"), "decoder": None}
    found = losses("capsnet", "digits", steps=40, **{**SMALL["capsnet"], **options})
    assert found[-1] < 0.9 * found[0]
