import math

import pytest
import torch
import torch.nn.functional as F

from capsbench.models import build_model, count_parameters

SMALL = {"types": 4, "pose_dim": 8, "widths": (4, 8), "blocks": 1, "capsule_layers": 2}


def build(shape=(2, 12, 12), **options):
    torch.manual_seed(0)
    return build_model("self_routing_capsnet", image_shape=shape, num_classes=5, **{**SMALL, **options})


def batch(size=10):
    """Images whose class is a pattern, and their labels."""
    generator = torch.Generator().manual_seed(0)
    patterns, labels = torch.randn(5, 2, 12, 12, generator=generator), torch.arange(size) % 5
    return patterns[labels] + 0.1 * torch.randn(size, 2, 12, 12, generator=generator), labels


def total_loss(model, images, labels):
    return sum(model.loss(model(images, labels), images, labels).values())


def wake(model):
    """Move the routing off its uniform start."""
    for layer in (*model.conv_caps, model.class_caps):
        torch.nn.init.normal_(layer.route)
    return model


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({}, 931_664),
        ({"capsule_layers": 2}, 3_187_536),
        ({"types": 16}, 600_368),
        ({"routing_bias": False}, 931_664 - 64 * 32 * 10),
    ],
    ids=str,
)
def test_parameter_counts_of_the_authors_code_are_met_exactly(options, parameters):
    with torch.device("meta"):
        model = build_model("self_routing_capsnet", image_shape=(3, 32, 32), num_classes=10, **options)
    assert count_parameters(model) == parameters


def test_the_bookkeeping_of_the_count():
    with torch.device("meta"):
        model = build_model("self_routing_capsnet", image_shape=(3, 32, 32), num_classes=10, capsule_layers=3)
    assert [
        count_parameters(part) for part in (model.features, model.primary_caps, *model.conv_caps, model.class_caps)
    ] == [
        269_722 - 650,  # ResNet-20 without its classifier
        9 * 64 * 32 * 17 + 2 * 32 * 17,
        *[9 * 32 * 32 * (16 * 16 + 16 + 1) + 2 * 512] * 2,
        4 * 4 * 32 * 10 * (16 + 1),
    ]


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 32, 32), (3, 9, 21), (1, 5, 6)], ids=str)
@pytest.mark.parametrize("size", [1, 2])
def test_any_image_shape_gives_log_probabilities(shape, size):
    output = wake(build(shape))(torch.rand(size, *shape))
    assert output.scores.shape == (size, 5)
    torch.testing.assert_close(output.scores.exp().sum(dim=1), torch.ones(size))
    assert output.scores.std() > 0
    assert output.poses is output.reconstructions is None
    grid = [math.ceil(side / 4) for side in shape[1:]]
    assert output.couplings.shape == (size, math.prod(grid) * 4, 5)
    torch.testing.assert_close(output.couplings.sum(dim=2), torch.ones(output.couplings.shape[:2]))


@pytest.mark.parametrize(("capsule_layers", "grids"), [(1, [6]), (2, [6, 3]), (3, [6, 3, 3])])
def test_the_first_convolutional_capsules_halve_the_grid(capsule_layers, grids):
    model, found = build(capsule_layers=capsule_layers), []
    for layer in (model.primary_caps, *model.conv_caps):
        layer.register_forward_hook(lambda module, inputs, output: found.append(tuple(output[0].shape[1:])))
    model(torch.rand(1, 2, 12, 12))
    assert found == [(side, side, 4, 8) for side in grids]


def test_it_starts_without_an_opinion():
    scores = build()(torch.rand(3, 2, 12, 12)).scores
    torch.testing.assert_close(scores, torch.full((3, 5), -math.log(5)))


@pytest.mark.parametrize("capsule_layers", [1, 2, 3])
def test_the_loss_falls_on_separable_data(capsule_layers):
    model, (images, labels) = build(capsule_layers=capsule_layers), batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    before = [p.detach().clone() for p in model.parameters()]
    losses = []
    for _ in range(20):
        total = total_loss(model, images, labels)
        optimizer.zero_grad()
        total.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(float(total.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert all((p != b).any() for p, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    "options",
    [{"types": 2}, {"pose_dim": 4}, {"capsule_layers": 1}, {"widths": (4, 4)}, {"blocks": 2}],
    ids=str,
)
def test_options_change_the_scores(options):
    images = batch(2)[0]
    assert not torch.allclose(wake(build())(images).scores, wake(build(**options))(images).scores)


def test_the_routing_bias_is_an_option():
    assert [count_parameters(build(routing_bias=b).class_caps) for b in (True, False)] == [9 * 4 * 5 * 9, 9 * 4 * 5 * 8]
    assert build(routing_bias=False).conv_caps[0].bias is None
    model, images = build(), batch(2)[0]
    before = model(images).scores
    torch.nn.init.normal_(model.class_caps.bias)
    assert not torch.allclose(model(images).scores, before)


def test_the_loss_is_the_negative_log_likelihood():
    model, (images, labels) = wake(build()), batch()
    output = model(images)
    parts = model.loss(output, images, labels)
    torch.testing.assert_close(parts, {"negative_log_likelihood": F.cross_entropy(output.scores, labels)})
    pairs = torch.stack([labels, (labels + 1) % 5], dim=1)
    each = [F.nll_loss(output.scores, pairs[:, source]) for source in (0, 1)]
    found = model.loss(output, images, pairs)["negative_log_likelihood"]
    torch.testing.assert_close(found, sum(each) / 2)


def test_a_class_that_nothing_is_sent_to_leaves_the_loss_finite():
    model, (images, labels) = build(), batch()
    torch.nn.init.constant_(model.class_caps.bias, 200.0)
    with torch.no_grad():
        model.class_caps.bias[:, 0] = -200.0
    total = total_loss(model, images, labels)
    total.backward()
    assert total.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, 2, 32), {"capsule_layers": 1}, "needs images of at least 3x3, not 2x32"),
        ((2, 32, 4), {}, "needs images of at least 5x5 for convolutional capsules, not 32x4"),
        ((2, 32, 32), {"types": 0}, "option 'types'"),
        ((2, 32, 32), {"capsule_layers": 0}, "option 'capsule_layers'"),
        ((2, 32, 32), {"iterations": 3}, "unknown option 'iterations'"),
        ((2, 32, 32), {"routing": "em"}, "unknown option 'routing'"),
        ((2, 32, 32), {"widths": (8, 4)}, "must not shrink"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_named(shape, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(shape, **options)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("self_routing_capsnet")
