import math

import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.attention import AttentionRouting, attention_routing
from capsbench.routing.contract import exponential_squash

B, I, J, D = 3, 6, 4, 5  # noqa: E741


@pytest.fixture
def votes() -> torch.Tensor:
    return torch.randn(B, I, J, D, dtype=torch.double, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def priors() -> torch.Tensor:
    return torch.randn(I, J, dtype=torch.double, generator=torch.Generator().manual_seed(1))


def paper(votes, priors):
    """The equations of Mazzia 2021, one capsule at a time, in plain Python; A is made in full."""
    poses, couplings = torch.zeros(B, J, D, dtype=torch.double), torch.zeros(B, I, J, dtype=torch.double)
    for b in range(B):
        agreement = torch.zeros(I, J, dtype=torch.double)
        for j in range(J):
            u = votes[b, :, j]  # [I, D]
            attention = u @ u.T / math.sqrt(D)  # A [I, I]
            agreement[:, j] = attention.sum(dim=1)
        for i in range(I):
            for j in range(J):
                couplings[b, i, j] = agreement[i, j].exp() / agreement[i].exp().sum()
        for j in range(J):
            s = sum((couplings[b, i, j] + priors[i, j]) * votes[b, i, j] for i in range(I))
            poses[b, j] = (1 - 1 / math.exp(s.norm())) * s / s.norm()
    return poses, poses.norm(dim=2), couplings


def test_it_follows_the_papers_equations(votes, priors):
    torch.testing.assert_close(tuple(attention_routing(votes, priors)), paper(votes, priors), rtol=0, atol=1e-9)


def test_two_children_by_hand():
    a = math.sqrt(math.log(3.0) / 2)
    votes = torch.tensor([[[[a], [0.0]], [[a], [1.0]]]])  # two children, two parents, one element
    poses, _, couplings = attention_routing(votes, torch.zeros(2, 2))
    # child 0: agreements a (a + a) = log 3 and 0: 3/4 and 1/4; child 1: log 3 and 1
    e = math.e
    torch.testing.assert_close(couplings, torch.tensor([[[3 / 4, 1 / 4], [3 / (3 + e), e / (3 + e)]]]))
    expected = torch.tensor([[[1 - math.exp(-(3 / 4 + 3 / (3 + e)) * a)], [1 - math.exp(-e / (3 + e))]]])
    torch.testing.assert_close(poses, expected)


def test_agreement_is_divided_by_the_root_of_the_size_of_a_vote():
    votes = torch.zeros(1, 1, 2, 16)
    votes[0, 0, 0] = 0.5  # one child: its vote agrees with itself alone, 16 * 0.25 / sqrt(16) = 1
    couplings = attention_routing(votes, torch.zeros(1, 2)).couplings
    torch.testing.assert_close(couplings, torch.tensor([[[math.e / (1 + math.e), 1 / (1 + math.e)]]]))


def test_each_child_shares_itself_out_over_the_parents_whatever_the_priors(votes, priors):
    for learnt in (torch.zeros_like(priors), priors):
        couplings = attention_routing(votes, learnt).couplings
        torch.testing.assert_close(couplings.sum(dim=2), torch.ones(B, I, dtype=torch.double))
        assert (couplings.sum(dim=1) - 1).abs().max() > 0.1  # and not over the children


def test_the_priors_are_added_after_the_softmax_and_start_at_zero(votes, priors):
    start = AttentionRouting(LayerSize(I, 7, J, D)).priors
    assert start.shape == (I, J)
    assert not start.any()
    plain = attention_routing(votes, torch.zeros_like(priors))
    found = attention_routing(votes, priors)
    torch.testing.assert_close(found.couplings, plain.couplings)
    sums = torch.einsum("bij,bijd->bjd", plain.couplings + priors, votes)
    torch.testing.assert_close(found.poses, exponential_squash(sums))
    assert (found.poses - plain.poses).abs().max() > 0.01


def test_votes_that_agree_win_the_couplings():
    votes = torch.zeros(1, 8, 2, 4)
    votes[:, :, 0, 0] = 1.0  # all for parent 0 alike; those for parent 1 cancel
    votes[:, ::2, 1, 0], votes[:, 1::2, 1, 0] = 1.0, -1.0
    poses, _, couplings = attention_routing(votes, torch.zeros(8, 2))
    assert couplings[0, :, 0].min() > 0.95
    assert poses[0, 0].norm() > 0.9
    assert poses[0, 1].norm() < 0.1


def test_the_module_hands_on_what_it_learns_and_its_options():
    def draw(*shape, seed):
        return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))

    poses, weight = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6)
    activations = draw(B, I, seed=1).sigmoid()
    routing = AttentionRouting(LayerSize(I, 7, J, D)).double()
    for seed, parameter in enumerate(routing.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed)
    expected = attention_routing(stored_votes(poses, weight), routing.priors)
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
