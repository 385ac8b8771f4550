from dataclasses import replace

import pytest
import torch

from capsbench.models import matrix_capsnet
from capsbench.models.matrix_capsnet import (
    ClassMatrixCaps,
    ConvMatrixCaps,
    PrimaryMatrixCaps,
    receptive_field_centres,
)
from capsbench.routing.em import EMSettings

B, T, J, K = 2, 3, 4, 5
POSES = ["matrix", "vector"]
SHARP = EMSettings(inverse_temperature=1.0)  # activations of these small cases then differ


def capsules(rows, columns, types=T):
    """Poses [B, rows, columns, types, 16] and activations."""
    generator = torch.Generator().manual_seed(0)
    poses = torch.randn(B, rows, columns, types, 16, generator=generator)
    return poses, torch.rand(B, rows, columns, types, generator=generator)


def seen_by_routing(monkeypatch, name):
    """The arguments with which a layer calls its routing."""
    seen = []
    real = getattr(matrix_capsnet, name)
    monkeypatch.setattr(matrix_capsnet, name, lambda *args, **options: seen.append(args) or real(*args, **options))
    return seen


def test_primary_capsules_are_channels_of_one_position():
    layer = PrimaryMatrixCaps(in_channels=1, types=2)
    with torch.no_grad():
        layer.conv.weight.copy_(torch.arange(34).view(34, 1, 1, 1))
    features = torch.tensor([[1.0, 100.0]]).view(1, 1, 1, 2)  # two positions: channel c holds c, and 100 c
    poses, activations = layer(features)
    assert poses.shape == (1, 1, 2, 2, 16)
    expected = torch.arange(32.0).view(2, 16)
    torch.testing.assert_close(poses[0, 0], torch.stack([expected, 100 * expected]))
    torch.testing.assert_close(activations[0, 0, 0], torch.tensor([32.0 - 1, 33.0 - 1]).sigmoid())
    assert sum(p.numel() for p in PrimaryMatrixCaps(32, 32).parameters()) == 32 * 17 * 32


@pytest.mark.parametrize("pose", POSES)
@pytest.mark.parametrize(("stride", "out_grid"), [(1, (5, 3)), (2, (3, 2))])
def test_shapes_of_convolutional_capsules(pose, stride, out_grid):
    layer = ConvMatrixCaps((7, 5), T, J, kernel_size=3, stride=stride, pose=pose)
    poses, activations = layer(*capsules(7, 5))
    assert layer.out_grid == out_grid
    assert poses.shape == (B, *out_grid, J, 16)
    assert activations.shape == (B, *out_grid, J)
    transform = 16 if pose == "matrix" else 256
    assert sum(p.numel() for p in layer.parameters()) == 9 * T * J * transform + 2 * J


@pytest.mark.parametrize("pose", POSES)
def test_shapes_of_class_capsules(pose):
    layer = ClassMatrixCaps(T, K, pose)
    poses, activations, assignments = layer(*capsules(4, 3))
    assert poses.shape == (B, K, 16)
    assert activations.shape == (B, K)
    assert assignments.shape == (B, 12 * T, K)
    torch.testing.assert_close(assignments.sum(dim=2), torch.ones(B, 12 * T))
    assert sum(p.numel() for p in layer.parameters()) == T * K * (16 if pose == "matrix" else 256) + 2 * K


