import pytest
import torch
from separable import losses_on_separable_data

from capsbench.layers.residual import ResidualBlock, ResidualFeatures
from capsbench.models import build_model, count_parameters

SMALL = {"widths": (4, 8, 16), "blocks": 1}


def build(shape=(3, 12, 12), **options):
    torch.manual_seed(0)
    return build_model("resnet20", image_shape=shape, num_classes=5, **{**SMALL, **options})


@pytest.mark.parametrize(
    ("options", "parameters"),
    [({}, 269_722), ({"shortcut": "projection"}, 272_474), ({"blocks": 5}, 464_154), ({"blocks": 9}, 853_018)],
    ids=str,
)
def test_known_parameter_counts_are_met_exactly(options, parameters):
    with torch.device("meta"):
        model = build_model("resnet20", image_shape=(3, 32, 32), num_classes=10, **options)
    assert count_parameters(model) == parameters


def test_without_the_mean_the_last_layer_has_weights_for_each_position():
    with torch.device("meta"):
        model = build_model("resnet20_ablated", image_shape=(3, 32, 32), num_classes=10)
    assert count_parameters(model) == 269_722 + 63 * 64 * 10


def test_without_the_mean_it_starts_as_with_it_and_tells_positions_apart():
    networks = []
    for name in ("resnet20", "resnet20_ablated"):
        torch.manual_seed(0)
        networks.append(build_model(name, image_shape=(1, 12, 12), num_classes=5, **SMALL).eval())
    with_mean, without = networks
    images = torch.rand(2, 1, 12, 12)
    assert torch.equal(with_mean.features(images), without.features(images))
    features = torch.zeros(2, 16, 3, 3)
    features[0, :, 0, 0] = features[1, :, 2, 2] = 1.0
    for network, is_same in ((with_mean, True), (without, False)):
        network.features = torch.nn.Identity()
        first, second = network(features).scores
        assert torch.allclose(first, second) == is_same
    without.classifier.weight.data = with_mean.classifier.weight.data.repeat_interleave(9, dim=1) / 9
    without.classifier.bias.data = with_mean.classifier.bias.data
    torch.testing.assert_close(without(features).scores, with_mean(features).scores)


@pytest.mark.parametrize("blocks", [1, 3])
def test_it_has_the_layers_of_its_name(blocks):
    model = build(blocks=blocks)
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 6 * blocks + 2


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 32, 32), (3, 9, 21), (1, 5, 6)], ids=str)
@pytest.mark.parametrize("size", [1, 3])
def test_any_image_shape_gives_logits(shape, size):
    model, images = build(shape), torch.rand(size, *shape)
    output = model(images)
    assert output.scores.shape == (size, 5)
    assert output.scores.isfinite().all()
    assert output.poses is output.reconstructions is output.couplings is None
    assert model.features(images).shape == (size, 16, *model.features.grid)


def test_the_features_halve_the_image_in_each_stage_but_the_first():
    assert ResidualFeatures("x", (3, 32, 32), (4, 4, 4), 1).grid == (8, 8)
    assert ResidualFeatures("x", (3, 28, 30), (4, 4, 4), 1).grid == (7, 8)
    assert ResidualFeatures("x", (3, 28, 30), (4,), 1).grid == (28, 30)


@pytest.mark.parametrize(("in_channels", "out_channels", "stride"), [(3, 3, 1), (2, 6, 2), (2, 5, 2), (2, 4, 1)])
def test_a_padded_shortcut_passes_its_channels_on_between_zeros(in_channels, out_channels, stride):
    block = ResidualBlock(in_channels, out_channels, stride).eval()
    torch.nn.init.zeros_(block.conv2.weight)  # nothing but the shortcut
    maps = torch.rand(2, in_channels, 5, 6)
    found = block(maps)
    before = (out_channels - in_channels) // 2
    expected = torch.zeros_like(found)
    expected[:, before : before + in_channels] = maps[:, :, ::stride, ::stride]
    torch.testing.assert_close(found, expected)


def test_a_projection_stands_only_where_the_shape_changes():
    assert ResidualBlock(3, 3, shortcut="projection").projection is None
    assert ResidualBlock(3, 3, 2, shortcut="projection").projection is not None
    maps = torch.rand(2, 3, 5, 6)
    assert ResidualBlock(3, 4, 2, shortcut="projection")(maps).shape == ResidualBlock(3, 4, 2)(maps).shape


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("shortcut", ["padding", "projection"])
def test_the_loss_falls_on_separable_data(pairs, shortcut):
    model = build(shortcut=shortcut)
    losses = losses_on_separable_data(model, (3, 12, 12), 5, pairs, steps=20, learning_rate=0.01)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((3, 4, 32), {}, "resnet20 needs images of at least 5x5, not 4x32"),
        ((3, 32, 32), {"widths": (16, 8)}, r"resnet20: widths \(16, 8\) must not shrink"),
        ((3, 32, 32), {"blocks": 0}, "option 'blocks'"),
        ((3, 32, 32), {"widths": ()}, "option 'widths'"),
        ((3, 32, 32), {"shortcut": "none"}, "option 'shortcut'"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_named(shape, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(shape, **options)
    assert "\n" not in str(caught.value)
    build(widths=(8, 4), shortcut="projection")
