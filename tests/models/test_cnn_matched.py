"""The CNN of another network's size."""

from pathlib import Path

import pytest
import torch
from small_networks import build_small

from capsbench.models import build_model, count_parameters
from capsbench.study import load_plan

TINY = {"conv_channels": 1, "primary_types": 1, "primary_dim": 1, "class_dim": 1, "decoder": None}


def size(name, shape=(1, 28, 28), num_classes=10, **options):
    with torch.device("meta"):
        return count_parameters(build_model(name, image_shape=shape, num_classes=num_classes, **options))


@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        ("capsnet", {}, (1, 28, 28)),
        ("capsnet", {}, (1, 40, 40)),
        (
            "capsnet",
            {"conv_channels": 32, "primary_types": 4, "decoder": {"name": "fully_connected", "hidden": (128, 256)}},
            (1, 28, 28),
        ),
        ("capsnet", {"routing": "self", "decoder": None}, (2, 32, 32)),
        ("matrix_capsnet", {}, (2, 32, 32)),
        ("resnet20", {}, (3, 32, 32)),
        ("cnn_hinton_norb", {}, (2, 32, 32)),
    ],
    ids=str,
)
def test_it_has_as_many_parameters_as_the_network_that_it_matches(name, options, shape):
    wanted = size(name, shape, **options)
    found = size("cnn_matched", shape, matched_to={"name": name, **options})
    assert abs(found / wanted - 1) < 0.005


def test_by_default_it_matches_capsnet():
    assert size("cnn_matched") == size("cnn_matched", matched_to="capsnet") == 8_216_347


@pytest.mark.parametrize("study", ["quick", "cpu", "paper"])
def test_the_studies_matched_cnns_have_the_size_of_their_capsnet(study):
    plan = load_plan(Path(__file__).parents[2] / f"configs/{study}.yaml")
    matched = {(run.experiment, run.variant): run for run in plan.runs if run.model == "cnn_matched"}
    assert matched

    def size_in(run, **changed):
        return size(run.model, run.data.image_shape, run.data.facts.num_classes, **{**run.options, **changed})

    for run in matched.values():
        others = {other.variant: other for other in plan.runs if other.experiment == run.experiment}.values()
        capsnets = [other for other in others if other.model == run.options["matched_to"]["name"]]
        # one matched to a CapsNet without decoder may stand beside one with it, which classifies alike
        counted = {} if run.options["matched_to"].get("decoder") else {"decoder": None}
        sizes = [size_in(each, **counted) for each in capsnets]
        assert any(abs(size_in(run) / wanted - 1) < 0.02 for wanted in sizes)


def test_dropout_acts():
    model, images = build_small("cnn_matched", dropout=0.5), torch.rand(8, 1, 28, 28)
    assert not torch.equal(model(images).scores, model(images).scores)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 28, 28), {"matched_to": "cnn_matched"}, "no model 'cnn_matched'; there are capsnet"),
        ((1, 28, 28), {"matched_to": {"iteration": 3}}, "unknown option 'matched_to.iteration'"),
        (
            (1, 28, 28),
            {"matched_to": {"routing": "emm"}},
            "option 'matched_to.routing': no routing 'emm'; did you mean em",
        ),
        ((1, 28, 28), {"matched_to": {"routing": {"iterations": 0}}}, "option 'matched_to.routing.iterations'"),
        ((1, 28, 28), {"matched_to": TINY}, "no cnn_matched for 28x28 has the 524 parameters of capsnet within 2 %"),
        ((1, 28, 28), {"colour": 1}, "unknown option 'colour'"),
        ((1, 16, 16), {}, "cnn_matched, matched_to: capsnet needs images of at least 17x17"),
        ((1, 7, 7), {}, "cnn_matched needs images of at least 8x8, not 7x7"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_named(shape, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build_model("cnn_matched", image_shape=shape, num_classes=10, **options)
    assert "\n" not in str(caught.value)
