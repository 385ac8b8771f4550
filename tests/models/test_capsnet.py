"""CapsNet of S17."""

import hashlib

import pytest
import torch
from small_networks import SMALL

from capsbench.layers import squash
from capsbench.losses import margin_loss, share_likelihood_loss, spread_loss
from capsbench.models import build_model, count_parameters
from capsbench.models.capsnet import PrimaryCaps
from capsbench.models.output import predicted_classes
from capsbench.registry import ROUTINGS
from capsbench.routing.contract import RoutedByLogits, capsule_lengths

SMALL_DECODER = SMALL["capsnet"]["decoder"]


def build(shape=(1, 28, 28), **options):
    return build_model("capsnet", image_shape=shape, num_classes=10, **options)


WITHOUT_CLASS_CAPS = 8_215_568 - 1_474_560  # which have 1152 x 10 x 16 x 8

RESNET20_FEATURES = 269_722 - 650  # without its classifier
STAGE_64, STAGE_128 = 6 * (64 * 64 * 9 + 2 * 64), 5 * (128 * 128 * 9) + 64 * 128 * 9 + 64 * 128 + 7 * 2 * 128
RESIDUAL_128 = (9 * 64 + 2 * 64) + STAGE_64 + STAGE_128 + (128 * 256 * 9 + 256) + 1_474_560 + 1_411_344


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
        ((1, 28, 28), {"backbone": "residual", "conv_channels": 128}, RESIDUAL_128),
        ((3, 32, 32), {"backbone": "resnet20", "decoder": None}, RESNET20_FEATURES + 64 * 256 * 9 + 256 + 1_474_560),
    ],
    ids=str,
)
def test_published_parameter_counts_are_met_exactly(shape, options, parameters):
    with torch.device("meta"):
        assert count_parameters(build(shape, **options)) == parameters


def caps(**options):
    torch.manual_seed(0)
    return build(**{**SMALL["capsnet"], **options})


