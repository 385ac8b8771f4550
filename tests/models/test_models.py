import math

import pytest
import torch

from capsbench.losses import margin_loss, share_likelihood_loss, spread_loss
from capsbench.models import build_model, count_parameters, loss_parts, model_names, predicted_classes

SMALL = {
    "capsnet": {"conv_channels": 8, "primary_types": 2, "decoder_hidden": (16, 32)},
    "cnn_sabour_mnist": {"conv_channels": (4, 4, 2), "hidden": (16, 8), "dropout": 0.0},
    "cnn_matched": {"parameters": 5000, "dropout": 0.0},
    "cnn_sabour_multimnist": {"conv_channels": (4, 4), "hidden": 32},
    "cnn_hinton_norb": {"conv_channels": (4, 8), "hidden": 32, "dropout": 0.0},
    # few children have little mass, which the paper's temperature makes hardly felt
    "matrix_capsnet": {"conv_channels": 16, "primary_types": 4, "conv_types": (4, 4), "inverse_temperature": 1.0},
    "efficient_capsnet": {"conv_channels": (8, 8, 8, 16), "decoder_hidden": (16, 32)},
    "self_routing_capsnet": {"types": 4, "pose_dim": 8, "widths": (4, 8, 16), "blocks": 1, "capsule_layers": 2},
    "resnet20": {"widths": (4, 8, 16), "blocks": 1},
    "deepcaps": {"conv_channels": 8, "cell_types": (4, 4, 4, 4), "cell_dims": (4, 4, 4, 4), "decoder_channels": 8},
}
FOR_SEVERAL_OBJECTS = (
    "capsnet", "cnn_sabour_mnist", "cnn_sabour_multimnist", "cnn_matched", "efficient_capsnet", "resnet20",
    "deepcaps",
)  # fmt: skip


def build(name, shape=(1, 28, 28), **options):
    return build_model(name, image_shape=shape, num_classes=10, **options)


@pytest.mark.parametrize(
    ("name", "shape", "options", "parameters"),
    [
        ("capsnet", (1, 28, 28), {"reconstruction": False}, 6_804_224),
        ("capsnet", (1, 28, 28), {}, 8_215_568),
        ("capsnet", (1, 28, 28), {"capsule_bias": True}, 8_215_728),
        ("capsnet", (1, 28, 28), {"decoder_input": "selected"}, 8_141_840),
        ("capsnet", (1, 36, 36), {}, 11_361_808),
        ("capsnet", (1, 40, 40), {}, 13_475_648),
        ("cnn_sabour_mnist", (1, 28, 28), {}, 35_445_522),
    ],
)
def test_published_parameter_counts_are_met_exactly(name, shape, options, parameters):
    with torch.device("meta"):
        assert count_parameters(build(name, shape, **options)) == parameters


@pytest.mark.parametrize(
    ("parameters", "shape"),
    [(8_215_568, (1, 28, 28)), (2_117_072, (1, 28, 28)), (525_040, (1, 28, 28)), (316_650, (2, 32, 32))],
)
def test_the_matched_cnn_has_the_parameters_asked_for(parameters, shape):
    with torch.device("meta"):
        found = count_parameters(build("cnn_matched", shape, parameters=parameters))
    assert abs(found / parameters - 1) < 0.005


@pytest.mark.parametrize("study", ["quick", "cpu", "paper"])
def test_the_studies_matched_cnns_have_the_size_of_their_capsnet(study):
    from pathlib import Path

    from capsbench.config import load_plan
    from capsbench.data.catalogue import CATALOGUE

    plan = load_plan(Path(__file__).parents[2] / f"configs/{study}.yaml")
    sizes: dict[str, dict[str, int]] = {}
    for run in plan.runs:
        if run.model == "cnn_matched" or run.options.get("reconstruction"):
            facts = CATALOGUE[run.data.name]
            with torch.device("meta"):
                model = build_model(run.model, facts.shape(run.data.options), facts.num_classes, **run.options)
            sizes.setdefault(run.experiment, {})[run.model] = count_parameters(model)
    compared = [found for found in sizes.values() if len(found) == 2]
    assert compared
    for found in compared:
        assert abs(found["cnn_matched"] / found["capsnet"] - 1) < 0.02


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("batch", [1, 3])
def test_every_network_keeps_the_contract(name, batch):
    model = build(name, **SMALL[name]).eval()
    images, labels = torch.rand(batch, 1, 28, 28), torch.arange(batch)
    output = model(images, labels)
    assert output.scores.shape == (batch, 10)
    parts = loss_parts(model, output, images, labels)
    assert all(part.shape == () and part.isfinite() for part in parts.values())
    if output.poses is not None:
        assert output.poses.shape[:2] == (batch, 10)
        torch.testing.assert_close(output.couplings.sum(dim=2), torch.ones(output.couplings.shape[:2]))


