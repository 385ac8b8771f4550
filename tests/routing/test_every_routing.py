"""What holds for every routing: one that is new is tested by being registered."""

import pytest
import torch
from option_values import option_names, other_value

from capsbench.registry import ROUTINGS
from capsbench.routing import LayerSize, Routed, Routing

B = 3
SIZE = LayerSize(children=6, child_dim=7, parents=4, parent_dim=5)  # all different: a parameter shows its indices
I, d, J, D = SIZE  # noqa: E741
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5, torch.bfloat16: 0.02}

every_routing = pytest.mark.parametrize("name", ROUTINGS.names())
every_option = pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in ROUTINGS.names() for option in option_names(ROUTINGS.options(name))]
)


def build(name, size=SIZE, dtype=torch.float64, **options) -> Routing:
    """Build a routing whose parameters and state are all off their starts, as after some training, for a test."""
    torch.manual_seed(0)
    routing = ROUTINGS.build(name, size, **options).to(dtype)
    for parameter in routing.parameters():
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    for buffer in routing.buffers():
        buffer.add_(0.5 * torch.randn_like(buffer))
    return routing.eval()  # in training a control may draw, or take note of what it sees: see test_selections.py


def children(size=SIZE, batch=B, dtype=torch.float64, seed=0):
    """poses [B, I, d], activations [B, I], weight [I, J, D, d], all of which take gradients."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    weight = draw(size.children, size.parents, size.parent_dim, size.child_dim) / size.child_dim**0.5
    drawn = draw(batch, size.children, size.child_dim), draw(batch, size.children).sigmoid(), weight
    return [x.to(dtype).requires_grad_() for x in drawn]


def many_iterations(name, number=5):
    """The options with which a routing takes more iterations than by default, if it has any."""
    return {option: number for option in option_names(ROUTINGS.options(name)) if "iterations" in option}


def gradients(routed, leaves):
    """Gradients of an arbitrary sum over all three results; zero where a leaf has no part in them."""
    total = sum((x.double() * torch.linspace(0.5, 1.5, x.numel()).view(x.shape)).sum() for x in routed)
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]


@every_routing
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", [SIZE, LayerSize(1, 7, 4, 5), LayerSize(6, 1, 2, 1)], ids=str)
def test_shapes_and_ranges(name, size, dtype):
    routing = build(name, size, dtype)
    assert isinstance(routing, Routing)
    for batch in (1, B):
        routed = routing(*children(size, batch, dtype))
        assert isinstance(routed, Routed)
        poses, activations, couplings = routed
        assert poses.shape == (batch, size.parents, size.parent_dim)
        assert activations.shape == (batch, size.parents)
        assert couplings.shape == (batch, size.children, size.parents)
        assert poses.dtype == activations.dtype == couplings.dtype == dtype
        tolerance = TOLERANCE[dtype]
        assert activations.min() >= 0 and activations.max() <= 1 + tolerance
        assert couplings.min() >= 0
        each_child = couplings.sum(dim=2)
        torch.testing.assert_close(each_child, torch.ones_like(each_child), rtol=0, atol=tolerance)
        if routed.logits is not None:
            assert routed.logits.shape == activations.shape
            torch.testing.assert_close(routed.logits.sigmoid(), activations)


EXTREMES = {  # size of the poses, activation of all children
    "large votes": (100.0, 1.0),
    "huge votes": (1e4, 1.0),
    "small votes": (1e-6, 1.0),
    "zero votes": (0.0, 1.0),
    "no activation": (1.0, 0.0),
    "next to no activation": (1.0, 1e-30),
}


@every_routing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("number", [1, 40, 1152])
def test_values_and_gradients_stay_finite(name, number, dtype):
    size = LayerSize(children=number, child_dim=2, parents=3, parent_dim=8)
    routing = build(name, size, dtype, **many_iterations(name))
    poses, activations, weight = children(size, 2, dtype)
    for case, (scale, activation) in EXTREMES.items():
        leaves = [poses.detach() * scale, torch.full_like(activations, activation), weight.detach()]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        routed = routing(*leaves)
        assert all(x.isfinite().all() for x in routed), case
        assert routed.activations.max() <= 1 + TOLERANCE[dtype], case
        found = gradients(routed, [*leaves, *routing.parameters()])
        assert all(gradient.isfinite().all() for gradient in found), case


@every_routing
def test_votes_that_are_all_alike_have_finite_gradients(name):
    routing = build(name, dtype=torch.float32, **many_iterations(name))
    leaves = [torch.ones_like(leaf).requires_grad_() for leaf in children(dtype=torch.float32)]
    routed = routing(*leaves)
    assert all(x.isfinite().all() for x in (*routed, *gradients(routed, [*leaves, *routing.parameters()])))


@every_routing
def test_a_sample_does_not_depend_on_its_batch_mates(name):
    routing, (poses, activations, weight) = build(name), children()
    together = routing(poses, activations, weight)
    for b in range(B):
        alone = routing(poses[b : b + 1], activations[b : b + 1], weight)
        torch.testing.assert_close(tuple(alone), tuple(x[b : b + 1] for x in together))


@every_routing
def test_gradients_agree_with_finite_differences(name):
    size = LayerSize(children=2, child_dim=2, parents=3, parent_dim=2)
    for options in [many_iterations(name, number) for number in (1, 3)] if many_iterations(name) else [{}]:
        routing = build(name, size, **options)
        parameters = dict(routing.named_parameters())

        def route(poses, activations, weight, *values, routing=routing, names=tuple(parameters)):
            given = dict(zip(names, values, strict=True))
            return tuple(torch.func.functional_call(routing, given, (poses, activations, weight)))

        assert torch.autograd.gradcheck(route, (*children(size, 1), *parameters.values()))


@every_routing
def test_children_and_all_that_is_learnt_get_gradients(name):
    routing, leaves = build(name), children()
    receive = {"poses": leaves[0], "weight": leaves[2], **dict(routing.named_parameters())}
    found = dict(zip(receive, gradients(routing(*leaves), list(receive.values())), strict=True))
    assert [name for name, gradient in found.items() if not gradient.any()] == []


@every_option
def test_every_option_acts(name, option):
    default = getattr(ROUTINGS.options(name)(), option)
    values, found = (default, other_value(ROUTINGS.options(name), option)), []
    for value in values:
        routing, leaves = build(name, **{option: value}).train(), children()
        routed = routing(*leaves)
        found.append([*routed, *gradients(routed, leaves)])
    changed = [not torch.allclose(a, b, rtol=1e-4, atol=1e-9) for a, b in zip(*found, strict=True)]
    assert any(changed), f"{name}: nothing changes between {option} {values[0]} and {values[1]}"
    if "iterations" in option:
        assert changed[2], f"{name}: the couplings do not change with {option}"


@every_routing
def test_permuting_children_changes_nothing_else(name):
    permuted(
        name, I, lambda leaves, order: [leaves[0][:, order], leaves[1][:, order], leaves[2][order]], (None, None, 1)
    )


@every_routing
def test_permuting_parents_permutes_them(name):
    permuted(name, J, lambda leaves, order: [*leaves[:2], leaves[2][:, order]], (1, 1, 2))


def permuted(name, number, permute, places):
    """Permute what is indexed by children or parents, of which there are `number`, parameters included.

    places: the dimension of poses, activations and couplings that is permuted then.
    """
    routing, leaves = build(name), children()
    before, order = routing(*leaves), torch.tensor([3, 0, 5, 1, 4, 2])
    order = order[order < number]
    with torch.no_grad():
        for parameter in routing.parameters():
            for dim in (dim for dim, size in enumerate(parameter.shape) if size == number):
                parameter.copy_(parameter.index_select(dim, order))
    found = routing(*permute(leaves, order))
    if ignores_its_children(routing) and torch.allclose(found.couplings, before.couplings):
        return  # its couplings belong to places, and stay there
    expected = tuple(x if dim is None else x.index_select(dim, order) for x, dim in zip(before, places, strict=True))
    torch.testing.assert_close(tuple(found), expected)


def ignores_its_children(routing) -> bool:
    """Whether couplings are uneven, and the same whatever the children are."""
    first, other = (routing(*children(seed=seed)).couplings for seed in (1, 2))
    return torch.equal(first, other) and bool(first.std() > 0)


@every_routing
def test_on_the_meta_device_it_takes_no_memory_and_draws_no_random_number(name):
    state = torch.get_rng_state()
    with torch.device("meta"):
        routing = ROUTINGS.build(name, LayerSize(10**6, 16, 10**3, 16))
    assert all(x.is_meta for x in (*routing.parameters(), *routing.buffers()))
    assert torch.equal(torch.get_rng_state(), state)


@every_routing
def test_a_saved_routing_is_the_same_routing(name):
    routing, leaves = build(name), children()
    torch.manual_seed(1)
    other = ROUTINGS.build(name, SIZE).double().eval()
    other.load_state_dict(routing.state_dict())
    torch.testing.assert_close(tuple(other(*leaves)), tuple(routing(*leaves)), rtol=0, atol=0)


def test_a_wrong_shape_is_named_in_all_tests():
    pytest.importorskip("beartype")
    from jaxtyping import TypeCheckError

    from capsbench.routing import dynamic_routing

    with pytest.raises(TypeCheckError, match="votes"):
        dynamic_routing(torch.zeros(2, 3, 4))
    poses, activations, weight = children()
    for name in ROUTINGS.names():
        with pytest.raises(TypeCheckError, match="weight"):
            build(name)(poses, activations, weight.transpose(2, 3))
