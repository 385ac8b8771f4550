"""Transforms: first what holds for every one, so that one that is new is tested by being registered; then each."""

import pytest
import torch
from class_capsules import ClassCaps
from option_values import option_names, other_value

from capsbench.layers.transforms import Transform
from capsbench.registry import ROUTINGS, TRANSFORMS
from capsbench.routing import LayerSize

POSITIONS, TYPES, J, D, d = 6, 4, 3, 5, 2
I = POSITIONS * TYPES  # noqa: E741
SIZE = LayerSize(I, d, J, D)

every_transform = pytest.mark.parametrize("name", TRANSFORMS.names())
every_option = pytest.mark.parametrize(
    ("name", "option"), [(n, option) for n in TRANSFORMS.names() for option in option_names(TRANSFORMS.options(n))]
)


@every_transform
def test_a_transform_gives_a_matrix_for_each_child_and_parent(name):
    transform = TRANSFORMS.build(name, SIZE, TYPES, 0.1)
    assert isinstance(transform, Transform)
    weight = transform()
    assert weight.shape == (I, J, D, d)
    weight.square().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in transform.parameters())


@every_transform
@pytest.mark.parametrize("std", [0.01, 0.1, 1.0])
def test_a_transform_starts_about_as_large_as_the_full_one(name, std):
    size = LayerSize(children=200, child_dim=8, parents=10, parent_dim=16)
    weight, full = (TRANSFORMS.build(one, size, 20, std)() for one in (name, "full"))
    assert (weight.std() / full.std()).item() == pytest.approx(1.0, abs=0.15)
    assert abs(weight.mean()) < 0.1 * std


@every_transform
def test_on_the_meta_device_a_transform_takes_no_memory(name):
    with torch.device("meta"):
        transform = TRANSFORMS.build(name, LayerSize(10**6, 16, 10**3, 16), 1000, 0.1)
        weight = transform()
    assert all(p.is_meta for p in transform.parameters())
    assert weight.shape == (10**6, 10**3, 16, 16)


@every_transform
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_class_capsules_learn_with_every_transform(name, routing):
    capsules = ClassCaps(SIZE, ROUTINGS.choose(routing), TRANSFORMS.choose(name), in_types=TYPES)
    inputs = torch.randn(2, I, d)
    routed = capsules(inputs)
    assert routed.poses.shape == (2, J, D)
    torch.testing.assert_close(capsules(inputs[:1]).poses, routed.poses[:1])
    routed.poses.square().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in capsules.transform.parameters())


@every_option
def test_every_option_acts(name, option):
    value, weights = other_value(TRANSFORMS.options(name), option), []
    for options in ({}, {option: value}):
        torch.manual_seed(0)
        weights.append(TRANSFORMS.build(name, SIZE, TYPES, 0.1, **options)())
    assert not torch.allclose(*weights)


CHEAP = {
    "shared_over_positions": ({}, TYPES * J * D * d),
    "shared": ({}, J * D * d),
    "grouped": ({"groups": 3}, 3 * J * D * d),
    "low_rank": ({"rank": 1}, I * J * (D + d)),
}


def layer(transform="full", seed=0, routing="dynamic", **options):
    torch.manual_seed(seed)
    return ClassCaps(SIZE, ROUTINGS.choose(routing), TRANSFORMS.choose(transform, **options), in_types=TYPES)


