import pytest
import torch
import torch.nn.functional as F

from capsbench.losses import margin_loss
from capsbench.models import build_model, count_parameters, efficient_capsnet
from capsbench.registry import DECODERS

SMALL = {"conv_channels": (4, 4, 4, 16), "class_dim": 8}
HIDDEN = {"hidden": (16, 32)}
MULTIMNIST = {"conv_strides": (1, 1, 2, 2), "primary_kernel": 5, "primary_stride": 2}
SMALLNORB = {
    "conv_kernels": (7, 3, 3, 3),
    "conv_strides": (2, 1, 1, 2),
    "activation": "leaky_relu",
    "normalization": "instance",
    "decoder": "convolutional",
}
PAPER = [((1, 28, 28), 10, {}, 161_824), ((1, 36, 36), 10, MULTIMNIST, 154_656), ((2, 48, 48), 5, SMALLNORB, 151_664)]


def build(shape=(1, 16, 16), num_classes=5, **options):
    torch.manual_seed(0)
    small = {**SMALL, "decoder": HIDDEN, **options}
    return build_model("efficient_capsnet", image_shape=shape, num_classes=num_classes, **small)


def batch(size=10, shape=(1, 16, 16)):
    """Images in [0, 1] whose class is a pattern, and their labels."""
    generator = torch.Generator().manual_seed(0)
    patterns, labels = torch.rand(5, *shape, generator=generator), torch.arange(size) % 5
    return 0.9 * patterns[labels] + 0.1 * torch.rand(size, *shape, generator=generator), labels


@pytest.mark.parametrize(("shape", "num_classes", "options", "parameters"), PAPER, ids=["mnist", "multimnist", "norb"])
def test_published_parameter_counts_are_met_exactly(shape, num_classes, options, parameters):
    with torch.device("meta"):
        model = build_model("efficient_capsnet", shape, num_classes, **{**options, "decoder": None})
        assert count_parameters(model) == parameters
        assert model.weight.shape == (16, num_classes, 16, 8)  # one position: 16 capsules
        decoder = build_model("efficient_capsnet", shape, num_classes, **options).decoder
    assert count_parameters(decoder) == {28: 1_411_344, 36: 1_936_144, 48: 229_570}[shape[1]]


def test_the_bookkeeping_of_the_published_count():
    with torch.device("meta"):
        model = build_model("efficient_capsnet", (1, 28, 28), 10, decoder=None)
    convolutions = (5 * 5 * 1 + 1) * 32 + (9 * 32 + 1) * 64 + (9 * 64 + 1) * 64 + (9 * 64 + 1) * 128
    assert count_parameters(model.features) == convolutions + 2 * (32 + 64 + 64 + 128)
    assert count_parameters(model.primary_conv) == 81 * 128 + 128
    assert model.weight.numel() + model.priors.numel() == 16 * 10 * (8 * 16 + 1)


def test_the_multimnist_network_does_not_see_the_last_row_and_column_of_its_grid():
    model = build((1, 36, 36), 10, **MULTIMNIST, conv_channels=(2, 2, 2, 8)).eval()
    grids = []
    model.features.register_forward_hook(lambda module, inputs, output: grids.append(output))
    images = torch.rand(1, 1, 36, 36, requires_grad=True)
    poses = model(images).poses
    (seen,) = torch.autograd.grad(poses.square().sum(), grids[0])
    assert seen.shape == (1, 8, 6, 6)
    seen = seen.abs().sum(dim=(0, 1)) > 0
    assert seen[:5, :5].all()
    assert not seen[5].any()
    assert not seen[:, 5].any()


@pytest.mark.parametrize(
    ("options", "dim", "means"),
    [
        ({}, 8, [11.0]),
        ({"primary_dim": 4}, 4, [11.0]),
        ({"primary_kernel": 2}, 8, [5.5, 6.5, 15.5, 16.5]),
        ({"primary_kernel": 2, "primary_stride": 2}, 8, [5.5]),
    ],
    ids=str,
)
def test_primary_capsules_are_neighbouring_channels_of_one_position(options, dim, means, monkeypatch):
    model = build((1, 15, 15), **options).eval()
    model.features = torch.nn.Sequential()
    grid = torch.tensor([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0], [20.0, 21.0, 22.0]])  # alike in all channels
    torch.nn.init.constant_(model.primary_conv.weight, 1 / model.primary_conv.weight[0].numel())
    with torch.no_grad():
        model.primary_conv.bias.copy_(100 * torch.arange(16.0))  # a channel's number
    seen = []
    monkeypatch.setattr(efficient_capsnet, "exponential_squash", lambda s: seen.append(s) or s)
    model(grid.expand(1, 16, 3, 3))
    expected = [mean + 100 * torch.arange(16.0).view(-1, dim) for mean in means]  # position by position
    torch.testing.assert_close(seen[0][0], torch.cat(expected))


