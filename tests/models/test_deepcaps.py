import math

import pytest
import torch
import torch.nn.functional as F
from separable import losses_on_separable_data

from capsbench.losses import margin_loss
from capsbench.models import build_model, count_parameters
from capsbench.models.deepcaps import CapsCell, ConvCaps, ConvCaps3D
from capsbench.routing import squash

SMALL = {"conv_channels": 8, "cell_types": (2, 3, 4), "cell_dims": (2, 4, 4), "class_dim": 6, "decoder": {"width": 8}}


def build(shape=(1, 12, 12), **options):
    torch.manual_seed(0)
    return build_model("deepcaps", image_shape=shape, num_classes=5, **{**SMALL, **options})


def batch(size=10, shape=(1, 12, 12)):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(size, *shape, generator=generator), torch.arange(size) % 5


def total_loss(model, images, labels):
    return sum(model.loss(model(images, labels), images, labels).values())


@pytest.mark.parametrize(
    ("shape", "options", "parameters", "decoder"),
    [
        ((1, 28, 28), {}, 8_500_337, 58_417),
        ((3, 32, 32), {}, 8_510_851, 66_627),
        ((3, 32, 32), {"input_side": 64}, 13_426_995, 67_571),
        ((1, 28, 28), {"capsule_bias": False}, 8_500_337 - 32 * 8 - 10 * 32, 58_417),
    ],
    ids=str,
)
def test_parameter_counts_of_the_authors_code_are_met_exactly(shape, options, parameters, decoder):
    with torch.device("meta"):
        model = build_model("deepcaps", shape, 10, **options)
        assert count_parameters(model) == parameters
        assert count_parameters(model.decoder) == decoder
        assert count_parameters(build_model("deepcaps", shape, 10, decoder=None, **options)) + decoder == parameters


@pytest.mark.parametrize(("side", "parameters"), [(64, 13_359_424), (32, 8_444_224), (16, 7_215_424)])
def test_the_papers_count_for_cifar_is_that_of_16x16_without_the_decoder(side, parameters):
    with torch.device("meta"):
        model = build_model("deepcaps", (3, 32, 32), 10, input_side=side, decoder=None)
    assert count_parameters(model) == parameters
    assert (round(parameters / 1e6, 2) == 7.22) == (side == 16)


def test_the_bookkeeping_of_the_count():
    with torch.device("meta"):
        model = build_model("deepcaps", (1, 28, 28), 10)
    assert count_parameters(model.conv) + count_parameters(model.norm) == 10 * 128 + 2 * 128
    assert [count_parameters(cell) for cell in model.cells] == [
        9 * 4 * 128 * 128,
        9 * (128 * 256 + 3 * 256 * 256),
        9 * 4 * 256 * 256,
        9 * 3 * 256 * 256 + 9 * 8 * 256 + 256,
    ]
    assert (
        count_parameters(model.transform) + count_parameters(model.routing)
        == (2 * 2 + 4 * 4) * 32 * 10 * 32 * 8 + 10 * 32
    )
    layers = [m for m in model.modules() if isinstance(m, ConvCaps | ConvCaps3D)]
    assert len(layers) == 16  # the paper's count


def test_convolutional_capsules_are_neighbouring_channels_of_one_position():
    layer = ConvCaps(3, 2, 4, stride=2)
    maps = torch.randn(2, 3, 5, 6)
    sums, found = layer.conv(maps), layer(maps)
    assert found.shape == (2, 8, 3, 3)
    torch.testing.assert_close(found[1, 4:, 2, 0], squash(sums[1, 4:, 2, 0]))