@pytest.mark.parametrize("name", FOR_SEVERAL_OBJECTS)
def test_networks_for_several_objects_take_their_labels(name):
    model = build(name, (1, 36, 36), **SMALL[name]).eval()
    images, labels = torch.rand(2, 1, 36, 36), torch.tensor([[1, 4], [0, 9]])
    sources = torch.rand(2, 2, 1, 36, 36)
    output = model(images, labels)
    parts = loss_parts(model, output, sources, labels)
    assert all(part.shape == () and part.isfinite() for part in parts.values())
    if name == "capsnet":
        assert output.reconstructions.shape == sources.shape
        alone = model(images, labels[:, 1]).reconstructions  # one decoder, each digit by itself
        torch.testing.assert_close(output.reconstructions[:, 1], alone)
        squares = (output.reconstructions - sources).square().sum() / 2
        torch.testing.assert_close(parts["reconstruction"], 0.0005 * squares)
        margin = margin_loss(output.scores, torch.zeros(2, 10).scatter(1, labels, 1.0))
        torch.testing.assert_close(parts["margin"], margin)


def test_the_prediction_of_several_objects_is_the_highest_scores_ascending():
    scores = torch.tensor([[0.1, 0.9, 0.0, 0.5], [0.7, 0.1, 0.8, 0.2]])
    assert predicted_classes(scores, 2).tolist() == [[1, 3], [0, 2]]
    assert predicted_classes(scores).tolist() == [1, 2]


@pytest.mark.parametrize("name", model_names())
def test_every_network_learns(name):
    torch.manual_seed(0)
    model = build(name, **SMALL[name])
    images, labels = torch.rand(16, 1, 28, 28), torch.arange(16) % 10
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = sum(loss_parts(model, model(images, labels), images, labels).values())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("name", model_names())
def test_a_prediction_does_not_depend_on_its_batch_mates(name):
    model, images = build(name, **SMALL[name]).eval(), torch.rand(5, 1, 28, 28)
    torch.testing.assert_close(model(images[2:3]).scores, model(images).scores[2:3])


def caps(**options):
    torch.manual_seed(0)
    return build("capsnet", **SMALL["capsnet"], **options)


def test_the_decoder_is_masked_by_the_label_in_training_and_by_the_prediction_at_test():
    model, images = caps().eval(), torch.rand(4, 1, 28, 28)
    output = model(images)
    predicted = output.scores.argmax(dim=1)
    others = (predicted + 1) % 10
    torch.testing.assert_close(model(images, predicted).reconstructions, output.reconstructions)
    assert not torch.allclose(model(images, others).reconstructions, output.reconstructions)


@pytest.mark.parametrize("decoder_input", ["masked", "selected"])
def test_the_decoder_sees_the_chosen_capsule_alone(decoder_input):
    model, images, labels = caps(decoder_input=decoder_input).eval(), torch.rand(2, 1, 28, 28), torch.tensor([3, 7])
    seen = []
    model.decoder.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    poses = model(images, labels).poses
    chosen = torch.stack([poses[0, 3], poses[1, 7]])
    if decoder_input == "selected":
        torch.testing.assert_close(seen[0], chosen)
    else:
        grid = seen[0].unflatten(1, (10, 16))
        torch.testing.assert_close(torch.stack([grid[0, 3], grid[1, 7]]), chosen)
        assert grid.count_nonzero() <= 32


