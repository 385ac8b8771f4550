import math

import pytest
import torch

from capsbench.losses import margin_loss, spread_loss
from capsbench.models import build_model, count_parameters

# few children have little mass: they need a higher inverse temperature than the default
SMALL = {"conv_channels": 16, "primary_types": 4, "conv_types": (4, 4)}
SHARP = {"inverse_temperature": 0.25, "class_temperature_factor": 1.0}
FULL_VECTOR = 316_650 + 2 * 32 * 9 * 32 * 240 + 32 * 5 * 240

TABLE_1 = [
    {"routing": SHARP | {"iterations": 1}},
    {"routing": SHARP | {"iterations": 2}},
    {"routing": SHARP | {"iterations": 3}},
    {"routing": SHARP | {"iterations": 5}},
    {"pose": "vector"},
    {"coordinate_addition": False},
    {"pose": "vector", "coordinate_addition": False},
    {"loss": "margin"},
    {"loss": {"name": "cross_entropy", "of": "activations"}},
]


def build(**options):
    torch.manual_seed(0)
    return build_model(
        "matrix_capsnet", image_shape=(2, 20, 20), num_classes=5, **{**SMALL, "routing": SHARP, **options}
    )


def batch(size=10):
    """Images whose class is a pattern, and their labels."""
    generator = torch.Generator().manual_seed(0)
    patterns, labels = torch.randn(5, 2, 20, 20, generator=generator), torch.arange(size) % 5
    return patterns[labels] + 0.1 * torch.randn(size, 2, 20, 20, generator=generator), labels


def total_loss(model, images, labels):
    return sum(model.loss(model(images, labels), images, labels).values())


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({}, 316_650),
        ({"conv_channels": 64, "primary_types": 8, "conv_types": (16, 16)}, 68_618),
        ({"coordinate_addition": False, "routing": {"iterations": 1}, "loss": "margin"}, 316_650),
        ({"pose": "vector"}, FULL_VECTOR),
    ],
    ids=str,
)
def test_published_parameter_counts_are_met_exactly(options, parameters):
    with torch.device("meta"):
        model = build_model("matrix_capsnet", image_shape=(2, 32, 32), num_classes=5, **options)
    assert count_parameters(model) == parameters


def test_the_bookkeeping_of_the_published_count():
    with torch.device("meta"):
        model = build_model("matrix_capsnet", image_shape=(2, 32, 32), num_classes=5)
    assert [
        count_parameters(part) for part in (model.conv, model.primary_caps, *model.conv_caps, model.class_caps)
    ] == [
        5 * 5 * 2 * 32 + 32,
        32 * 17 * 32,
        9 * 32 * 32 * 16 + 2 * 32,
        9 * 32 * 32 * 16 + 2 * 32,
        32 * 5 * 16 + 2 * 5,
    ]


def test_grids_of_the_papers_size():
    model = build_model("matrix_capsnet", image_shape=(2, 32, 32), num_classes=5, **SMALL)
    grids = []
    for layer in (model.primary_caps, *model.conv_caps):
        layer.register_forward_hook(lambda module, inputs, output: grids.append(tuple(output[1].shape[1:])))
    output = model(torch.rand(1, 2, 32, 32))
    assert grids == [(14, 14, 4), (6, 6, 4), (4, 4, 4)]
    assert output.couplings.shape == (1, 4 * 4 * 4, 5)


@pytest.mark.parametrize("options", TABLE_1, ids=str)
@pytest.mark.parametrize("size", [1, 3])
def test_each_row_of_the_papers_table_takes_a_step(options, size):
    model, (images, labels) = build(**options), batch(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    output = model(images, labels)
    assert output.scores.shape == output.activations.shape == (size, 5)
    torch.testing.assert_close(output.scores.sigmoid(), output.activations)  # scores are logits
    assert output.poses.shape == (size, 5, 16)
    assert output.reconstructions is None
    torch.testing.assert_close(output.couplings.sum(dim=2), torch.ones(output.couplings.shape[:2]))
    parts = model.loss(output, images, labels)
    loss = options.get("loss", "spread")
    assert list(parts) == [loss if isinstance(loss, str) else loss["name"]]
    before = [p.detach().clone() for p in model.parameters()]
    sum(parts.values()).backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters())
    optimizer.step()
    assert all((p != b).any() for p, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("loss", "share"),
    [
        ({"name": "spread", "schedule": "authors"}, 0.5),
        ("margin", 0.7),
        ({"name": "cross_entropy", "of": "activations"}, 0.95),
        ("cross_entropy", 0.8),
    ],
    ids=str,
)
def test_the_loss_falls_on_separable_data(loss, share):
    model, (images, labels) = build(loss=loss), batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        total = total_loss(model, images, labels)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        losses.append(float(total.detach()))
    assert losses[-1] < share * losses[0]