def matrix(cheap, transform, i, j):
    """W_ij as the docstring has it: child number = position x types + type."""
    position, kind = divmod(i, TYPES)
    cheap = cheap.transform
    if transform == "shared_over_positions":
        return cheap.weight[kind, j]
    if transform == "shared":
        return cheap.weight[0, j]
    if transform == "grouped":  # 3 groups of 8 neighbours: of two positions each
        return cheap.weight[position // 2, j]
    return cheap.expansion[i, j] @ cheap.weight[i, j]


@pytest.mark.parametrize("routing", ["dynamic", "uniform", "em"])
@pytest.mark.parametrize("transform", CHEAP)
def test_a_cheap_transform_is_the_full_one_with_its_matrices(transform, routing):
    cheap, full = layer(transform, routing=routing, **CHEAP[transform][0]), layer(routing=routing)
    with torch.no_grad():
        for i in range(I):
            for j in range(J):
                full.transform.weight[i, j] = matrix(cheap, transform, i, j)
    inputs = torch.randn(2, I, d)
    torch.testing.assert_close(cheap.transform(), full.transform())
    for found, expected in zip(cheap(inputs), full(inputs), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("transform", CHEAP)
def test_parameters_are_counted_exactly(transform):
    options, parameters = CHEAP[transform]
    assert sum(p.numel() for p in layer(transform, **options).parameters()) == parameters
    assert sum(p.numel() for p in layer().parameters()) == I * J * D * d


@pytest.mark.parametrize("transform", CHEAP)
def test_a_matrix_that_is_shared_learns_from_all_that_share_it(transform):
    options = CHEAP[transform][0]
    cheap, full, inputs = layer(transform, **options), layer(), torch.randn(2, I, d)
    with torch.no_grad():
        full.transform.weight.copy_(
            torch.stack([torch.stack([matrix(cheap, transform, i, j) for j in range(J)]) for i in range(I)])
        )
    for one in (cheap, full):
        one(inputs)[0].square().sum().backward()
    expected = torch.zeros_like(cheap.transform.weight)
    for i in range(I):
        for j in range(J):
            gradient = full.transform.weight.grad[i, j]
            if transform == "low_rank":
                gradient = cheap.transform.expansion.detach()[i, j].T @ gradient
            place = {"shared_over_positions": i % TYPES, "shared": 0, "grouped": i // 8, "low_rank": i}[transform]
            expected[place, j] += gradient
    torch.testing.assert_close(cheap.transform.weight.grad, expected)


def test_one_group_is_shared_and_as_many_as_children_are_full():
    inputs = torch.randn(2, I, d)
    for groups, other in ((1, "shared"), (I, "full")):
        torch.testing.assert_close(tuple(layer("grouped", groups=groups)(inputs)), tuple(layer(other)(inputs)))


def test_a_shared_transform_does_not_know_which_child_is_which():
    inputs, order = torch.randn(2, I, d), torch.randperm(I)
    shared = layer("shared")
    torch.testing.assert_close(shared(inputs[:, order])[0], shared(inputs)[0])
    positions = torch.randperm(POSITIONS)
    moved = inputs.unflatten(1, (POSITIONS, TYPES))[:, positions].flatten(1, 2)
    by_type = layer("shared_over_positions")
    torch.testing.assert_close(by_type(moved)[0], by_type(inputs)[0])
    assert not torch.allclose(by_type(inputs[:, order])[0], by_type(inputs)[0])


@pytest.mark.parametrize("rank", [1, 2])
def test_the_rank_of_a_low_rank_transform(rank):
    full = layer("low_rank", rank=rank).transform()
    assert torch.linalg.matrix_rank(full).eq(rank).all()
    assert full.shape == (I, J, D, d)


@pytest.mark.parametrize("rank", [1, 4, 8])
def test_a_low_rank_transform_starts_about_as_large_as_a_full_one(rank):
    torch.manual_seed(0)
    size = LayerSize(200, 8, 10, 16)
    full, low = TRANSFORMS.build("full", size, 1, 0.1), TRANSFORMS.build("low_rank", size, 1, 0.1, rank=rank)
    ratio = low().std() / full().std()
    assert ratio.item() == pytest.approx(0.88, abs=0.03)  # two truncated normals where the full one is one


@every_transform
def test_every_transform_goes_with_bias_and_detach(name):
    inputs, found = torch.randn(2, I, d), []
    for routing in ({}, {"bias": True}, {"detach": True}):
        torch.manual_seed(0)
        capsules = ClassCaps(SIZE, ROUTINGS.choose("dynamic", **routing), TRANSFORMS.choose(name), in_types=TYPES)
        found.append(capsules(inputs).poses)
    plain, biased, detached = found
    assert not torch.allclose(biased, plain)
    torch.testing.assert_close(detached, plain)


@pytest.mark.parametrize(
    ("transform", "options", "message"),
    [
        ("full", {"rank": 1}, "full: unknown option 'rank'"),
        ("shared", {"groups": 2}, "shared: unknown option 'groups'"),
        ("grouped", {"groups": 2, "rank": 1}, "grouped: unknown option 'rank'"),
        ("low_rank", {"rank": 3}, "5x2 has a rank of at most 2, not 3"),
        ("grouped", {"groups": 5}, "24 capsules .* 5 groups"),
        ("low_rnak", {}, "no transform 'low_rnak'; did you mean low_rank"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(transform, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        TRANSFORMS.build(transform, SIZE, TYPES, 0.1, **options)
    assert "\n" not in str(caught.value)


def test_types_that_do_not_divide_the_children_are_refused():
    with pytest.raises(ValueError, match=r"24 capsules .* 5 types"):
        TRANSFORMS.build("shared_over_positions", SIZE, 5, 0.1)
