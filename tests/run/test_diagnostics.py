"""What routing does in a network that has learnt nothing."""

import pytest
import torch

from capsbench.data import make_task, read_split
from capsbench.models import build_model
from capsbench.run.diagnostics import diagnose
from capsbench.run.folder import RunFolder
from capsbench.run.train import train
from capsbench.study import load_plan

STUDY = """
name: stuck
seeds: [0]
training: {epochs: 1, device: cpu}
experiments:
  digits: {data: {name: digits}}
variants:
  dynamic: {model: capsnet, options: {conv_channels: 8, primary_types: 2, decoder: null}}
  em: {model: capsnet, options: {conv_channels: 8, primary_types: 2, decoder: null, routing: em, loss: spread}}
  uniform: {model: capsnet, options: {conv_channels: 8, primary_types: 2, decoder: null, routing: uniform}}
  cnn: {model: cnn_matched, options: {matched_to: {name: resnet20, widths: [8, 16], blocks: 1}}}
"""


@pytest.fixture
def case(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    plan = load_plan(tmp_path / "study.yaml")

    def make(variant):
        run = plan.cell("digits", variant, 0)
        task = make_task(run.data, read_split(run.data, tmp_path, "test"), "test", torch.device("cpu"))
        torch.manual_seed(0)
        model = build_model(run.model, run.data.image_shape, 10, **run.options).eval()
        return model, run, task.eval_batch(torch.arange(20), 0).images

    return make


@pytest.mark.parametrize(("variant", "iterations"), [("dynamic", 3), ("em", 3), ("uniform", 1)])
def test_each_iteration_has_its_line_and_the_last_is_the_network(case, variant, iterations):
    model, run, images = case(variant)
    found = diagnose(model, run, images)
    assert [line["iteration"] for line in found] == list(range(1, iterations + 1))
    assert found[0]["entropy"] == pytest.approx(1, abs=1e-4)  # the first iteration is uniform
    assert found[0]["mass"] == pytest.approx(0.1, abs=1e-4)
    scores = model(images).scores.detach()
    assert found[-1]["logit"] == pytest.approx(float(scores.amax(dim=1).mean()), rel=1e-3, abs=1e-6)


def test_a_parent_that_takes_all_shows(case):
    model, run, images = case("dynamic")
    with torch.no_grad():  # votes for class 3 alone agree
        weight = torch.zeros_like(model.transform.weight)
        weight[:, 3] = 5.0
        model.transform.weight.copy_(weight)
        model.primary_caps.conv.weight.abs_()
        model.primary_caps.conv.bias.fill_(1.0)
    first, *_, last = diagnose(model, run, images)
    assert last["mass"] > 0.95 > 0.2 > first["mass"]
    assert last["entropy"] < 0.1


def test_a_network_without_couplings_has_nothing_to_say(case):
    assert diagnose(*case("cnn")) == []


def test_a_run_that_never_leaves_chance_says_what_its_routing_does(case, tmp_path):
    _, run, _ = case("dynamic")
    slow = run.training.model_copy(update={"learning_rate": 1e-9, "lr_floor": 1e-10})
    train(run.model_copy(update={"training": slow}), tmp_path, tmp_path, tracking=False)
    record = RunFolder.of(tmp_path, run.study, run.key).read_record()
    assert record["stuck_at_chance"] is True
    assert [line["iteration"] for line in record["diagnostics"]] == [1, 2, 3]
