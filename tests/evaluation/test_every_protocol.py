"""All protocols on networks of each kind with fresh weights: what they return can be stored, tabled and drawn."""

import json
import math

import numpy as np
import pytest
import torch

from capsbench.evaluation import Context
from capsbench.models import build_model
from capsbench.registry import PROTOCOLS
from capsbench.study import load_plan

FEW = {
    "transforms": {"images": 12, "steps": 1},
    "equivariance": {"images": 40},
    "routing": {"images": 12, "coupling_images": 6, "most_iterations": 2},
    "segmentation": {"images": 12},
    "adversarial": {"images": 4, "eps": [0.1], "steps": 2, "restarts": 1, "queries": 3},
    "linear_probe": {"train_images": 60, "images": 40},
}
NARROW = {"conv_channels": 4, "primary_types": 2, "decoder": {"name": "fully_connected", "hidden": [8, 8]}}
NETWORKS = {
    "dynamic": ("digits", "capsnet", NARROW),
    "em": ("digits", "capsnet", {**NARROW, "routing": "em", "loss": "spread", "decoder": None}),
    "cnn": ("digits", "resnet20", {"widths": [4, 8], "blocks": 1}),
    "pairs": ("multidigits", "capsnet", NARROW),
    "matrix": ("digits", "matrix_capsnet", {"conv_channels": 4, "primary_types": 2, "conv_types": [2, 2]}),
}
OPTIONS = {"multidigits": {"train_pairs": 60, "test_pairs": 50}}
NOT_APPLICABLE = {
    "dynamic": {"segmentation", "viewpoint"},
    "em": {"segmentation", "viewpoint", "perturbation", "reconstruction"},
    "cnn": {"segmentation", "viewpoint", "perturbation", "reconstruction", "routing"},
    "pairs": {"viewpoint"},
    "matrix": {"segmentation", "viewpoint", "perturbation", "reconstruction"},
}


@pytest.fixture(scope="module", params=NETWORKS)
def case(request, tmp_path_factory):
    """A network of a kind and the context that it is measured in, shared by all protocols."""
    data, model, options = NETWORKS[request.param]
    path = tmp_path_factory.mktemp(request.param)
    study = {
        "name": "s", "seeds": [0], "training": {"epochs": 1, "batch_size": 8, "device": "cpu"},
        "experiments": {"e": {"data": {"name": data, "train_images": 120, "options": OPTIONS.get(data, {})}}},
        "variants": {"v": {"model": model, "options": options}},
    }  # fmt: skip
    (path / "s.yaml").write_text(json.dumps(study))
    (run,) = load_plan(path / "s.yaml").runs
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options).eval()
    return request.param, Context(run, network, torch.device("cpu"), path, path)


# `familiar` needs a familiar test, see capsbench.evaluation.evaluate; `cost` starts a process, see test_cost.py
@pytest.mark.parametrize("name", [name for name in PROTOCOLS.names() if name not in ("familiar", "cost")])
def test_what_it_returns_can_be_stored_tabled_and_drawn(name, case):
    kind, context = case
    found = PROTOCOLS.build(name, context, **FEW.get(name, {}))
    if name in NOT_APPLICABLE[kind]:
        assert found["status"] == "not applicable" and found["reason"]
        return
    assert found["status"] == "ok"
    plain = {key: value for key, value in found.items() if not isinstance(value, np.ndarray)}
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    facts = PROTOCOLS[name].facts
    numbers = [found.get(key) for key in facts.get("shows", {})]
    assert all(number is None or math.isfinite(number) for number in numbers)
    assert not numbers or any(number is not None for number in numbers)
    if facts.get("draws") == "curves":
        assert found["curves"] and all(curve["x"] == sorted(curve["x"]) for curve in found["curves"])


def test_the_network_is_as_it_was(case):
    _, context = case
    assert not context.model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in context.model.modules())
    assert all(parameter.grad is None for parameter in context.model.parameters())
