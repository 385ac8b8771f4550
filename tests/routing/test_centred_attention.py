import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.attention import attention_routing
from capsbench.routing.centred_attention import CentredAttentionRouting, centred_attention_routing

B, I, J, D = 3, 6, 4, 5  # noqa: E741


@pytest.fixture
def votes() -> torch.Tensor:
    return torch.randn(B, I, J, D, dtype=torch.double, generator=torch.Generator().manual_seed(0))


def test_votes_are_weighted_by_what_couplings_are_above_equal_ones(votes):
    poses, activations, couplings = centred_attention_routing(votes)
    torch.testing.assert_close(activations, poses.norm(dim=2))
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    for b in range(B):
        for j in range(J):
            s = sum((couplings[b, i, j] - 1 / J) * votes[b, i, j] for i in range(I))
            torch.testing.assert_close(poses[b, j], (1 - (-s.norm()).exp()) * s / s.norm())


def test_it_is_self_attention_routing_with_all_priors_at_minus_one_over_the_parents(votes):
    expected = attention_routing(votes, torch.full((I, J), -1 / J, dtype=torch.double))
    torch.testing.assert_close(tuple(centred_attention_routing(votes)), tuple(expected))


def test_votes_that_agree_alike_for_all_parents_give_nothing():
    votes = torch.randn(B, I, 1, D, dtype=torch.double, generator=torch.Generator().manual_seed(2)).expand(
        -1, -1, J, -1
    )
    assert centred_attention_routing(votes).poses.abs().max() < 1e-12


def test_the_module_routes_by_the_procedure_and_learns_nothing():
    def draw(*shape, seed):
        return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))

    poses, weight = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6)
    routing = CentredAttentionRouting(LayerSize(I, 7, J, D)).double()
    assert not list(routing.parameters())
    expected = centred_attention_routing(stored_votes(poses, weight))
    torch.testing.assert_close(tuple(routing(poses, draw(B, I, seed=1).sigmoid(), weight)), tuple(expected))