def plain_routing(layer, maps):
    """Section 3 word for word, one image and one number at a time where that is bearable: maps [c' * n', P, Q]."""
    children, (rows, columns) = maps.unflatten(0, (layer.in_types, -1)), maps.shape[1:]
    # 3D kernels n' x 3 x 3 over the stack of all planes, in steps of n' planes: V [s, r, n, p, q]
    in_dim = children.shape[1]
    votes = F.conv3d(maps[None, None], layer.weight.unsqueeze(1), stride=(in_dim, 1, 1), padding=(0, 1, 1))
    votes = votes[0].transpose(0, 1).unflatten(1, (layer.types, layer.dim))
    logits = torch.zeros(layer.in_types, layer.types, rows, columns)
    for _ in range(layer.iterations):
        couplings = logits.exp() / logits.exp().sum(dim=(1, 2, 3), keepdim=True)  # softmax_3D: over p, q and r
        sums = (couplings.unsqueeze(2) * votes).sum(dim=0)  # [r, n, p, q]
        if layer.bias is not None:
            sums = sums + layer.bias[:, :, None, None]
        parents = squash(sums, dim=1)
        logits = logits + (parents * votes).sum(dim=2)
    return parents.flatten(0, 1), couplings.permute(0, 2, 3, 1).flatten(1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("iterations", [1, 3])
def test_3d_routing_follows_the_papers_procedure(iterations, bias):
    torch.manual_seed(0)
    layer = ConvCaps3D(in_types=3, in_dim=2, types=4, dim=5, iterations=iterations, bias=bias)
    torch.nn.init.normal_(layer.weight, std=2.0)  # so that the couplings leave the uniform start
    maps = torch.randn(2, 6, 4, 3)
    found, couplings = layer(maps)
    assert found.shape == (2, 20, 4, 3)
    assert couplings.shape == (2, 3, 48)
    for sample in (0, 1):
        expected, expected_couplings = plain_routing(layer, maps[sample])
        torch.testing.assert_close(found[sample], expected)
        torch.testing.assert_close(couplings[sample], expected_couplings)
    assert (couplings.std() > 0.01) == (iterations > 1)


def test_parents_at_all_positions_compete_for_a_type():
    torch.manual_seed(0)
    layer = ConvCaps3D(in_types=3, in_dim=2, types=4, dim=5)
    torch.nn.init.normal_(layer.weight)
    couplings = layer(torch.randn(2, 6, 4, 3))[1]
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(2, 3))
    positions = couplings.unflatten(2, (12, 4)).sum(dim=3)
    assert positions.amax(dim=2).mean() > 3 / 12  # what one position gains the others lose


def test_each_type_votes_alone_from_the_nine_positions_around():
    layer = ConvCaps3D(in_types=2, in_dim=3, types=1, dim=4, iterations=1, bias=False)
    maps = torch.zeros(1, 6, 7, 7)
    maps[0, 3:, 3, 3] = 1.0  # type 1
    seen = layer(maps)[0].abs().sum(dim=1)[0] > 0
    assert seen[2:5, 2:5].all()
    assert seen.sum() == 9
    moved = torch.zeros(1, 6, 7, 7)
    moved[0, :3, 3, 3] = 1.0  # the kernels are shared by the types
    torch.testing.assert_close(layer(moved)[0], layer(maps)[0])


