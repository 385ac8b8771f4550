"""Controls of sparse routing: classes chosen for all images alike, and drawn for each image anew."""

import pytest
import torch

from capsbench.routing.contract import LayerSize, stored_votes
from capsbench.routing.selections import (
    MOMENTUM,
    CommonSelectionRouting,
    RedrawnSelectionRouting,
    shares_of_best,
)
from capsbench.routing.sparse import sparse_routing
from capsbench.routing.uniform import uniform_routing

SIZE = LayerSize(children=40, child_dim=3, parents=10, parent_dim=4)


def layer(seed: int = 0, batch: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    poses = torch.randn(batch, 40, 3, generator=generator)
    return poses, torch.ones(batch, 40), torch.randn(40, 10, 4, 3, generator=generator)


@pytest.mark.parametrize("kind", [CommonSelectionRouting, RedrawnSelectionRouting])
@pytest.mark.parametrize("keep", [1, 5])
def test_in_training_each_child_sends_equal_shares_to_so_many_parents(kind, keep):
    couplings = kind(SIZE, keep=keep)(*layer()).couplings
    assert couplings.sum(-1) == pytest.approx(1.0)
    assert ((couplings > 0).sum(-1) == keep).all()
    assert couplings[couplings > 0] == pytest.approx(1 / keep)


def test_poses_are_the_squashed_sums_over_the_children_that_send_there():
    children = layer()
    votes = stored_votes(children[0], children[2])
    for routing in (CommonSelectionRouting(SIZE), RedrawnSelectionRouting(SIZE)):
        found = routing(*children)
        sums = torch.einsum("bij,bijd->bjd", found.couplings, votes)
        length = sums.norm(dim=-1, keepdim=True)
        assert torch.allclose(found.poses, length / (1 + length**2) * sums, atol=1e-4)
        assert torch.allclose(found.activations, found.poses.norm(dim=-1), atol=1e-5)


def test_a_common_selection_is_that_of_the_highest_mean_agreement_for_all_images():
    children = layer()
    routing = CommonSelectionRouting(SIZE, keep=2)
    found = routing(*children).couplings
    assert torch.equal(found[0], found[1])
    votes = stored_votes(children[0], children[2])
    agreement = torch.einsum("bijd,bjd->bij", votes, uniform_routing(votes).poses).mean(0)  # [I, J]
    best = agreement.topk(2, dim=1).indices
    assert torch.equal(found[0].topk(2, dim=1).indices.sort(1).values, best.sort(1).values)


def test_a_common_selection_remembers_training_and_learns_nothing_from_a_test():
    routing = CommonSelectionRouting(SIZE)
    before = routing.eval()(*layer()).couplings
    assert torch.allclose(before, torch.full_like(before, 0.1))  # all agreements 0: all are kept
    trained = routing.train()(*layer()).couplings
    assert torch.equal(routing.eval()(*layer(seed=1)).couplings, trained)
    assert "agreement" in routing.state_dict()
    assert not list(routing.parameters())


def test_the_agreement_that_decides_is_a_running_mean_over_steps():
    routing, expected = CommonSelectionRouting(SIZE), torch.zeros(10, 40)
    for seed in range(3):
        children = layer(seed)
        routing(*children)
        votes = stored_votes(children[0], children[2])
        agreement = torch.einsum("bijd,bjd->bij", votes, uniform_routing(votes).poses).mean(0).T  # [J, I]
        expected = (1 - MOMENTUM) * expected + MOMENTUM * agreement
    assert torch.allclose(routing.agreement, expected, atol=1e-6)


def test_of_one_image_the_common_selection_is_that_of_sparse_routing_with_two_iterations():
    children = layer(batch=1)
    common = CommonSelectionRouting(SIZE, keep=3)(*children).couplings
    sparse = sparse_routing(stored_votes(children[0], children[2]), iterations=2, keep=3).couplings
    assert torch.equal(common > 0, sparse > 0)


def test_a_redrawn_selection_differs_by_image_and_pass_and_is_uniform_routing_at_test():
    routing = RedrawnSelectionRouting(SIZE)
    first, second = (routing(*layer()).couplings for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    votes = stored_votes(layer()[0], layer()[2])
    tested, uniform = routing.eval()(*layer()), uniform_routing(votes)
    assert torch.allclose(tested.poses, uniform.poses, atol=1e-5)
    assert torch.allclose(tested.couplings, uniform.couplings)


def test_a_redrawn_selection_takes_each_parent_equally_often():
    routing = RedrawnSelectionRouting(SIZE)
    drawn = torch.stack([(routing(*layer()).couplings > 0).double().mean((0, 1)) for _ in range(100)]).mean(0)
    assert drawn == pytest.approx(0.2, abs=0.02)


def test_no_gradient_reaches_votes_for_other_parents():
    for routing in (CommonSelectionRouting(SIZE), RedrawnSelectionRouting(SIZE)):
        poses, activations, weight = layer(batch=1)
        weight.requires_grad_()
        found = routing(poses, activations, weight)
        found.poses.square().sum().backward()
        assert weight.grad is not None
        assert ((weight.grad.abs().sum((-1, -2)) > 0) == (found.couplings[0] > 0)).all()


def test_none_kept_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        shares_of_best(torch.zeros(10, 3), 0)
