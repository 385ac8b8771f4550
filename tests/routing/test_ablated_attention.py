import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.ablated_attention import AblatedAttentionRouting, ablated_attention_routing
from capsbench.routing.attention import attention_routing
from capsbench.routing.contract import exponential_squash

B, I, J, D = 3, 6, 4, 5  # noqa: E741


@pytest.fixture
def votes() -> torch.Tensor:
    return torch.randn(B, I, J, D, dtype=torch.double, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def priors() -> torch.Tensor:
    return torch.randn(I, J, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def test_without_agreement_couplings_are_equal_and_priors_stay(votes, priors):
    poses, activations, couplings = ablated_attention_routing(votes, priors, agreement=False)
    torch.testing.assert_close(couplings, torch.full((B, I, J), 1 / J, dtype=torch.double))
    torch.testing.assert_close(activations, poses.norm(dim=2))
    for b in range(B):
        for j in range(J):
            s = sum((1 / J + priors[i, j]) * votes[b, i, j] for i in range(I))
            torch.testing.assert_close(poses[b, j], (1 - (-s.norm()).exp()) * s / s.norm())


def test_without_both_it_is_the_mean_of_the_votes_under_the_squash_of_the_paper(votes):
    poses = ablated_attention_routing(votes, None, agreement=False).poses
    torch.testing.assert_close(poses, exponential_squash(votes.mean(dim=1) * I / J))


def test_without_priors_it_is_self_attention_routing_with_priors_of_zero(votes, priors):
    found = ablated_attention_routing(votes, None, agreement=True)
    torch.testing.assert_close(tuple(found), tuple(attention_routing(votes, torch.zeros_like(priors))))


def test_with_both_it_is_self_attention_routing(votes, priors):
    found = ablated_attention_routing(votes, priors, agreement=True)
    torch.testing.assert_close(tuple(found), tuple(attention_routing(votes, priors)))


def test_each_part_changes_the_poses(votes, priors):
    found = [
        ablated_attention_routing(votes, learnt, agreement).poses
        for learnt in (None, priors)
        for agreement in (False, True)
    ]
    assert all((a - b).abs().max() > 0.01 for k, a in enumerate(found) for b in found[:k])


def test_the_priors_start_at_zero_or_are_not_there():
    start = AblatedAttentionRouting(LayerSize(I, 7, J, D)).priors
    assert start.shape == (I, J)
    assert not start.any()
    assert not list(AblatedAttentionRouting(LayerSize(I, 7, J, D), priors=False).parameters())


@pytest.mark.parametrize("with_priors", [False, True])
@pytest.mark.parametrize("agreement", [False, True])
def test_the_module_hands_on_what_it_learns_and_its_options(with_priors, agreement):
    def draw(*shape, seed):
        return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))

    poses, weight = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6)
    activations = draw(B, I, seed=1).sigmoid()
    routing = AblatedAttentionRouting(LayerSize(I, 7, J, D), priors=with_priors, agreement=agreement).double()
    for seed, parameter in enumerate(routing.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed)
    expected = ablated_attention_routing(stored_votes(poses, weight), routing.priors, agreement)
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
