import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.attention import attention_routing
from capsbench.routing.contract import exponential_squash
from capsbench.routing.uniform_attention import UniformAttentionRouting, uniform_attention_routing

B, I, J, D = 3, 6, 4, 5  # noqa: E741


@pytest.fixture
def votes() -> torch.Tensor:
    return torch.randn(B, I, J, D, dtype=torch.double, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def priors() -> torch.Tensor:
    return torch.randn(I, J, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def test_poses_are_the_votes_under_equal_couplings_and_priors(votes, priors):
    poses, activations, couplings = uniform_attention_routing(votes, priors)
    torch.testing.assert_close(couplings, torch.full((B, I, J), 1 / J, dtype=torch.double))
    torch.testing.assert_close(activations, poses.norm(dim=2))
    for b in range(B):
        for j in range(J):
            s = sum((1 / J + priors[i, j]) * votes[b, i, j] for i in range(I))
            torch.testing.assert_close(poses[b, j], (1 - (-s.norm()).exp()) * s / s.norm())


def test_without_priors_it_is_as_with_priors_of_zero(votes, priors):
    plain = uniform_attention_routing(votes, None)
    torch.testing.assert_close(tuple(plain), tuple(uniform_attention_routing(votes, torch.zeros_like(priors))))
    torch.testing.assert_close(plain.poses, exponential_squash(votes.mean(dim=1) * I / J))


def test_it_is_self_attention_routing_where_all_votes_of_a_child_agree_alike(priors):
    # votes for one parent as for another, so that the agreements are equal over the parents
    votes = torch.randn(B, I, 1, D, dtype=torch.double, generator=torch.Generator().manual_seed(2)).expand(-1, -1, J, -1)
    expected = attention_routing(votes, priors)
    torch.testing.assert_close(tuple(uniform_attention_routing(votes, priors)), tuple(expected))


def test_it_is_not_self_attention_routing_elsewhere(votes, priors):
    assert (attention_routing(votes, priors).poses - uniform_attention_routing(votes, priors).poses).abs().max() > 0.01


def test_the_priors_start_at_zero_or_are_not_there():
    start = UniformAttentionRouting(LayerSize(I, 7, J, D)).priors
    assert start.shape == (I, J)
    assert not start.any()
    assert not list(UniformAttentionRouting(LayerSize(I, 7, J, D), learn_priors=False).parameters())


@pytest.mark.parametrize("learn_priors", [False, True])
def test_the_module_hands_on_what_it_learns_and_its_options(learn_priors):
    def draw(*shape, seed):
        return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))

    poses, weight = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6)
    activations = draw(B, I, seed=1).sigmoid()
    routing = UniformAttentionRouting(LayerSize(I, 7, J, D), learn_priors=learn_priors).double()
    for seed, parameter in enumerate(routing.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed)
    expected = uniform_attention_routing(stored_votes(poses, weight), routing.priors)
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