def test_a_matrix_vote_is_the_pose_times_the_transform(monkeypatch):
    seen = seen_by_routing(monkeypatch, "conv_em_routing")
    layer = ConvMatrixCaps((4, 5), T, J, stride=1)
    poses, activations = capsules(4, 5)
    layer(poses, activations)
    votes = seen[0][0]  # [B, P, N, J, 16]
    for position, (row, column) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]):
        for child in range(9 * T):
            place, kind = divmod(child, T)
            pose = poses[:, row + place // 3, column + place % 3, kind].view(B, 1, 4, 4)
            expected = (pose @ layer.transforms[child]).flatten(2)  # [B, J, 16]
            torch.testing.assert_close(votes[:, position, child], expected)


def test_a_vector_vote_is_the_transform_times_the_pose(monkeypatch):
    seen = seen_by_routing(monkeypatch, "route_by_em")
    layer = ClassMatrixCaps(T, K, "vector")
    poses, activations = capsules(2, 2)
    layer(poses, activations)
    votes = seen[0][0].unflatten(1, (2, 2, T))
    torch.testing.assert_close(votes, torch.einsum("tkoi,brcti->brctko", layer.transforms, poses))


@pytest.mark.parametrize(("pose", "elements"), [("matrix", (3, 7)), ("vector", (0, 1))])
def test_coordinate_addition_adds_row_and_column_to_two_elements(monkeypatch, pose, elements):
    seen = seen_by_routing(monkeypatch, "route_by_em")
    rows, columns = torch.tensor([0.1, 0.2]), torch.tensor([1.0, 2.0, 3.0])
    plain = ClassMatrixCaps(T, K, pose)
    added = ClassMatrixCaps(T, K, pose, (rows, columns))
    added.load_state_dict(plain.state_dict())  # the coordinates are no part of it
    inputs = capsules(2, 3)
    plain(*inputs)
    added(*inputs)
    difference = (seen[1][0] - seen[0][0]).unflatten(1, (2, 3, T))  # [B, rows, columns, T, K, 16]
    expected = torch.zeros(2, 3, 16)
    expected[:, :, elements[0]] = rows[:, None]
    expected[:, :, elements[1]] = columns
    torch.testing.assert_close(difference, expected[None, :, :, None, None].expand_as(difference), atol=1e-6, rtol=0)


def test_receptive_field_centres():
    centres = receptive_field_centres(32, [(5, 2), (3, 2), (3, 1)])
    # fields of 17 pixels every 4 pixels; nothing sees the last 3
    torch.testing.assert_close(centres, (torch.tensor([8.0, 12.0, 16.0, 20.0]) - 15.5) / 100)


def test_class_transforms_are_shared_over_positions():
    layer = ClassMatrixCaps(T, K, settings=SHARP)
    poses, activations = capsules(3, 3)
    moved = layer(poses.roll(1, dims=2), activations.roll(1, dims=2))
    for found, expected in zip(moved[:2], layer(poses, activations)[:2], strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_child_reaches_the_parents_whose_receptive_field_holds_it(stride):
    layer = ConvMatrixCaps((7, 7), T, J, stride=stride, settings=replace(SHARP, iterations=1))
    poses, activations = capsules(7, 7)
    before = layer(poses, activations)[0]
    for row, column in ((0, 0), (3, 3), (2, 5)):
        changed = poses.clone()
        changed[0, row, column] += 1
        reached = (layer(changed, activations)[0] != before).flatten(3).any(dim=3)  # [B, rows, columns]
        expected = torch.zeros_like(reached)
        for r in range(layer.out_grid[0]):
            for c in range(layer.out_grid[1]):
                expected[0, r, c] = 0 <= row - r * stride < 3 and 0 <= column - c * stride < 3
        assert torch.equal(reached, expected)


def test_routing_carries_it_to_parents_that_share_its_children():
    layer = ConvMatrixCaps((5, 9), T, J, settings=replace(SHARP, iterations=2))  # 3x7 parents
    poses, activations = capsules(5, 9)
    changed = poses.clone()
    changed[0, 0, 0] += 1  # feeds parents of column 0, which share children with those of columns 1 and 2 alone
    reached = (layer(changed, activations)[0] != layer(poses, activations)[0]).flatten(3).any(dim=3)[0].any(dim=0)
    assert reached.tolist() == [True, True, True, False, False, False, False]


def test_parts_of_a_batch_are_the_batch(monkeypatch):
    layer = ConvMatrixCaps((6, 6), T, J, stride=2, settings=SHARP)
    generator = torch.Generator().manual_seed(1)
    poses = torch.randn(5, 6, 6, T, 16, generator=generator, requires_grad=True)
    activations = torch.rand(5, 6, 6, T, generator=generator, requires_grad=True)
    leaves = [poses, activations, *layer.parameters()]

    def values_and_gradients():
        means, parents = layer(poses, activations)
        return [means, parents, *torch.autograd.grad(means.square().sum() + parents.sum(), leaves)]

    whole = values_and_gradients()
    monkeypatch.setattr(matrix_capsnet, "CPU_VOTES", 2 * 4 * 9 * T * J * 16)  # two samples at a time
    seen = seen_by_routing(monkeypatch, "conv_em_routing")
    torch.testing.assert_close(values_and_gradients(), whole)
    assert [len(arguments[0]) for arguments in seen[:3]] == [2, 2, 1]
    with torch.no_grad():
        torch.testing.assert_close(list(layer(poses, activations)), whole[:2])


def test_betas_start_as_in_the_authors_code():
    for inverse_temperature in (0.02, 0.01, 1.0):
        settings = EMSettings(inverse_temperature=inverse_temperature)
        conv, classes = ConvMatrixCaps((5, 5), T, J, settings=settings), ClassMatrixCaps(T, K, settings=settings)
        (conv_u, conv_a), (class_u, class_a) = conv.betas(), classes.betas()
        torch.testing.assert_close(conv_u, torch.full((J,), 0.5 * 1.4189385))
        torch.testing.assert_close(class_u, torch.full((K,), 2 * 1.4189385))
        # a parent without data starts alike at every temperature; at the authors', -1250 and -2500
        torch.testing.assert_close(conv_a, torch.full((J,), -25 / inverse_temperature))
        torch.testing.assert_close(class_a, torch.full((K,), -12.5 / inverse_temperature))
        poses, activations = capsules(5, 5)
        logits = classes(poses, torch.zeros_like(activations)).logits
        torch.testing.assert_close(logits, torch.full((B, K), -12.5 * (1 - 0.95**3)))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("competition", ["positions", "parents", "positions_as_coded"])
def test_competition_reaches_the_routing(monkeypatch, competition, stride):
    seen = seen_by_routing(monkeypatch, "conv_em_routing")
    layer = ConvMatrixCaps((7, 5), T, J, 3, stride, settings=SHARP, competition=competition)
    layer(*capsules(7, 5))
    children, (settings, kind, rivals) = seen[0][2], seen[0][5:]
    assert settings == SHARP
    assert kind == ("parents" if competition == "parents" else "positions")
    if competition != "positions_as_coded":
        assert rivals is None
        return
    rows, columns = layer.out_grid
    for row in range(rows):
        for column in range(columns):
            for place in range(9):
                child = int(children[row * columns + column, place])
                assert (child // 5, child % 5) == (row * stride + place // 3, column * stride + place % 3)
                rival = int(rivals[row * columns + column, place])  # the child that it would be at stride 1
                assert (rival // (columns + 2), rival % (columns + 2)) == (row + place // 3, column + place % 3)


def test_theirs_differs_at_stride_2_alone():
    poses, activations = capsules(7, 7)
    for stride in (1, 2):
        found = []
        for competition in ("positions", "positions_as_coded", "parents"):
            torch.manual_seed(0)
            layer = ConvMatrixCaps((7, 7), T, J, 3, stride, settings=SHARP, competition=competition)
            found.append(layer(poses, activations)[0])
        assert torch.allclose(found[0], found[1]) == (stride == 1)
        assert not torch.allclose(found[0], found[2])


@pytest.mark.parametrize("layer", ["conv", "class"])
@pytest.mark.parametrize(
    "options",
    [{"iterations": 1}, {"inverse_temperature": 0.5}, {"damping": 0.2}, {"variance_floor": 0.1}, {"annealing": 0.5}],
    ids=str,
)
def test_options_of_routing_reach_the_routing(layer, options):
    def parents(**changes):
        torch.manual_seed(0)
        if layer == "conv":
            return ConvMatrixCaps((5, 5), T, J, settings=replace(SHARP, **changes))(*capsules(5, 5))[1]
        return ClassMatrixCaps(T, K, settings=replace(SHARP, **changes))(*capsules(2, 2))[1]

    assert not torch.equal(parents(), parents(**options))