@pytest.mark.parametrize(
    "options",
    [
        {"routing": SHARP | {"iterations": 1}},
        {"routing": SHARP | {"iterations": 5}},
        {"pose": "vector"},
        {"coordinate_addition": False},
        {"routing": SHARP | {"inverse_temperature": 0.125}},
        {"routing": SHARP | {"class_temperature_factor": 0.25}},
        {"routing": SHARP | {"beta_u": 1.0}},
        {"routing": SHARP | {"beta_a": 0.0}},
        {"routing": SHARP | {"damping": 0.0}},
        {"routing": SHARP | {"damp_first_mean": False}},
        {"competition": "parents"},
        {"competition": "positions_as_coded"},
        {"routing": SHARP | {"variance_floor": 0.1}},
        {"routing": SHARP | {"annealing": 0.0}},
        {"conv_types": (4,)},
        {"conv_types": (4, 4, 4)},
    ],
    ids=str,
)
def test_options_of_the_capsules_change_the_scores(options):
    images = torch.rand(2, 2, 26, 26)
    scores = []
    for changes in ({}, options):
        torch.manual_seed(0)
        model = build_model(
            "matrix_capsnet", image_shape=(2, 26, 26), num_classes=5, **{**SMALL, "routing": SHARP, **changes}
        )
        with torch.no_grad():
            model.class_caps.transforms.mul_(30)  # votes that stand clear of the variance floor
            scores.append(model(images).scores)
    assert scores[0].isfinite().all()
    assert not torch.allclose(*scores, rtol=1e-4)


def test_losses_are_those_of_their_papers():
    images, labels = batch()
    model = build()
    output = model(images)
    with torch.no_grad():
        output = output._replace(scores=output.scores + torch.arange(5.0))  # no longer those of the activations
    targets = torch.nn.functional.one_hot(labels, 5).float()
    expected = {
        "margin": margin_loss(output.activations, targets),
        "cross_entropy": -(output.scores.log_softmax(dim=1) * targets).sum(dim=1).mean(),
    }
    for loss, value in expected.items():
        torch.testing.assert_close(build(loss=loss).loss(output, images, labels)[loss], value)
    spread = {"name": "spread", "schedule": "authors"}
    value = spread_loss(output.activations, labels, 0.2 + 0.79 / (1 + math.exp(4)))
    torch.testing.assert_close(build(loss=spread).loss(output, images, labels)["spread"], value)
    # H18's row: a softmax over the activations themselves, which cannot fall under log(1 + (K - 1) / e)
    of_activations = build(loss={"name": "cross_entropy", "of": "activations"})
    value = -(output.activations.log_softmax(dim=1) * targets).sum(dim=1).mean()
    torch.testing.assert_close(of_activations.loss(output, images, labels)["cross_entropy"], value)
    best = output._replace(activations=targets)
    assert float(of_activations.loss(best, images, labels)["cross_entropy"]) == pytest.approx(math.log(1 + 4 / math.e))


def test_the_class_layer_has_a_temperature_of_its_own():
    model = build(conv_types=(3, 5), routing={"inverse_temperature": 0.04})
    assert [layer.settings.inverse_temperature for layer in model.conv_caps] == [0.04, 0.04]
    assert model.class_caps.settings.inverse_temperature == pytest.approx(0.01)


def test_steps_of_training_are_counted_and_saved():
    model, (images, labels) = build(), batch(2)
    for _ in range(3):
        total_loss(model, images, labels)
    total_loss(model.eval(), images, labels)
    assert int(model.class_loss.step) == 3
    other = build()
    other.load_state_dict(model.state_dict())
    assert int(other.class_loss.step) == 3
    assert count_parameters(model) == sum(p.numel() for p in model.parameters())  # the step is not one


def test_several_classes_an_image():
    images, labels = batch(2)[0], torch.tensor([[0, 1], [2, 4]])
    for loss in ("margin", "cross_entropy"):
        assert total_loss(build(loss=loss), images, labels).isfinite()
    with pytest.raises(ValueError, match="the spread loss takes one class per image"):
        total_loss(build(), images, labels)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((2, 16, 32), {}, "needs images of at least 17x17, not 16x32"),
        ((2, 32, 24), {"conv_types": (4, 4, 4, 4)}, "needs images of at least 33x33, not 32x24"),
        ((2, 32, 32), {"pose": "quaternion"}, "option 'pose'"),
        ((2, 32, 32), {"routing": {"iterations": 0}}, "option 'routing.iterations'"),
        ((2, 32, 32), {"routing": {"damping": 1.0}}, "option 'routing.damping'"),
        ((2, 32, 32), {"routing": {"variance_floor": 0.0}}, "option 'routing.variance_floor'"),
        ((2, 32, 32), {"routing": "dynamic"}, "no routing 'dynamic'; there are em"),
        ((2, 32, 32), {"loss": {"name": "margin", "schedule": "linear"}}, "unknown option 'loss.schedule'"),
        ((2, 32, 32), {"loss": "share_likelihood"}, "no loss 'share_likelihood'; there are spread, margin"),
        ((2, 32, 32), {"iterations": 3}, "unknown option 'iterations'"),
        ((2, 32, 32), {"class_temperature_factor": 0.25}, "unknown option 'class_temperature_factor'"),
        ((2, 32, 32), {"competition": "types"}, "option 'competition'"),
        ((2, 32, 32), {"routing": {"class_temperature_factor": 0.0}}, "option 'routing.class_temperature_factor'"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_named(shape, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build_model("matrix_capsnet", image_shape=shape, num_classes=5, **options)
    assert "\n" not in str(caught.value)
