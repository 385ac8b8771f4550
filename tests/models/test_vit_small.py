"""ViT-Lite."""

import pytest
import torch
from separable import losses_on_separable_data

from capsbench.analysis.inventory import measure
from capsbench.models import build_model, count_parameters

SMALL = {"width": 16, "heads": 2, "depth": 2, "attention_dropout": 0.0, "stochastic_depth": 0.0}


def build(shape=(1, 12, 12), **options):
    torch.manual_seed(0)
    return build_model("vit_small", image_shape=shape, num_classes=10, **{**SMALL, **options})


LAYER = 4 * (256 * 256 + 256) + 2 * 256 * 512 + 512 + 256 + 4 * 256
THEIR_LAYER = LAYER - 3 * 256  # without biases of queries, keys and values


@pytest.mark.parametrize(
    ("shape", "options", "parameters"),
    [
        ((3, 32, 32), {}, 3_722_250),
        ((3, 32, 32), {"depth": 6}, 3_722_250 - LAYER),
        ((3, 32, 32), {"pooling": "mean"}, 3_722_250 - 2 * 256),  # the token and its position
        ((1, 28, 28), {}, 3_722_250 - 2 * 16 * 256 - 15 * 256),
        ((2, 48, 48), {}, 3_722_250 - 16 * 256 + 80 * 256),
        ((3, 32, 32), {"patch_size": 8}, 3_722_250 + 3 * 48 * 256 - 48 * 256),
    ],
    ids=str,
)
def test_parameter_counts_are_exact(shape, options, parameters):
    with torch.device("meta"):
        assert count_parameters(build_model("vit_small", shape, 10, **options)) == parameters


@pytest.mark.parametrize(("depth", "millions"), [(7, 3.72), (6, 3.19)])
def test_the_count_of_the_paper_is_met_without_the_biases_that_it_has_not(depth, millions):
    with torch.device("meta"):
        ours = count_parameters(build_model("vit_small", (3, 32, 32), 10, depth=depth))
    assert round((ours - depth * (LAYER - THEIR_LAYER)) / 1e6, 2) == millions


def test_attention_is_among_the_multiply_adds_that_are_listed():
    linear, attention = 65 * (4 * 256 * 256 + 2 * 256 * 512), 2 * 65 * 65 * 256
    assert measure("vit_small").multiply_adds == 7 * (linear + attention) + 64 * 48 * 256 + 256 * 10


def test_starts_are_those_of_the_authors_code():
    model = build(width=64, heads=2)
    assert not model.token.any()
    assert float(model.positions.detach().std()) == pytest.approx(0.88 * 0.2, rel=0.05)  # of what is cut at two
    for module in model.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
            assert not module.bias.any()
            assert 0.02 < float(module.weight.detach().abs().max()) <= 0.04


def test_stochastic_depth_grows_with_the_layers():
    assert [layer.stochastic_depth for layer in build(depth=3, stochastic_depth=0.1).layers] == [0.0, 0.05, 0.1]
    assert [layer.stochastic_depth for layer in build(depth=1, stochastic_depth=0.1).layers] == [0.0]


@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_patches_are_told_apart_by_their_positions_alone(pooling):
    model, images = build(pooling=pooling).eval(), torch.rand(2, 1, 12, 12)
    shuffled = torch.cat([images[:, :, 4:8], images[:, :, :4], images[:, :, 8:]], dim=2)  # whole rows of patches
    assert not torch.allclose(model(shuffled).scores, model(images).scores, rtol=0, atol=1e-5)
    torch.nn.init.zeros_(model.positions)
    torch.testing.assert_close(model(shuffled).scores, model(images).scores, rtol=0, atol=1e-6)


def test_sides_that_are_no_multiple_of_a_patch_are_padded_with_zeros_around():
    model, images = build((2, 10, 13)).eval(), torch.rand(2, 2, 10, 13)
    padded = torch.zeros(2, 2, 12, 16)
    padded[:, :, 1:11, 1:14] = images
    assert model.positions.shape == (1 + 3 * 4, 16)
    model.missing, found = (0, 0), model(images).scores
    torch.testing.assert_close(model(padded).scores, found)


def test_a_step_on_the_cpu_is_the_same_to_the_byte():
    found = []
    for _ in range(2):
        model = build(dropout=0.1, attention_dropout=0.1, stochastic_depth=0.1)
        images, labels = torch.rand(4, 1, 12, 12), torch.arange(4)
        sum(model.loss(model(images, labels), images, labels).values()).backward()
        found.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("pooling", ["token", "mean"])
def test_the_loss_falls_on_separable_data(pairs, pooling):
    losses = losses_on_separable_data(build(pooling=pooling), (1, 12, 12), 10, pairs, steps=25, learning_rate=0.01)
    assert losses[-1] < 0.75 * losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "vit_small: a width of 16 cannot be cut into 3 heads"),
        ({"pooling": "max"}, "option 'pooling'"),
        ({"stochastic_depth": 1.0}, "option 'stochastic_depth'"),
        ({"mlp_ratio": 0.0}, "option 'mlp_ratio'"),
        ({"routing": "em"}, "unknown option 'routing'"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_named(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(**options)
    assert "\n" not in str(caught.value)
