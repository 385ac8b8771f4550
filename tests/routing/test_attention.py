import math

import pytest
import torch

from capsbench.routing.attention import LEARNT, attention_routing
from capsbench.routing.squash import exponential_squash

B, I, J, D = 3, 6, 4, 5  # noqa: E741


@pytest.fixture
def votes() -> torch.Tensor:
    return torch.randn(B, I, J, D, dtype=torch.double, generator=torch.Generator().manual_seed(0), requires_grad=True)


@pytest.fixture
def priors() -> torch.Tensor:
    return torch.randn(I, J, dtype=torch.double, generator=torch.Generator().manual_seed(1), requires_grad=True)


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
    return poses, couplings


def test_it_follows_the_papers_equations(votes, priors):
    with torch.no_grad():
        torch.testing.assert_close(attention_routing(votes, priors), paper(votes, priors), rtol=0, atol=1e-9)


def test_two_children_by_hand():
    a = math.sqrt(math.log(3.0) / 2)
    votes = torch.tensor([[[[a], [0.0]], [[a], [1.0]]]])  # two children, two parents, one element
    poses, couplings = attention_routing(votes, torch.zeros(2, 2))
    # child 0: agreements a (a + a) = log 3 and 0: 3/4 and 1/4; child 1: log 3 and 1
    e = math.e
    torch.testing.assert_close(couplings, torch.tensor([[[3 / 4, 1 / 4], [3 / (3 + e), e / (3 + e)]]]))
    expected = torch.tensor([[[1 - math.exp(-(3 / 4 + 3 / (3 + e)) * a)], [1 - math.exp(-e / (3 + e))]]])
    torch.testing.assert_close(poses, expected)


def test_agreement_is_divided_by_the_root_of_the_size_of_a_vote():
    votes = torch.zeros(1, 1, 2, 16)
    votes[0, 0, 0] = 0.5  # one child: its vote agrees with itself alone, 16 * 0.25 / sqrt(16) = 1
    _, couplings = attention_routing(votes, torch.zeros(1, 2))
    torch.testing.assert_close(couplings, torch.tensor([[[math.e / (1 + math.e), 1 / (1 + math.e)]]]))


def test_each_child_shares_itself_out_over_the_parents_whatever_the_priors(votes, priors):
    for learnt in (torch.zeros_like(priors), priors):
        _, couplings = attention_routing(votes, learnt)
        torch.testing.assert_close(couplings.sum(dim=2), torch.ones(B, I, dtype=torch.double))
        assert (couplings.sum(dim=1) - 1).abs().max() > 0.1  # and not over the children


def test_the_priors_are_added_after_the_softmax_and_start_at_zero(votes, priors):
    assert LEARNT == {"priors": ("IJ", 0.0)}
    _, couplings = attention_routing(votes, torch.zeros_like(priors))
    poses, same = attention_routing(votes, priors)
    torch.testing.assert_close(same, couplings)
    torch.testing.assert_close(poses, exponential_squash(torch.einsum("bij,bijd->bjd", couplings + priors, votes)))
    assert (poses - attention_routing(votes, torch.zeros_like(priors))[0]).abs().max() > 0.01


def test_votes_that_agree_win_the_couplings():
    votes = torch.zeros(1, 8, 2, 4)
    votes[:, :, 0, 0] = 1.0  # all for parent 0 alike; those for parent 1 cancel
    votes[:, ::2, 1, 0], votes[:, 1::2, 1, 0] = 1.0, -1.0
    poses, couplings = attention_routing(votes, torch.zeros(8, 2))
    assert couplings[0, :, 0].min() > 0.95
    assert poses[0, 0].norm() > 0.9
    assert poses[0, 1].norm() < 0.1


def test_permuting_children_changes_nothing_and_permuting_parents_permutes_them(votes, priors):
    poses, couplings = attention_routing(votes, priors)
    order = torch.randperm(I)
    torch.testing.assert_close(attention_routing(votes[:, order], priors[order]), (poses, couplings[:, order]))
    order = torch.randperm(J)
    found = attention_routing(votes[:, :, order], priors[:, order])
    torch.testing.assert_close(found, (poses[:, order], couplings[:, :, order]))


def test_a_sample_does_not_depend_on_its_batch_mates(votes, priors):
    together = attention_routing(votes, priors)
    for b in range(B):
        torch.testing.assert_close(attention_routing(votes[b : b + 1], priors), tuple(x[b : b + 1] for x in together))


def test_gradients_agree_with_finite_differences(votes, priors):
    assert torch.autograd.gradcheck(attention_routing, (votes, priors))


def test_the_squash_keeps_direction_and_short_vectors_and_stays_below_one():
    s = torch.tensor([3.0, 4.0], dtype=torch.double)
    torch.testing.assert_close(exponential_squash(s), s / 5 * (1 - math.exp(-5)))
    short = torch.tensor([3e-5, -4e-5])
    torch.testing.assert_close(exponential_squash(short), short, rtol=1e-4, atol=0)
    table = torch.randn(2, 3, 4, dtype=torch.double, requires_grad=True)
    turned = exponential_squash(table.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(exponential_squash(table, dim=1), turned)
    assert (exponential_squash(100 * table).norm(dim=2) <= 1).all()
    assert torch.autograd.gradcheck(exponential_squash, (table,))
    assert torch.autograd.gradcheck(exponential_squash, (1e-3 * table.detach().requires_grad_(),))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e-6, 1.0, 1e4])
def test_values_and_gradients_stay_finite(votes, priors, scale, dtype):
    leaves = [(scale * votes.detach()).to(dtype).requires_grad_(), priors.detach().to(dtype).requires_grad_()]
    poses, couplings = attention_routing(*leaves)
    assert poses.dtype == couplings.dtype == dtype
    assert poses.isfinite().all() and couplings.isfinite().all()
    lengths = (poses.float().square().sum(dim=2) + 1e-12).sqrt()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(lengths.sum(), leaves))
