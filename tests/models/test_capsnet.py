"""CapsNet of S17."""

import math

import pytest
import torch
from small_networks import SMALL

from capsbench.layers import squash
from capsbench.losses import margin_loss, share_likelihood_loss, spread_loss
from capsbench.models import build_model, count_parameters
from capsbench.models.capsnet import PrimaryCaps

SMALL_DECODER = SMALL["capsnet"]["decoder"]


def build(shape=(1, 28, 28), **options):
    return build_model("capsnet", image_shape=shape, num_classes=10, **options)


WITHOUT_CLASS_CAPS = 8_215_568 - 1_474_560  # which have 1152 x 10 x 16 x 8


@pytest.mark.parametrize(
    ("shape", "options", "parameters"),
    [
        ((1, 28, 28), {"decoder": None}, 6_804_224),
        ((1, 28, 28), {}, 8_215_568),
        ((1, 28, 28), {"routing": {"bias": True}}, 8_215_728),
        ((1, 28, 28), {"decoder": {"input": "selected"}}, 8_141_840),
        ((1, 28, 28), {"decoder": "convolutional"}, 6_804_224 + 161 * 36 + 640 + 73_856 + 147_584 + 1_153),
        ((1, 28, 28), {"transform": "shared_over_positions"}, WITHOUT_CLASS_CAPS + 32 * 1280),
        ((1, 28, 28), {"transform": "shared"}, WITHOUT_CLASS_CAPS + 1280),
        ((1, 28, 28), {"transform": {"name": "grouped", "groups": 36}}, WITHOUT_CLASS_CAPS + 36 * 1280),
        ((1, 28, 28), {"transform": {"name": "low_rank", "rank": 2}}, WITHOUT_CLASS_CAPS + 1152 * 10 * 2 * 24),
        ((1, 36, 36), {}, 11_361_808),
        ((1, 40, 40), {}, 13_475_648),
    ],
    ids=str,
)
def test_published_parameter_counts_are_met_exactly(shape, options, parameters):
    with torch.device("meta"):
        assert count_parameters(build(shape, **options)) == parameters


def test_losses_of_several_objects_add_up():
    model = caps()
    images, labels, sources = torch.rand(2, 1, 28, 28), torch.tensor([[1, 4], [0, 9]]), torch.rand(2, 2, 1, 28, 28)
    output = model(images, labels)
    parts = model.loss(output, sources, labels)
    squares = (output.reconstructions - sources).square().sum() / 2
    torch.testing.assert_close(parts["reconstruction"], 0.0005 * squares)
    margin = margin_loss(output.scores, torch.zeros(2, 10).scatter(1, labels, 1.0))
    torch.testing.assert_close(parts["margin"], margin)


def caps(**options):
    torch.manual_seed(0)
    return build(**{**SMALL["capsnet"], **options})


def test_the_decoder_is_masked_by_the_label_in_training_and_by_the_prediction_at_test():
    model, images = caps().eval(), torch.rand(4, 1, 28, 28)
    output = model(images)
    predicted = output.scores.argmax(dim=1)
    others = (predicted + 1) % 10
    torch.testing.assert_close(model(images, predicted).reconstructions, output.reconstructions)
    assert not torch.allclose(model(images, others).reconstructions, output.reconstructions)


@pytest.mark.parametrize("given", ["masked", "selected"])
def test_the_decoder_sees_the_chosen_capsule_alone(given):
    model, images, labels = (
        caps(decoder=SMALL_DECODER | {"input": given}).eval(),
        torch.rand(2, 1, 28, 28),
        torch.tensor([3, 7]),
    )
    seen = []
    model.decoder.layers.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    poses = model(images, labels).poses
    chosen = torch.stack([poses[0, 3], poses[1, 7]])
    if given == "selected":
        torch.testing.assert_close(seen[0], chosen)
    else:
        grid = seen[0].unflatten(1, (10, 16))
        torch.testing.assert_close(torch.stack([grid[0, 3], grid[1, 7]]), chosen)
        assert grid.count_nonzero() <= 32


@pytest.mark.parametrize("given", ["masked", "selected"])
def test_the_convolutional_decoder_gives_back_one_object_and_several(given):
    torch.manual_seed(0)
    options = {"conv_channels": 8, "primary_types": 2, "weight_std": 100.0}  # poses differ
    model = build((2, 21, 18), decoder={"name": "convolutional", "input": given}, **options)
    images, labels = torch.rand(2, 2, 21, 18), torch.tensor([3, 7])
    output = model(images, labels)
    assert output.reconstructions.shape == images.shape
    model.loss(output, images, labels)["reconstruction"].backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    several = model(images, torch.stack([labels, labels + 1], dim=1)).reconstructions  # [B, S, C, H, W]
    torch.testing.assert_close(several[:, 0], output.reconstructions)
    assert not torch.allclose(several[:, 1], several[:, 0], rtol=0, atol=1e-5)


def test_reconstruction_loss_is_weighted_on_the_sum():
    model, images, labels = caps(), torch.rand(2, 1, 28, 28), torch.tensor([0, 1])
    output = model(images, labels)
    squares = (output.reconstructions - images).square().sum() / 2
    torch.testing.assert_close(model.loss(output, images, labels)["reconstruction"], 0.0005 * squares)


