import pytest
import torch

from capsbench.layers import ClassCaps

POSITIONS, TYPES, J, D, d = 6, 4, 3, 5, 2
I = POSITIONS * TYPES  # noqa: E741
CHEAP = {
    "shared_over_positions": ({}, TYPES * J * D * d),
    "shared": ({}, J * D * d),
    "grouped": ({"groups": 3}, 3 * J * D * d),
    "low_rank": ({"rank": 1}, I * J * (D + d)),
}
ALL = [("full", {}), *((name, options) for name, (options, _) in CHEAP.items())]


def layer(transform="full", seed=0, **options):
    torch.manual_seed(seed)
    return ClassCaps(I, d, J, D, transform=transform, in_types=TYPES, **options)


def matrix(cheap, transform, i, j):
    """W_ij as the docstring has it: child number = position x types + type."""
    position, kind = divmod(i, TYPES)
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
                full.weight[i, j] = matrix(cheap, transform, i, j)
    inputs = torch.randn(2, I, d)
    for found, expected in zip(cheap(inputs), full(inputs), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("transform", CHEAP)
def test_parameters_are_counted_exactly(transform):
    options, parameters = CHEAP[transform]
    assert sum(p.numel() for p in layer(transform, **options).parameters()) == parameters
    biased = layer(transform, bias=True, **options)
    assert sum(p.numel() for p in biased.parameters()) == parameters + J * D
    assert sum(p.numel() for p in layer().parameters()) == I * J * D * d


@pytest.mark.parametrize("transform", CHEAP)
def test_a_matrix_that_is_shared_learns_from_all_that_share_it(transform):
    options = CHEAP[transform][0]
    cheap, full, inputs = layer(transform, **options), layer(), torch.randn(2, I, d)
    with torch.no_grad():
        full.weight.copy_(
            torch.stack([torch.stack([matrix(cheap, transform, i, j) for j in range(J)]) for i in range(I)])
        )
    for one in (cheap, full):
        one(inputs)[0].square().sum().backward()
    expected = torch.zeros_like(cheap.weight)
    for i in range(I):
        for j in range(J):
            gradient = full.weight.grad[i, j]
            if transform == "low_rank":
                gradient = cheap.expansion.detach()[i, j].T @ gradient
            place = {"shared_over_positions": i % TYPES, "shared": 0, "grouped": i // 8, "low_rank": i}[transform]
            expected[place, j] += gradient
    torch.testing.assert_close(cheap.weight.grad, expected)


def test_one_group_is_shared_and_as_many_as_children_are_full():
    inputs = torch.randn(2, I, d)
    for groups, other in ((1, "shared"), (I, "full")):
        torch.testing.assert_close(layer("grouped", groups=groups)(inputs), layer(other)(inputs))


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
    found = layer("low_rank", rank=rank)
    full = found.expansion @ found.weight
    assert torch.linalg.matrix_rank(full).eq(rank).all()
    assert full.shape == (I, J, D, d)


@pytest.mark.parametrize("rank", [1, 4, 8])
def test_a_low_rank_transform_starts_about_as_large_as_a_full_one(rank):
    torch.manual_seed(0)
    full, low = ClassCaps(200, 8, 10, 16), ClassCaps(200, 8, 10, 16, transform="low_rank", rank=rank)
    ratio = (low.expansion @ low.weight).std() / full.weight.std()
    assert ratio.item() == pytest.approx(0.88, abs=0.03)  # two truncated normals where the full one is one


@pytest.mark.parametrize(("transform", "options"), ALL, ids=lambda x: str(x))
def test_every_transform_goes_with_bias_and_detach(transform, options):
    inputs = torch.randn(2, I, d)
    plain = layer(transform, **options)(inputs)[0]
    assert not torch.allclose(layer(transform, bias=True, **options)(inputs)[0], plain)
    torch.testing.assert_close(layer(transform, detach=True, **options)(inputs)[0], plain)


@pytest.mark.parametrize(
    ("transform", "options", "message"),
    [
        ("low_rank", {}, "transform 'low_rank' needs option 'rank'"),
        ("grouped", {}, "transform 'grouped' needs option 'groups'"),
        ("full", {"rank": 1}, "option 'rank' is of transform 'low_rank', not of 'full'"),
        ("shared", {"groups": 2}, "option 'groups' is of transform 'grouped', not of 'shared'"),
        ("grouped", {"groups": 2, "rank": 1}, "option 'rank' is of transform 'low_rank', not of 'grouped'"),
        ("low_rank", {"rank": 3}, "a transform of 5x2 has a rank of at most 2, not 3"),
        ("grouped", {"groups": 5}, "24 capsules cannot be cut into 5 groups of one size"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(transform, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        layer(transform, **options)
    assert "\n" not in str(caught.value)


def test_types_that_do_not_divide_the_children_are_refused():
    with pytest.raises(ValueError, match="24 capsules are not so many positions of 5 types"):
        ClassCaps(24, d, J, D, transform="shared_over_positions", in_types=5)