@pytest.mark.parametrize(
    "options",
    [
        {"routing": {"iterations": 1}},
        {"routing": {"bias": True}},
        {"weight_std": 0.5},
        {"primary_dim": 4},
        {"class_dim": 8},
        {"routing": {"leaky": True}},
        {"initialisation": "authors"},
        {"children": "normalised"},
        {"padding": "same"},
        {"backbone": "residual"},
        {"backbone": "resnet20"},
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
    for loss in ("margin", "spread", "share_likelihood", "cross_entropy"):
        model = caps(loss=loss)
        output = model(images, labels)
        expected = {
            "margin": margin_loss(output.scores, torch.eye(10)[labels]),
            "spread": spread_loss(output.scores, labels, 0.9),
            "share_likelihood": share_likelihood_loss(output.scores, labels),
            "cross_entropy": torch.nn.functional.cross_entropy(output.scores, labels),
        }
        torch.testing.assert_close(model.loss(output, images, labels)[loss], expected[loss])


@pytest.mark.parametrize("routing", ["em", "heinsen", "variational_bayes"])
def test_scores_are_logits_where_activations_are_logistic(routing):
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([0, 1])
    for loss, values in (("spread", "activations"), ("cross_entropy", "scores")):
        model = caps(routing=routing, loss=loss, weight_std=1.0)
        for parameter in model.routing.parameters():  # off their starts
            torch.nn.init.normal_(parameter)
        output = model(images, labels)
        torch.testing.assert_close(output.activations, output.scores.sigmoid())
        taken = getattr(output, values)
        expected = model.class_loss(taken, labels)
        torch.testing.assert_close(model.loss(output, images, labels)[loss], expected)
    of_activations = caps(routing=routing, loss={"name": "cross_entropy", "of": "activations"})
    found = of_activations.loss(output, images, labels)["cross_entropy"]
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(output.activations, labels))
    assert not torch.allclose(found, torch.nn.functional.cross_entropy(output.scores, labels))


def test_a_prediction_outlives_the_saturation_of_its_activation():
    class Saturated(torch.nn.Module):
        def forward(self, poses, activations, weight):
            logits = torch.full((len(poses), 10), 40.0)
            logits[:, 7] = 41.0
            return RoutedByLogits(torch.zeros(len(poses), 10, 16), logits, torch.full((*activations.shape, 10), 0.1))

    model = caps(routing="em", loss="spread")
    model.routing = Saturated()
    output = model(torch.rand(3, 1, 28, 28))
    assert output.activations.unique().tolist() == [1.0]
    assert predicted_classes(output.scores).tolist() == [7, 7, 7]


def test_the_authors_initialisation():
    torch.manual_seed(0)
    model = build(initialisation="authors", conv_channels=64, primary_types=8, decoder={"hidden": [128, 256]})
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            std = 0.05 if module is model.conv else 0.1
            assert float(module.weight.detach().abs().max()) <= 2 * std
            assert float(module.weight.detach().std()) == pytest.approx(0.88 * std, rel=0.05)  # of what is cut at two
            assert module.bias.unique().tolist() == pytest.approx([0.1])


def test_the_authors_divide_what_the_primary_convolution_gives_before_its_bias():
    features = torch.rand(2, 3, 10, 12)
    plain, divided = PrimaryCaps(3, types=4, dim=2), PrimaryCaps(3, types=4, dim=2, divisor=4)
    divided.load_state_dict(plain.state_dict())
    with torch.no_grad():
        plain.conv.weight /= 4
    for found, expected in zip(divided(features), plain(features), strict=True):
        torch.testing.assert_close(found, expected)


def test_children_of_self_routing_are_normalised_with_activations_of_their_own():
    images = torch.rand(8, 1, 28, 28)
    model = caps(routing="self", children="normalised", loss="share_likelihood", decoder=None)
    poses, activations = model.primary_caps(model.conv(images).relu())
    by_channel = poses.unflatten(1, (36, 2)).transpose(0, 2).flatten(1, 2)  # [types, positions * B, dim]
    torch.testing.assert_close(by_channel.mean(dim=1), torch.zeros(2, 8), rtol=0, atol=1e-4)
    torch.testing.assert_close(by_channel.std(dim=1), torch.ones(2, 8), rtol=0, atol=0.01)
    assert activations.shape == poses.shape[:2]
    assert 0 < activations.min() < activations.max() < 1
    assert not torch.allclose(activations, capsule_lengths(poses))
    assert not torch.equal(model.eval()(images).scores, caps(routing="self", decoder=None).eval()(images).scores)


def test_padding_same_keeps_the_grid():
    settings = {"padding": "same", "primary_types": 64, "decoder": None, "routing": {"leaky": True}}
    with torch.device("meta"):
        model = build((3, 24, 24), **settings)
        assert model.transform().shape == (12 * 12 * 64, 10, 16, 8)
    odd = caps(padding="same", decoder=None)
    assert odd(torch.rand(2, 1, 28, 28)).couplings.shape == (2, 14 * 14 * 2, 10)
    small = build((1, 7, 9), padding="same", conv_channels=4, primary_types=2, decoder=None)
    assert small(torch.rand(2, 1, 7, 9)).couplings.shape == (2, 4 * 5 * 2, 10)
    # zeros come in at both sides, the odd one last, as in TensorFlow
    padded = small._padded(torch.ones(1, 1, 24, 24), 9, 2)
    assert padded.shape == (1, 1, 31, 31)
    assert padded[0, 0, :, 15].nonzero().flatten().tolist() == list(range(3, 27))


@pytest.mark.parametrize(
    ("options", "weights", "scores"),
    [
        ({}, "157585293c500f6a", [0.003912, 0.003379, 0.004831]),
        ({"initialisation": "authors"}, "96bffacaffe8ab70", [0.004896, 0.003563, 0.003622]),
        ({"children": "normalised", "decoder": None}, "eeec21cdc07f0fce", [0.014323, 0.011179, 0.018172]),
    ],
    ids=str,
)
def test_the_convolution_has_the_weights_and_the_names_that_it_had_before_there_were_backbones(
    options, weights, scores
):
    """Taken at commit fe779af: weights of runs that were trained before still fit, and mean the same."""
    model = caps(**options).eval()
    digest = hashlib.sha256()
    for name, values in model.state_dict().items():
        digest.update(f"{name}{tuple(values.shape)}".encode() + values.contiguous().numpy().tobytes())
    assert digest.hexdigest()[:16] == weights
    assert model(torch.rand(2, 1, 28, 28)).scores[0, :3].tolist() == pytest.approx(scores, abs=2e-6)


@pytest.mark.parametrize(
    ("backbone", "shape", "padding", "children"),
    [
        ("conv", (1, 28, 28), "valid", 6 * 6), ("residual", (1, 28, 28), "valid", 6 * 6),
        ("residual", (2, 32, 30), "valid", 7 * 7), ("residual", (1, 28, 28), "same", 7 * 7),
        ("resnet20", (3, 32, 32), "valid", 6 * 6), ("resnet20", (3, 32, 32), "same", 8 * 8),
        ("resnet20", (2, 48, 36), "valid", 10 * 7), ("resnet20", (1, 28, 27), "same", 7 * 7),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["squashed", "normalised"])
def test_primary_capsules_stand_on_the_grid_of_their_backbone(backbone, shape, padding, children, kind):
    options = {**SMALL["capsnet"], "backbone": backbone, "padding": padding, "children": kind, "decoder": None}
    model = build(shape, **options)
    assert model(torch.rand(2, *shape)).couplings.shape == (2, 2 * children, 10)
    assert (model.residual is None) == (backbone == "conv") != (model.conv is None)


@pytest.mark.parametrize("backbone", ["residual", "resnet20"])
@pytest.mark.parametrize("routing", ROUTINGS.names())
def test_every_routing_sends_gradients_to_every_backbone(backbone, routing):
    torch.manual_seed(0)
    options = {"conv_channels": 4, "primary_types": 2, "routing": routing, "weight_std": 1.0, "decoder": None}
    model = build((1, 16, 16), backbone=backbone, **options)
    for parameter in model.routing.parameters():  # off their starts, which may hide what they multiply
        torch.nn.init.normal_(parameter)
    model(torch.rand(4, 1, 16, 16)).scores.square().sum().backward()
    gradients = [p.grad for p in model.residual.parameters()]
    assert all(g.isfinite().all() for g in gradients) and any(g.any() for g in gradients)


def test_the_width_of_residual_features_is_that_of_the_convolution_and_resnet20_has_its_own():
    for backbone, widths in (("residual", {3, 6}), ("resnet20", {16, 32, 64})):
        model = build(backbone=backbone, conv_channels=6, primary_types=2)
        found = {m.out_channels for m in model.residual.modules() if isinstance(m, torch.nn.Conv2d)}
        assert found == widths
        assert model.primary_caps.conv.in_channels == max(widths)


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
        ({"loss": {"schedule": "linear"}}, "unknown option 'loss.schedule'"),
        ({"loss": {"name": "spread", "schedule": "cubic"}}, "option 'loss.schedule'"),
        ({"loss": "cross"}, "no loss 'cross'; .*there are cross_entropy, margin, share_likelihood, spread"),
        ({"backbone": "resnet20", "initialisation": "authors"}, "initialisation belongs to backbone 'conv'"),
        ({"backbone": "vgg"}, "option 'backbone'"),
        ({"children": "normalised", "initialisation": "authors"}, "initialisation belongs to children 'squashed'"),
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


@pytest.mark.parametrize(
    ("backbone", "padding", "least"),
    [("conv", "valid", 17), ("residual", "valid", 5), ("residual", "same", 3), ("resnet20", "valid", 9),
     ("resnet20", "same", 5)],
)  # fmt: skip
def test_images_that_are_too_small_are_refused(backbone, padding, least):
    options = {**SMALL["capsnet"], "backbone": backbone, "padding": padding}
    with pytest.raises(ValueError, match=f"needs images of at least {least}x{least}, not {least - 1}x30"):
        build((1, least - 1, 30), **options)
    smallest = build((1, least, least), **options)
    assert smallest(torch.rand(1, 1, least, least)).scores.isfinite().all()


def test_a_primary_capsule_is_neighbouring_channels_of_one_position():
    types, dim = 3, 4
    layer = PrimaryCaps(in_channels=1, types=types, dim=dim, kernel_size=1, stride=1)
    channel = torch.arange(types * dim).float()
    with torch.no_grad():  # each map holds its channel's number, plus 100 for each position
        layer.conv.weight.fill_(1.0)
        layer.conv.bias.copy_(channel)
    positions = torch.arange(6).reshape(1, 1, 2, 3).float() * 100
    poses, _ = layer(positions)  # [1, 2 * 3 * types, dim]
    capsule = 0
    for position in range(6):
        for type_ in range(types):
            values = position * 100 + channel[type_ * dim : (type_ + 1) * dim]
            torch.testing.assert_close(poses[0, capsule], squash(values))
            capsule += 1
    assert capsule == poses.shape[1]


def test_a_primary_capsule_is_squashed_once_and_counts_by_position():
    layer = PrimaryCaps(in_channels=2, types=3, dim=4)
    poses, lengths = layer(torch.rand(2, 2, 21, 18))
    torch.testing.assert_close(lengths, poses.norm(dim=2))
    assert poses.shape == (2, 7 * 5 * 3, 4)
    assert poses.norm(dim=2).max() < 1