def test_3d_routing_has_the_gradients_of_finite_differences():
    torch.manual_seed(0)
    layer = ConvCaps3D(in_types=2, in_dim=2, types=2, dim=2, iterations=3).double()
    maps = torch.randn(1, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    parameters = dict(layer.named_parameters())

    def route(maps, *values):
        return torch.func.functional_call(layer, dict(zip(parameters, values, strict=True)), (maps,))[0]

    assert torch.autograd.gradcheck(route, (maps, *parameters.values()))


def test_a_cell_adds_its_skipping_layer_to_the_straight_ones():
    cell, maps = CapsCell(6, 2, 4), torch.randn(1, 6, 7, 8)
    reduced = cell.reduce(maps)
    assert reduced.shape == (1, 8, 4, 4)
    torch.testing.assert_close(cell(maps), cell.straight[1](cell.straight[0](reduced)) + cell.skip(reduced))
    cell = CapsCell(6, 2, 4, iterations=3)
    reduced = cell.reduce(maps)
    torch.testing.assert_close(cell(maps), cell.straight[1](cell.straight[0](reduced)) + cell.skip(reduced)[0])


def test_the_class_capsules_see_the_last_two_cells_the_last_one_first():
    model, (images, _) = build().eval(), batch(2)
    maps, seen = [], []
    for cell in model.cells:
        cell.register_forward_hook(lambda module, inputs, output: maps.append(output))
    model.routing.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model(images)
    assert [tuple(m.shape[1:]) for m in maps] == [(4, 6, 6), (12, 3, 3), (16, 2, 2)]
    assert seen[0].shape == (2, 2 * 2 * 4 + 3 * 3 * 3, 4)
    for grid, types, first in ((maps[2], 4, 0), (maps[1], 3, 16)):
        side = grid.shape[3]
        row, column, kind = 1, 0, 2
        capsule = first + (row * side + column) * types + kind
        torch.testing.assert_close(seen[0][1, capsule], grid[1, 4 * kind : 4 * kind + 4, row, column])


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 32, 32), (3, 9, 21), (1, 40, 40)], ids=str)
def test_any_image_shape_and_a_batch_of_one(shape):
    options = {"cell_types": (2, 3, 4, 4), "cell_dims": (2, 4, 4, 4)}
    model, images, labels = build(shape, **options), torch.rand(1, *shape), torch.tensor([3])
    output = model(images, labels)
    assert output.scores.shape == (1, 5)
    assert output.poses.shape == (1, 5, 6)
    assert output.reconstructions.shape == images.shape
    assert ((output.reconstructions >= 0) & (output.reconstructions <= 1)).all()
    grids = [math.prod(math.ceil(side / cell) for side in shape[1:]) for cell in (8, 16)]
    assert output.couplings.shape == (1, 4 * sum(grids), 5)
    torch.testing.assert_close(output.couplings.sum(dim=2), torch.ones(output.couplings.shape[:2]))
    sum(model.loss(output, images, labels).values()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_input_side_enlarges_the_image_and_gives_back_one_of_its_own_size():
    (images, labels), seen = batch(2), []
    model = build(input_side=24).eval()
    model.conv.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    output = model(images, labels)
    torch.testing.assert_close(seen[0], F.interpolate(images, (24, 24), mode="bilinear"))
    assert output.reconstructions.shape == images.shape
    plain = build((1, 24, 24)).eval()
    enlarged = plain(seen[0], labels)
    torch.testing.assert_close(output.scores, enlarged.scores)
    torch.testing.assert_close(output.reconstructions, F.avg_pool2d(enlarged.reconstructions, 2))


@pytest.mark.parametrize("pairs", [False, True])
def test_the_loss_falls_on_separable_data(pairs):
    model = build(decoder=None)
    losses = losses_on_separable_data(model, (1, 12, 12), 5, pairs, steps=25, learning_rate=0.01)
    assert losses[-1] < 0.5 * losses[0]


def test_all_parameters_learn():
    model, (images, labels) = build(), batch()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    total_loss(model, images, labels).backward()
    optimizer.step()
    assert all((p != b).any() for p, b in zip(model.parameters(), before, strict=True))


def test_the_decoder_sees_the_capsule_of_the_label_in_training_and_of_the_prediction_at_test():
    model, (images, _) = build().eval(), batch(4)
    seen = []
    model.decoder.layers.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    output = model(images)
    predicted = output.scores.argmax(dim=1)
    torch.testing.assert_close(seen[0], output.poses[torch.arange(4), predicted])
    model(images, (predicted + 1) % 5)
    torch.testing.assert_close(seen[1], output.poses[torch.arange(4), (predicted + 1) % 5])


def test_each_source_is_decoded_alone():
    model, (images, _) = build().eval(), batch(3)
    labels, sources = torch.tensor([[1, 4], [0, 2], [2, 3]]), torch.rand(3, 2, 1, 12, 12)
    output = model(images, labels)
    assert output.reconstructions.shape == sources.shape
    for source in (0, 1):
        alone = model(images, labels[:, source]).reconstructions
        torch.testing.assert_close(output.reconstructions[:, source], alone)
    parts = model.loss(output, sources, labels)
    torch.testing.assert_close(parts["reconstruction"], 0.4 * F.mse_loss(output.reconstructions, sources))
    present = torch.zeros(3, 5).scatter(1, labels, 1.0)
    torch.testing.assert_close(parts["margin"], margin_loss(output.scores, present))
    assert build(input_side=24)(images, labels).reconstructions.shape == sources.shape


@pytest.mark.parametrize(
    "options",
    [
        {"iterations": 1},
        {"conv_iterations": 1},
        {"input_side": 20},
        {"conv_channels": 4},
        {"cell_types": (2, 3, 3)},
        {"cell_dims": (4, 4, 4)},
        {"class_dim": 4},
        {"capsule_bias": False},
    ],
    ids=str,
)
def test_options_of_the_network_change_the_scores(options):
    scores = []
    for changes in ({}, options):
        model = build(**{"decoder": None, **changes})
        torch.nn.init.normal_(model.cells[-1].skip.weight, generator=torch.Generator().manual_seed(0))
        torch.nn.init.normal_(model.transform.weight, std=0.5, generator=torch.Generator().manual_seed(0))
        scores.append(model(batch()[0]).scores)
    assert not torch.allclose(*scores, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"loss": {"positive_margin": 0.8}},
        {"loss": {"negative_margin": 0.01}},
        {"loss": {"negative_weight": 0.25}},
        {"decoder": {"width": 8, "weight": 0.1}},
    ],
    ids=str,
)
def test_options_of_the_loss_change_the_loss(options):
    assert not torch.isclose(total_loss(build(), *batch()), total_loss(build(**options), *batch()))