@pytest.mark.parametrize(
    "options",
    [
        {"routing": {"iterations": 1}},
        {"routing": {"bias": True}},
        {"weight_std": 0.5},
        {"primary_dim": 4},
        {"class_dim": 8},
        {"transform": "shared_over_positions"},
        {"transform": "shared"},
        {"transform": {"name": "grouped", "groups": 6}},
        {"transform": {"name": "low_rank", "rank": 2}},
    ],
    ids=str,
)
def test_options_of_the_capsules_change_the_output(options):
    images = torch.rand(2, 1, 28, 28)
    assert not torch.equal(caps().eval()(images).scores, caps(**options).eval()(images).scores)


@pytest.mark.parametrize(
    "options",
    [
        {"decoder": SMALL_DECODER | {"weight": 0.1}},
        {"decoder": SMALL_DECODER | {"reduction": "mean"}},
        {"loss": {"weight": 0.05}},
        {"loss": {"positive_margin": 0.8}},
        {"loss": {"negative_margin": 0.001}},
        {"loss": {"negative_weight": 0.25}},
    ],
    ids=str,
)
def test_options_of_the_loss_change_the_loss(options):
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([0, 1])

    def loss(model):
        return sum(model.loss(model(images, labels), images, labels).values())

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
        torch.testing.assert_close(model.loss(output, images, labels)[loss], expected[loss])
    fast = caps(loss={"name": "spread", "scale": 1.0})
    fast.class_loss.step.fill_(4)
    assert float(fast.class_loss.margin()) == pytest.approx(0.2 + 0.79 / 2)


def test_detach_changes_the_gradient_and_not_the_output():
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([0, 1])
    gradients, scores = [], []
    for detach in (False, True):
        model = caps(routing={"detach": detach}, weight_std=1.0)
        output = model(images, labels)
        sum(model.loss(output, images, labels).values()).backward()
        gradients.append(model.transform.weight.grad)
        scores.append(output.scores)
    torch.testing.assert_close(*scores)
    assert not torch.allclose(*gradients, rtol=1e-3, atol=0)


def test_decoder_dropout_reaches_the_decoder():
    model, images, labels = (
        caps(decoder=SMALL_DECODER | {"dropout": 0.5}),
        torch.rand(2, 1, 28, 28),
        torch.tensor([0, 1]),
    )
    assert not torch.equal(model(images, labels).reconstructions, model(images, labels).reconstructions)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routing": {"iterations": 0}}, "option 'routing.iterations'"),
        ({"routing": {"iteration": 3}}, "unknown option 'routing.iteration'"),
        ({"routing": {"name": "em", "damping": 1.0}}, "option 'routing.damping'"),
        ({"routing": {"name": "em", "variance_floor": 0.0}}, "option 'routing.variance_floor'"),
        ({"routing": {"name": "sparse", "keep": 0}}, "option 'routing.keep'"),
        ({"routing": {"name": "variational_bayes", "concentration": -1.0}}, "option 'routing.concentration'"),
        ({"routing": {"name": "random", "coupling_seed": 2**64}}, "option 'routing.coupling_seed'"),
        ({"routing": {"name": "uniform", "iterations": 3}}, "unknown option 'routing.iterations'"),
        ({"routing": "emm"}, "no routing 'emm'; did you mean em"),
        ({"routing": None}, "option 'routing'"),
        ({"loss": {"name": "spread", "positive_margin": 0.5}}, "unknown option 'loss.positive_margin'"),
        ({"loss": {"scale": 100.0}}, "unknown option 'loss.scale'"),
        ({"loss": "cross_entropy"}, "no loss 'cross_entropy'; there are margin, spread, share_likelihood"),
        ({"transform": {"rank": 2}}, "unknown option 'transform.rank'"),
        ({"transform": {"name": "grouped", "groups": 7}}, "1152 capsules .* 7 groups"),
        ({"decoder": {"hidden": []}}, "option 'decoder.hidden'"),
        ({"decoder": {"hidden": [512, 0]}}, "option 'decoder.hidden"),
        ({"decoder": {"dropout": 1.0}}, "option 'decoder.dropout'"),
        ({"decoder": {"name": "convolutional", "dropout": 0.5}}, "unknown option 'decoder.dropout'"),
        ({"weight_std": 0.0}, "option 'weight_std'"),
        ({"iterations": 3}, "unknown option 'iterations'"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_named(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(**options)
    assert "\n" not in str(caught.value)


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match="needs images of at least 17x17, not 16x30"):
        build((1, 16, 30))


def test_a_primary_capsule_is_neighbouring_channels_of_one_position():
    types, dim = 3, 4
    layer = PrimaryCaps(in_channels=1, types=types, dim=dim, kernel_size=1, stride=1)
    channel = torch.arange(types * dim).float()
    with torch.no_grad():  # each map holds its channel's number, plus 100 for each position
        layer.conv.weight.fill_(1.0)
        layer.conv.bias.copy_(channel)
    positions = torch.arange(6).reshape(1, 1, 2, 3).float() * 100
    poses = layer(positions)  # [1, 2 * 3 * types, dim]
    capsule = 0
    for position in range(6):
        for type_ in range(types):
            values = position * 100 + channel[type_ * dim : (type_ + 1) * dim]
            torch.testing.assert_close(poses[0, capsule], squash(values))
            capsule += 1
    assert capsule == poses.shape[1]


def test_a_primary_capsule_is_squashed_once_and_counts_by_position():
    layer = PrimaryCaps(in_channels=2, types=3, dim=4)
    poses = layer(torch.rand(2, 2, 21, 18))
    assert poses.shape == (2, 7 * 5 * 3, 4)
    assert poses.norm(dim=2).max() < 1
