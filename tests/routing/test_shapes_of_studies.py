"""The kernels of a GPU are tested in the shapes that the shipped studies have."""

from pathlib import Path

import pytest
import test_fused
import test_fused_em
import torch
from torch import nn

from capsbench.layers.transforms import Transform
from capsbench.models import build_model
from capsbench.models.matrix_capsnet import ClassMatrixCaps, ConvMatrixCaps
from capsbench.study import load_plan

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def networks() -> list[tuple[str, str, nn.Module]]:
    """Every network of the shipped studies whose routing has kernels: name, routing, and the network without memory."""
    found = {}
    for path in CONFIGS.glob("*.yaml"):
        for run in load_plan(path).runs:
            routing = (run.options.get("routing") or {}).get("name", "em")
            if run.model == "matrix_capsnet" or (run.model == "capsnet" and routing == "dynamic"):
                found[run.model, str(run.options), run.data.image_shape] = run, routing
    with torch.device("meta"):
        return [
            (
                run.model,
                routing,
                build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options),
            )
            for run, routing in found.values()
        ]


def test_those_of_dynamic_routing_are_tested(networks):
    used = {
        tuple(module().shape[1:])  # J, D, d
        for name, _, network in networks
        if name == "capsnet"
        for module in network.modules()
        if isinstance(module, Transform)
    }
    assert (10, 16, 8) in used and used <= {shape[2:] for shape in test_fused.SHAPES}


def test_those_of_em_routing_of_matrices_are_tested(networks):
    """A tile holds all parents of a child; children of any number and kind are gone through one after another."""
    used = {
        module.transforms.shape[1]
        for _, _, network in networks
        for module in network.modules()
        if isinstance(module, ClassMatrixCaps | ConvMatrixCaps) and module.transforms.shape[-1] == 4
    }
    assert {5, 32} <= used and used <= {shape[3] for shape in test_fused_em.SHAPES.values()}