def test_the_width_of_the_decoder_reaches_it():
    assert build(decoder={"width": 12}).decoder.layers[4].out_channels == 12


def test_batch_norm_momentum_is_how_fast_running_statistics_follow():
    means = []
    for momentum in (0.01, 0.1):
        model = build(batch_norm_momentum=momentum)
        model(batch()[0])
        means.append(model.norm.running_mean)
    torch.testing.assert_close(10 * means[0], means[1])
    assert means[0].any()


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 4, 32), {}, "deepcaps needs images of at least 5x5, not 4x32"),
        ((1, 8, 28), {"cell_types": (4,) * 4, "cell_dims": (4,) * 4}, "at least 9x9, not 8x28"),
        ((1, 28, 28), {"input_side": 4}, "at least 5x5, not 4x4"),
        ((1, 4, 4), {"cell_types": (4, 4), "cell_dims": (4, 4)}, "at least 5x5, not 4x4"),
        ((1, 28, 28), {"cell_types": (4, 4)}, "cell_types and cell_dims are for 2 and 3 cells"),
        ((1, 28, 28), {"cell_types": (4,), "cell_dims": (4,)}, "at least two cells"),
        ((1, 28, 28), {"cell_dims": (2, 4, 8)}, "the last two cells need the same dimension"),
        ((1, 28, 28), {"routing": "em"}, "unknown option 'routing'"),
        ((1, 28, 28), {"decoder": "fully_connected"}, "no decoder 'fully_connected'; there are deconvolutional"),
        ((1, 28, 28), {"loss": "spread"}, "no loss 'spread'; there are margin"),
        ((1, 28, 28), {"iterations": 0}, "option 'iterations'"),
        ((1, 28, 28), {"conv_iterations": 0}, "option 'conv_iterations'"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_named(shape, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        build(shape, **options)
    assert "\n" not in str(caught.value)
