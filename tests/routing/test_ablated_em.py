from dataclasses import replace

import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.ablated_em import AblatedEMRouting, ablated_em_routing
from capsbench.routing.em import AUTHORS, route_by_em
from capsbench.routing.uniform import uniform_routing

B, I, J, H = 3, 6, 4, 5  # noqa: E741
SETTINGS = replace(AUTHORS, inverse_temperature=1.0)  # so that the activations of parents differ


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def given() -> tuple[torch.Tensor, ...]:
    """Votes, activations, beta_u and beta_a."""
    return draw(B, I, J, H, seed=0), draw(B, I, seed=1).sigmoid(), draw(J, seed=2), draw(J, seed=3)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_couplings_are_those_of_em_routing_and_poses_squashed_sums(given, iterations):
    settings = replace(SETTINGS, iterations=iterations)
    poses, activations, couplings = ablated_em_routing(*given, settings)
    torch.testing.assert_close(couplings, route_by_em(*given, settings).couplings)
    votes = given[0]
    for b in range(B):
        for j in range(J):
            s = sum(couplings[b, i, j] * votes[b, i, j] for i in range(I))
            length = s.norm() ** 2 / (1 + s.norm() ** 2)
            torch.testing.assert_close(poses[b, j], length * s / s.norm())
            torch.testing.assert_close(activations[b, j], length)


def test_one_iteration_is_uniform_routing(given):
    found = ablated_em_routing(*given, replace(SETTINGS, iterations=1))
    torch.testing.assert_close(tuple(found), tuple(uniform_routing(given[0])))


def test_there_is_an_iteration(given):
    with pytest.raises(ValueError, match="iteration"):
        ablated_em_routing(*given, replace(SETTINGS, iterations=0))


def test_three_iterations_are_neither_uniform_nor_em_routing(given):
    found = ablated_em_routing(*given, SETTINGS).activations
    assert (found - uniform_routing(given[0]).activations).abs().max() > 0.01
    assert (found - route_by_em(*given, SETTINGS).activations).abs().max() > 0.01


def test_activations_of_children_and_betas_act_through_the_couplings(given):
    leaves = [x.requires_grad_() for x in given]
    for gradient in torch.autograd.grad(ablated_em_routing(*given, SETTINGS).activations.square().sum(), leaves):
        assert gradient.abs().max() > 1e-4


def test_the_module_hands_on_what_it_learns_and_its_options():
    poses, weight, activations = draw(B, I, 7, seed=5), draw(I, J, H, 7, seed=6), draw(B, I, seed=1).sigmoid()
    routing = AblatedEMRouting(LayerSize(I, 7, J, H), iterations=2, inverse_temperature=0.5, beta_u=0.3).double()
    assert (routing.settings.iterations, routing.settings.inverse_temperature) == (2, 0.5 / 4)  # a class layer
    assert routing.settings.beta_u == 0.3
    expected = ablated_em_routing(stored_votes(poses, weight), activations, *routing.betas(), routing.settings)
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
    assert expected.logits is None
