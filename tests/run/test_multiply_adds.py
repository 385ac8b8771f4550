"""Multiply-adds against those of torch's own counter."""

import subprocess
import sys

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from capsbench.analysis.inventory import groups, published_on
from capsbench.models import build_model
from capsbench.registry import LOSSES, MODELS
from capsbench.routing.kernels.forms import plain_forms
from capsbench.run.multiply_adds import count_multiply_adds

# each network with its defaults, and with each member of each of its groups (routing, decoder, ...)
NETWORKS = [(name, {}) for name in MODELS.names()]
NETWORKS += [
    (name, {group.name: member})
    for name in MODELS.names()
    for group in groups(name).values()
    for member, options in group.members.items()
    if options.registry is not LOSSES and (group.default is None or member != group.default.name)
]


@pytest.mark.parametrize(("name", "options"), NETWORKS, ids=str)
def test_they_equal_those_of_torchs_counter(name, options):
    shape, classes = published_on(name)
    model = build_model(name, shape, classes, **options).eval()
    found = count_multiply_adds(model, shape)
    model.requires_grad_(False)  # torch's counter trips over parameters that a layer gives back as they are
    # attention by its definition: the counter does not know the kernel that a CPU takes
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), plain_forms(), FlopCounterMode(display=False) as counter:
        model(torch.full((1, *shape), 0.5))
    assert found == counter.get_total_flops() // 2 > 1000


@pytest.mark.parametrize(
    "routing", ["uniform", "em", "attention", "self", "random", "ablated_attention", "centred_attention"]
)
def test_votes_are_counted_however_they_are_made(routing):
    """I x J x D x d for the votes alone: 144 x 10 x 16 x 8 here."""
    shape = (1, 28, 28)
    options = {"conv_channels": 8, "primary_types": 4, "decoder": None}
    found = count_multiply_adds(build_model("capsnet", shape, 10, routing=routing, **options), shape)
    convolutions = 20 * 20 * 8 * 81 + 6 * 6 * 32 * 8 * 81
    assert found - convolutions >= 144 * 10 * 16 * 8


def test_counting_does_not_load_torchs_compiler():
    code = """\
import sys
from capsbench.analysis.inventory import measure
assert measure("capsnet", (1, 28, 28), 10, conv_channels=8, primary_types=2).multiply_adds
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
