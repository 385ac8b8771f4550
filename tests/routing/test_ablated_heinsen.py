import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.ablated_heinsen import AblatedHeinsenRouting, ablated_heinsen_routing
from capsbench.routing.heinsen import heinsen_routing
from capsbench.routing.uniform import uniform_routing

B, I, J, D = 3, 6, 4, 5  # noqa: E741


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def given() -> tuple[torch.Tensor, ...]:
    """Votes, activations, beta_use and beta_ign."""
    return draw(B, I, J, D, seed=0), draw(B, I, seed=1).sigmoid(), draw(I, J, seed=2), draw(I, J, seed=3)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_couplings_are_those_of_heinsens_routing_and_poses_squashed_sums(given, iterations):
    poses, activations, couplings = ablated_heinsen_routing(*given, iterations)
    torch.testing.assert_close(couplings, heinsen_routing(*given, iterations).couplings)
    votes = given[0]
    for b in range(B):
        for j in range(J):
            s = sum(couplings[b, i, j] * votes[b, i, j] for i in range(I))
            length = s.norm() ** 2 / (1 + s.norm() ** 2)
            torch.testing.assert_close(poses[b, j], length * s / s.norm())
            torch.testing.assert_close(activations[b, j], length)


def test_one_iteration_is_uniform_routing(given):
    torch.testing.assert_close(tuple(ablated_heinsen_routing(*given, 1)), tuple(uniform_routing(given[0])))


def test_there_is_an_iteration(given):
    with pytest.raises(ValueError, match="iteration"):
        ablated_heinsen_routing(*given, 0)


def test_three_iterations_are_neither_uniform_nor_heinsens_routing(given):
    found = ablated_heinsen_routing(*given, 3).activations
    assert (found - uniform_routing(given[0]).activations).abs().max() > 0.01
    assert (found - heinsen_routing(*given, 3).activations).abs().max() > 0.01


def test_activations_of_children_and_betas_act_through_the_couplings(given):
    leaves = [x.requires_grad_() for x in given]
    for gradient in torch.autograd.grad(ablated_heinsen_routing(*given, 3).activations.square().sum(), leaves):
        assert gradient.abs().max() > 1e-4


def test_the_module_hands_on_what_it_learns_and_its_options():
    poses, weight, activations = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6), draw(B, I, seed=1).sigmoid()
    routing = AblatedHeinsenRouting(LayerSize(I, 7, J, D), iterations=2, variance_floor=0.1).double()
    for seed, beta in enumerate((routing.beta_use, routing.beta_ign)):
        beta.data = draw(I, J, seed=seed)
    expected = ablated_heinsen_routing(
        stored_votes(poses, weight), activations, routing.beta_use, routing.beta_ign, 2, 0.1
    )
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
    assert expected.logits is None