def test_class_capsules_follow_the_papers_procedure(monkeypatch):
    model, images = build(decoder=None).eval(), torch.rand(2, 1, 16, 16)
    torch.nn.init.normal_(model.weight)
    torch.nn.init.normal_(model.priors)
    inputs, squash = [], efficient_capsnet.exponential_squash
    monkeypatch.setattr(efficient_capsnet, "exponential_squash", lambda s: inputs.append(squash(s)) or inputs[0])
    output = model(images)
    for sample, u in enumerate(inputs[0]):
        votes = torch.stack([torch.stack([w @ x for w in weight]) for weight, x in zip(model.weight, u, strict=True)])
        agreements = torch.stack([(v @ v.T / 8**0.5).sum(dim=1) for v in votes.unbind(1)], dim=1)  # [I, J]
        couplings = agreements.softmax(dim=1)
        sums = ((couplings + model.priors).unsqueeze(2) * votes).sum(dim=0)  # [J, D]
        lengths = sums.norm(dim=1)
        torch.testing.assert_close(output.couplings[sample], couplings)
        torch.testing.assert_close(output.scores[sample], 1 - (-lengths).exp())
        torch.testing.assert_close(output.poses[sample], sums * ((1 - (-lengths).exp()) / lengths).unsqueeze(1))
    torch.testing.assert_close(output.couplings.sum(dim=2), torch.ones(2, 2))


@pytest.mark.parametrize("decoder", DECODERS.names())
@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 32, 20), (3, 13, 19)], ids=str)
def test_any_image_shape_and_a_batch_of_one(shape, decoder):
    model, labels = build(shape, decoder=decoder), torch.tensor([3])
    images = torch.rand(1, *shape)
    output = model(images, labels)
    assert output.scores.shape == (1, 5)
    assert output.poses.shape == (1, 5, 8)
    assert output.reconstructions.shape == images.shape
    assert ((output.reconstructions > 0) & (output.reconstructions < 1)).all()
    torch.testing.assert_close(output.couplings.sum(dim=2), torch.ones(output.couplings.shape[:2]))
    sum(model.loss(output, images, labels).values()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"conv_strides": (1, 1, 1, 1), "primary_kernel": 3, "primary_stride": 2},
        {"activation": "leaky_relu", "normalization": "instance", "decoder": "convolutional"},
    ],
    ids=str,
)
def test_the_loss_falls_on_separable_data(options):
    model, (images, labels) = build(**options), batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    before = [p.detach().clone() for p in model.parameters()]
    losses = []
    for _ in range(20):
        total = sum(model.loss(model(images, labels), images, labels).values())
        optimizer.zero_grad()
        total.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(float(total.detach()))
    assert losses[-1] < 0.7 * losses[0]
    assert all((p != b).any() for p, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("decoder", DECODERS.names())
def test_each_source_is_decoded_alone(decoder):
    on_the_mean = {"weight": 0.392, "reduction": "mean"}
    model, (images, _) = build(decoder={"name": decoder, **on_the_mean}).eval(), batch(3)
    torch.nn.init.normal_(model.weight)
    labels, sources = torch.tensor([[1, 4], [0, 2], [2, 3]]), torch.rand(3, 2, 1, 16, 16)
    output = model(images, labels)
    assert output.reconstructions.shape == sources.shape
    for source in (0, 1):
        alone = model(images, labels[:, source]).reconstructions
        torch.testing.assert_close(output.reconstructions[:, source], alone)
    parts = model.loss(output, sources, labels)
    each = [F.mse_loss(output.reconstructions[:, source], sources[:, source]) for source in (0, 1)]
    torch.testing.assert_close(parts["reconstruction"], 0.392 / 2 * sum(each))
    present = torch.zeros(3, 5).scatter(1, labels, 1.0)
    torch.testing.assert_close(parts["margin"], margin_loss(output.scores, present))


def test_the_reconstruction_weight_belongs_to_the_mean_of_squared_errors():
    model, (images, labels) = build(), batch()
    output = model(images, labels)
    found = model.loss(output, images, labels)["reconstruction"]
    torch.testing.assert_close(found, 0.392 * F.mse_loss(output.reconstructions, images))


def test_the_decoder_sees_the_label_in_training_and_the_prediction_at_test():
    model, (images, _) = build().eval(), batch(4)
    torch.nn.init.normal_(model.weight)
    output = model(images)
    predicted = output.scores.argmax(dim=1)
    torch.testing.assert_close(model(images, predicted).reconstructions, output.reconstructions)
    assert not torch.allclose(model(images, (predicted + 1) % 5).reconstructions, output.reconstructions)
    seen = []
    model.decoder.layers.register_forward_pre_hook(
        lambda module, arguments: seen.append(arguments[0].unflatten(1, (5, 8)))
    )
    model(images)
    assert seen[0].count_nonzero() <= 4 * 8
    torch.testing.assert_close(seen[0].sum(dim=1), output.poses[torch.arange(4), predicted])


@pytest.mark.parametrize(
    "options",
    [
        {"conv_channels": (4, 4, 4, 8)},
        {"conv_kernels": (3, 3, 3, 3)},
        {"conv_strides": (1, 1, 1, 1)},
        {"activation": "leaky_relu"},
        {"normalization": "instance"},
        {"primary_kernel": 2},
        {"primary_kernel": 2, "primary_stride": 2},
        {"primary_dim": 4},
        {"class_dim": 4},
    ],
    ids=str,
)
def test_options_of_the_network_change_the_scores(options):
    images, unlike = batch()[0], {"primary_kernel": 2} if "primary_stride" in options else {}
    assert not torch.allclose(build(**unlike)(images).scores, build(**options)(images).scores)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": {"positive_margin": 0.8}},
        {"loss": {"negative_margin": 0.001}},
        {"loss": {"negative_weight": 0.25}},
        {"decoder": HIDDEN | {"weight": 0.1}},
        {"decoder": HIDDEN | {"reduction": "sum"}},
    ],
    ids=str,
)
def test_options_of_the_loss_change_the_loss(options):
    losses = []
    for changes in ({}, options):
        model, (images, labels) = build(**changes), batch()
        torch.nn.init.normal_(model.weight)  # lengths that pass the negative margin
        losses.append(sum(model.loss(model(images, labels), images, labels).values()))
    assert not torch.isclose(*losses)


