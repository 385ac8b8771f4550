"""`ablated_em` and `ablated_heinsen`: couplings of one routing, poses and activations of dynamic routing."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.ablated_em import AblatedEMRouting, ablated_em_routing
from capsbench.routing.ablated_heinsen import AblatedHeinsenRouting, ablated_heinsen_routing
from capsbench.routing.contract import Routed
from capsbench.routing.em import AUTHORS, route_by_em
from capsbench.routing.heinsen import heinsen_routing
from capsbench.routing.uniform import uniform_routing

B, I, J, D = 3, 6, 4, 5  # noqa: E741
SETTINGS = replace(AUTHORS, inverse_temperature=1.0)  # so that the activations of parents differ


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


@dataclass
class Case:
    """Both routings as functions of the number of iterations; given: votes, activations and two kinds of betas."""

    given: tuple[torch.Tensor, ...]
    alone: Callable[[int], Routed]
    whole: Callable[[int], Routed]


@pytest.fixture(params=["em", "heinsen"])
def case(request) -> Case:
    votes_and_activations = draw(B, I, J, D, seed=0), draw(B, I, seed=1).sigmoid()
    if request.param == "em":
        given = (*votes_and_activations, draw(J, seed=2), draw(J, seed=3))
        return Case(
            given,
            lambda iterations: ablated_em_routing(*given, replace(SETTINGS, iterations=iterations)),
            lambda iterations: route_by_em(*given, replace(SETTINGS, iterations=iterations)),
        )
    given = (*votes_and_activations, draw(I, J, seed=2), draw(I, J, seed=3))
    return Case(
        given,
        lambda iterations: ablated_heinsen_routing(*given, iterations),
        lambda iterations: heinsen_routing(*given, iterations),
    )


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_couplings_are_those_of_the_whole_routing_and_poses_squashed_sums(case, iterations):
    poses, activations, couplings = case.alone(iterations)
    torch.testing.assert_close(couplings, case.whole(iterations).couplings)
    votes = case.given[0]
    for b in range(B):
        for j in range(J):
            s = sum(couplings[b, i, j] * votes[b, i, j] for i in range(I))
            length = s.norm() ** 2 / (1 + s.norm() ** 2)
            torch.testing.assert_close(poses[b, j], length * s / s.norm())
            torch.testing.assert_close(activations[b, j], length)


def test_one_iteration_is_uniform_routing(case):
    torch.testing.assert_close(tuple(case.alone(1)), tuple(uniform_routing(case.given[0])))


def test_there_is_an_iteration(case):
    with pytest.raises(ValueError, match="iteration"):
        case.alone(0)


def test_three_iterations_are_neither_uniform_nor_the_whole_routing(case):
    found = case.alone(3).activations
    assert (found - uniform_routing(case.given[0]).activations).abs().max() > 0.01
    assert (found - case.whole(3).activations).abs().max() > 0.01


def test_activations_of_children_and_betas_act_through_the_couplings(case):
    leaves = [x.requires_grad_() for x in case.given]
    for gradient in torch.autograd.grad(case.alone(3).activations.square().sum(), leaves):
        assert gradient.abs().max() > 1e-4


def test_the_module_of_em_hands_on_what_it_learns_and_its_options():
    poses, weight, activations = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6), draw(B, I, seed=1).sigmoid()
    routing = AblatedEMRouting(LayerSize(I, 7, J, D), iterations=2, inverse_temperature=0.5, beta_u=0.3).double()
    assert (routing.settings.iterations, routing.settings.inverse_temperature) == (2, 0.5 / 4)  # a class layer
    assert routing.settings.beta_u == 0.3
    expected = ablated_em_routing(stored_votes(poses, weight), activations, *routing.betas(), routing.settings)
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
    assert expected.logits is None


def test_the_module_of_heinsen_hands_on_what_it_learns_and_its_options():
    poses, weight, activations = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6), draw(B, I, seed=1).sigmoid()
    routing = AblatedHeinsenRouting(LayerSize(I, 7, J, D), iterations=2, variance_floor=0.1).double()
    for seed, beta in enumerate((routing.beta_use, routing.beta_ign)):
        beta.data = draw(I, J, seed=seed)
    expected = ablated_heinsen_routing(
        stored_votes(poses, weight), activations, routing.beta_use, routing.beta_ign, 2, 0.1
    )
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
    assert expected.logits is None
