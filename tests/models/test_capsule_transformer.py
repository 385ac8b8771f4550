"""The capsule transformer: parts, wholes, and attention between them."""

import pytest
import torch
from separable import losses_on_separable_data
from small_networks import SMALL

from capsbench.models import build_model, count_parameters


def build(shape=(1, 20, 20), **options):
    torch.manual_seed(0)
    return build_model("capsule_transformer", shape, 10, **{**SMALL["capsule_transformer"], "decoder": None, **options})


LAYER = 4 * (128 * 128 + 128) + 2 * 128 * 256 + 256 + 128 + 4 * 128
PARTS = 128 * 81 + 128 + 128 * 64 * 81 + 64 + 16 * 128 + 128 + 2 * 128  # to tokens, and the norm after their layers
WHOLES = 10 * 128 + 2 * 128 + 128 * 16 + 16


@pytest.mark.parametrize(
    ("shape", "options", "parameters"),
    [
        ((1, 28, 28), {"decoder": None}, PARTS + (36 + 4) * 128 + 5 * LAYER + WHOLES),
        ((1, 28, 28), {}, PARTS + (36 + 4) * 128 + 5 * LAYER + WHOLES + 1_411_344),
        ((1, 36, 36), {"decoder": None, "whole_layers": 0}, PARTS + (100 + 4) * 128 + 4 * LAYER + WHOLES),
        ((2, 32, 32), {"decoder": None}, PARTS + 128 * 81 + (64 + 4) * 128 + 5 * LAYER + WHOLES),
    ],
    ids=str,
)
def test_parameter_counts_are_exact(shape, options, parameters):
    with torch.device("meta"):
        assert count_parameters(build_model("capsule_transformer", shape, 10, **options)) == parameters


def pooled(model, tokens, presences):
    """What the wholes see of parts, [B, K, W]."""
    for layer in model.part_layers:
        tokens = layer(tokens, presences=presences)
    return model.pooling(model.wholes.expand(len(tokens), -1, -1), model.part_norm(tokens), presences)


def test_an_absent_part_is_seen_by_no_part_and_no_whole():
    model = build(part_layers=2)
    tokens, others = torch.randn(2, 8, 16), torch.randn(2, 8, 16)
    presences = torch.tensor([1.0, 0.0]).repeat(2, 4)
    changed = torch.where(presences[..., None] > 0, tokens, others)
    torch.testing.assert_close(pooled(model, changed, presences), pooled(model, tokens, presences), rtol=0, atol=1e-4)
    assert not torch.allclose(
        pooled(model, changed, torch.ones(2, 8)), pooled(model, tokens, torch.ones(2, 8)), rtol=0, atol=1e-2
    )


def test_a_whole_belongs_to_a_class_by_its_query_alone():
    model, images, order = build().eval(), torch.rand(2, 1, 20, 20), torch.randperm(10)
    torch.nn.init.normal_(model.wholes)
    before = model(images)
    with torch.no_grad():
        model.wholes.copy_(model.wholes[order].clone())
    after = model(images)
    torch.testing.assert_close(after.scores, before.scores[:, order])
    torch.testing.assert_close(after.poses, before.poses[:, order])
    assert not torch.allclose(after.scores, before.scores, rtol=0, atol=1e-4)


def test_scores_are_lengths_of_poses_and_there_are_no_couplings():
    output = build()(torch.rand(2, 1, 20, 20))
    torch.testing.assert_close(output.scores, output.poses.norm(dim=2))
    assert output.activations is output.scores
    assert output.scores.max() < 1
    assert output.couplings is None


def test_wholes_attend_to_each_other_where_there_are_layers_for_it():
    for layers, differs in ((0, False), (1, True)):
        model, images = build(whole_layers=layers).eval(), torch.rand(1, 1, 20, 20)
        torch.nn.init.normal_(model.wholes)
        before = model(images).scores[0, 0]
        with torch.no_grad():
            model.wholes[1:].normal_()
        assert (not torch.allclose(model(images).scores[0, 0], before, rtol=0, atol=1e-5)) == differs


@pytest.mark.parametrize(
    "options",
    [{"part_layers": 2}, {"whole_layers": 2}, {"heads": 4}, {"mlp_ratio": 1.0}, {"class_dim": 8}, {"part_dim": 4}],
    ids=str,
)
def test_options_change_the_output(options):
    images = torch.rand(2, 1, 20, 20)
    assert not torch.equal(build().eval()(images).scores, build(**options).eval()(images).scores)


@pytest.mark.parametrize("pairs", [False, True])
def test_the_loss_falls_on_separable_data(pairs):
    losses = losses_on_separable_data(build(), (1, 20, 20), 10, pairs, steps=30, learning_rate=0.01)
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 16, 30), {}, "capsule_transformer needs images of at least 17x17, not 16x30"),
        ((1, 20, 20), {"heads": 3}, "a width of 16 cannot be cut into 3 heads"),
        ((1, 20, 20), {"whole_layers": -1}, "option 'whole_layers'"),
        ((1, 20, 20), {"part_layers": 0}, "option 'part_layers'"),
        ((1, 20, 20), {"routing": "em"}, "unknown option 'routing'"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_named(shape, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(shape, **options)
    assert "\n" not in str(caught.value)
