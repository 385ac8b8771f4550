"""Random selection: equal shares for a few parents per child, the same in every sample."""

import pytest
import torch

from capsbench.routing.random_selection import random_selection_routing
from capsbench.routing.uniform import uniform_routing


def votes_of(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 40, 10, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_each_child_sends_equal_shares_to_so_many_parents(keep):
    couplings = random_selection_routing(votes_of(), keep).couplings
    assert couplings.sum(-1) == pytest.approx(1.0)
    assert ((couplings > 0).sum(-1) == keep).all()
    assert couplings[couplings > 0] == pytest.approx(1 / keep)


def test_the_draw_is_the_same_for_all_samples_and_votes_and_another_for_another_seed():
    first, second = (random_selection_routing(votes_of(seed)).couplings for seed in (0, 1))
    assert torch.equal(first, second)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first, random_selection_routing(votes_of(), coupling_seed=1).couplings)
    assert first.std(dim=-1).std() < 1e-6  # every child alike,
    assert first[0].sum(0).std() > 0  # but not every parent


def test_poses_are_the_squashed_sums_over_the_children_that_send_there():
    votes = votes_of()
    found = random_selection_routing(votes)
    sums = torch.stack([
        torch.stack([votes[b, found.couplings[b, :, j] > 0, j].sum(0) / 2 for j in range(10)]) for b in range(3)
    ])  # fmt: skip
    length = sums.norm(dim=-1, keepdim=True)
    assert torch.allclose(found.poses, length / (1 + length**2) * sums, atol=1e-5)
    assert torch.allclose(found.activations, found.poses.norm(dim=-1), atol=1e-5)


def test_with_all_parents_kept_it_is_uniform_routing():
    votes = votes_of()
    assert torch.allclose(random_selection_routing(votes, keep=10).poses, uniform_routing(votes).poses, atol=1e-6)


def test_no_gradient_reaches_votes_for_other_parents():
    votes = votes_of().requires_grad_()
    found = random_selection_routing(votes)
    found.poses.square().sum().backward()
    assert votes.grad is not None
    assert (votes.grad.abs().sum(-1)[found.couplings == 0] == 0).all()
    assert (votes.grad.abs().sum(-1)[found.couplings > 0] > 0).all()


def test_none_kept_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        random_selection_routing(votes_of(), keep=0)