def test_batch_norm_momentum_is_how_fast_running_statistics_follow():
    images, means = batch()[0], []
    for momentum in (0.01, 0.1):
        model = build(batch_norm_momentum=momentum)
        model(images)
        means.append(model.features[2].running_mean)
    torch.testing.assert_close(10 * means[0], means[1])
    assert means[0].any()


def test_hidden_layers_reach_the_decoder_which_keeps_its_weight():
    decoder = build(decoder={"hidden": (7, 9)}).decoder
    assert (decoder.weight, decoder.reduction) == (0.392, "mean")
    assert build(decoder="convolutional").decoder.weight == 0.0005  # another decoder has its own
    widths = [layer.out_features for layer in decoder.layers if isinstance(layer, torch.nn.Linear)]
    assert widths == [7, 9, 256]


@pytest.mark.parametrize("normalization", ["batch", "instance"])
def test_a_prediction_does_not_depend_on_its_batch_mates(normalization):
    model, (images, labels) = build(normalization=normalization), batch()
    model(images, labels)  # moves the running statistics
    model.eval()
    torch.testing.assert_close(model(images[2:3]).scores, model(images).scores[2:3])


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 12, 32), {}, "efficient_capsnet needs images of at least 13x13, not 12x32"),
        ((1, 36, 34), {**MULTIMNIST, "primary_kernel": 7}, "needs images of at least 37x37, not 36x34"),
        ((2, 32, 22), SMALLNORB, "needs images of at least 23x23, not 32x22"),
        (
            (1, 28, 28),
            {"conv_strides": (1, 2)},
            "conv_channels, conv_kernels and conv_strides are for 4, 4 and 2 layers",
        ),
        ((1, 28, 28), {"primary_dim": 5}, "16 channels cannot be cut into capsules of 5"),
        ((1, 28, 28), {"primary_kernel": "half"}, "option 'primary_kernel"),
        ((1, 28, 28), {"primary_kernel": 0}, "option 'primary_kernel"),
        ((1, 28, 28), {"normalization": "none"}, "option 'normalization'"),
        ((1, 28, 28), {"decoder": "none"}, "no decoder 'none'; there are"),
        ((1, 28, 28), {"decoder": {"name": "convolutional", "hidden": (8,)}}, "unknown option 'decoder.hidden'"),
        ((1, 28, 28), {"routing": "em"}, "unknown option 'routing'"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_named(shape, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(shape, **options)
    assert "\n" not in str(caught.value)