def test_reconstruction_off_means_no_decoder():
    model, images = caps(reconstruction=False), torch.rand(2, 1, 28, 28)
    output = model(images, torch.tensor([0, 1]))
    assert output.reconstructions is None
    assert set(loss_parts(model, output, images, torch.tensor([0, 1]))) == {"margin"}


def test_reconstruction_loss_is_weighted_on_the_sum():
    model, images, labels = caps(), torch.rand(2, 1, 28, 28), torch.tensor([0, 1])
    output = model(images, labels)
    squares = (output.reconstructions - images).square().sum() / 2
    torch.testing.assert_close(loss_parts(model, output, images, labels)["reconstruction"], 0.0005 * squares)


@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 1},
        {"capsule_bias": True},
        {"weight_std": 0.5},
        {"primary_dim": 4},
        {"class_dim": 8},
    ],
    ids=str,
)
def test_options_of_the_capsules_change_the_output(options):
    images = torch.rand(2, 1, 28, 28)
    assert not torch.equal(caps().eval()(images).scores, caps(**options).eval()(images).scores)


@pytest.mark.parametrize(
    "options",
    [
        {"reconstruction_weight": 0.1},
        {"margin_loss_weight": 0.05},
        {"positive_margin": 0.8},
        {"negative_margin": 0.001},
        {"negative_weight": 0.25},
    ],
    ids=str,
)
def test_options_of_the_loss_change_the_loss(options):
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([0, 1])

    def loss(model):
        return sum(loss_parts(model, model(images, labels), images, labels).values())

    # a length of about 0.1, so that the negative margin is passed
    assert not torch.equal(loss(caps(weight_std=1.0)), loss(caps(weight_std=1.0, **options)))


def test_losses_of_capsnet_are_those_of_their_papers():
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([0, 1])
    for loss in ("margin", "spread", "share_likelihood"):
        model = caps(loss=loss)
        output = model(images, labels)
        expected = {
            "margin": margin_loss(output.scores, torch.eye(10)[labels]),
            "spread": spread_loss(output.scores, labels, 0.2 + 0.79 / (1 + math.exp(4))),
            "share_likelihood": share_likelihood_loss(output.scores, labels),
        }
        torch.testing.assert_close(loss_parts(model, output, images, labels)[loss], expected[loss])


def test_detach_changes_the_gradient_and_not_the_output():
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([0, 1])
    gradients, scores = [], []
    for detach in (False, True):
        model = caps(detach=detach, weight_std=1.0)
        output = model(images, labels)
        sum(loss_parts(model, output, images, labels).values()).backward()
        gradients.append(model.class_caps.weight.grad)
        scores.append(output.scores)
    torch.testing.assert_close(*scores)
    assert not torch.allclose(*gradients, rtol=1e-3, atol=0)


def test_decoder_dropout_reaches_the_decoder():
    model, images, labels = caps(decoder_dropout=0.5), torch.rand(2, 1, 28, 28), torch.tensor([0, 1])
    assert not torch.equal(model(images, labels).reconstructions, model(images, labels).reconstructions)


def test_cnn_dropout_acts():
    for name in ("cnn_sabour_mnist", "cnn_matched"):
        model = build(name, **{**SMALL[name], "dropout": 0.5})
        images = torch.rand(8, 1, 28, 28)
        assert not torch.equal(model(images).scores, model(images).scores)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("capsnte", {}, "no model 'capsnte'; there are capsnet"),
        ("capsnet", {"iterations": 0}, "option 'iterations'"),
        ("capsnet", {"iteration": 3}, "option 'iteration'"),
        ("capsnet", {"routing": "emm"}, "no routing 'emm'; there are attention, dynamic, em"),
        ("capsnet", {"routing": "uniform", "iterations": 3}, "option 'iterations'"),
        ("matrix_capsnet", {"routing": "dynamic"}, "option 'routing': Input should be 'em'"),
        ("cnn_matched", {"parameters": 3}, "within 2 %"),
    ],
)
def test_what_cannot_be_built_is_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, **options)


@pytest.mark.parametrize(("name", "side"), [("capsnet", 16), ("cnn_matched", 7)])
def test_images_that_are_too_small_are_refused(name, side):
    with pytest.raises(ValueError, match="needs images of at least"):
        build(name, (1, side, side))
