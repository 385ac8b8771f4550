"""The sums over votes that make routing fast, each beside the same sum written out."""

import pytest
import torch

from capsbench.routing import linear_dynamic_routing
from capsbench.routing.kernels import linear_votes, moments
from capsbench.routing.kernels.linear_votes import agreement, weighted_sum
from capsbench.routing.kernels.moments import GaussianVotes
from capsbench.routing.kernels.stored import votes_children_last

B, I, J, D, d = 3, 7, 5, 6, 4  # noqa: E741


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def given():
    """inputs [B, I, d], weight [I, J, D, d]"""
    return draw(B, I, d, seed=0).requires_grad_(), draw(I, J, D, d, seed=1).requires_grad_()


def test_sums_over_votes_without_votes():
    inputs, weight = given()
    with torch.no_grad():
        votes = torch.einsum("ijed,bid->bije", weight, inputs)
        couplings, poses = torch.rand(J, B, I, dtype=torch.double), torch.randn(J, B, D, dtype=torch.double)
        u, w = inputs.transpose(1, 2).contiguous(), weight.permute(1, 2, 3, 0).reshape(J, D, d * I)
        expected = torch.einsum("jbi,bije->jbe", couplings, votes)
        torch.testing.assert_close(weighted_sum(couplings, u, w), expected)
        torch.testing.assert_close(agreement(poses, u, w), torch.einsum("jbe,bije->jbi", poses, votes))


def test_all_parents_at_once_as_on_a_gpu_is_the_same(monkeypatch):
    inputs, weight = given()
    expected = linear_dynamic_routing(inputs, weight, 3)
    expected_gradients = torch.autograd.grad(expected.square().sum(), (inputs, weight))

    def one_block(u, w):
        scratch = u.new_empty(w.shape[0], *u.shape)
        yield slice(0, w.shape[0]), scratch, scratch.flatten(2)

    monkeypatch.setattr(linear_votes, "_parent_blocks", one_block)
    found = linear_dynamic_routing(inputs, weight, 3)
    torch.testing.assert_close(found, expected)
    for a, b in zip(torch.autograd.grad(found.square().sum(), (inputs, weight)), expected_gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_votes_with_children_last_are_the_products():
    inputs, weight = given()
    found = votes_children_last(inputs, weight)
    torch.testing.assert_close(found, torch.einsum("ijed,bid->bjei", weight, inputs))
    assert found.is_contiguous()
    assert torch.autograd.gradcheck(votes_children_last, (inputs, weight))
    single = votes_children_last(inputs[:1, :1, :1], weight[:1, :, :, :1])  # one sample, one child of one element
    torch.testing.assert_close(single[0, :, :, 0], weight[0, :, :, 0] * inputs[0, 0, 0])


def moments_of(votes, weights):
    return GaussianVotes(votes, sums=1).moments(weights)


def distances_to(votes, means, precisions):
    return GaussianVotes(votes, sums=1).distances(means, precisions)


def votes_and_others():
    votes = draw(3, 2, 2, 4, seed=0).requires_grad_()  # [X, J, H, N]
    weights, precisions = (draw(*shape, seed=4).sigmoid().requires_grad_() for shape in ((3, 2, 4), (3, 2, 2)))
    return votes, weights, precisions, draw(3, 2, 2, seed=5).requires_grad_()


def test_sums_of_squared_deviations(monkeypatch):
    votes, weights, precisions, other = votes_and_others()
    monkeypatch.setattr(moments, "_SCRATCH_ELEMENTS", 32)  # two rows at a time, and one at the end
    means, squares = moments_of(votes, weights)
    expected = (weights.unsqueeze(2) * votes).sum(dim=3) / weights.sum(dim=2, keepdim=True)
    deviations = votes - expected.unsqueeze(3)
    torch.testing.assert_close(means, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(squares, (weights.unsqueeze(2) * deviations**2).sum(dim=3), atol=1e-6, rtol=0)
    distances = ((votes - other.unsqueeze(3)) ** 2 * precisions.unsqueeze(3)).sum(dim=2)
    torch.testing.assert_close(distances_to(votes, other, precisions), distances)
    assert torch.autograd.gradcheck(moments_of, (votes, weights))
    assert torch.autograd.gradcheck(distances_to, (votes, other, precisions))
    monkeypatch.setattr(moments, "EPSILON", 0.5)  # as next to the mass of a parent without data
    assert torch.autograd.gradcheck(moments_of, (votes, weights))


def test_gradients_of_several_sums_add_up_whichever_are_used():
    votes, weights, precisions, other = votes_and_others()

    def several(votes, weights, other, precisions):
        data = GaussianVotes(votes, sums=4)  # the fourth is never taken
        means, squares = data.moments(weights)
        distances = data.distances(means + other, precisions)
        data.moments(distances)  # without a part in the result
        return distances, squares

    assert torch.autograd.gradcheck(several, (votes, weights, other, precisions))
    alone = GaussianVotes(votes, sums=2)
    alone.moments(weights)
    (found,) = torch.autograd.grad(alone.distances(other, precisions).sum(), votes)
    torch.testing.assert_close(found, 2 * precisions.unsqueeze(3) * (votes - other.unsqueeze(3)))


def test_more_sums_than_announced_are_refused():
    votes, weights, _, _ = votes_and_others()
    data = GaussianVotes(votes, sums=1)
    data.moments(weights)
    with pytest.raises(RuntimeError, match="more sums"):
        data.moments(weights)


def test_votes_that_are_a_view_have_the_gradients_of_a_copy():
    votes, weights, precisions, other = votes_and_others()
    turned = votes.detach().transpose(0, 1).contiguous().requires_grad_()

    def total(votes):
        data = GaussianVotes(votes, sums=2)
        return data.moments(weights)[1].sum() + data.distances(other, precisions).sum()

    (expected,) = torch.autograd.grad(total(votes), votes)
    (found,) = torch.autograd.grad(total(turned.transpose(0, 1)), turned)
    torch.testing.assert_close(found.transpose(0, 1), expected)


def test_two_ways_back_through_one_graph_do_not_meet():
    votes, weights, precisions, other = votes_and_others()
    data = GaussianVotes(votes, sums=2)
    means, _ = data.moments(weights)
    distances = data.distances(other, precisions)
    first = torch.autograd.grad(means.sum(), votes, retain_graph=True)[0]
    second = torch.autograd.grad(distances.sum(), votes, retain_graph=True)[0]
    both = torch.autograd.grad(means.sum() + distances.sum(), votes)[0]
    torch.testing.assert_close(first + second, both)


def test_gradients_of_votes_that_nearly_agree_are_precise():
    """In float32, as far as the votes themselves are: their last digits are what the gradient is made of."""
    exact = 100 + 1e-3 * draw(2, 3, 4, 50, seed=0)
    votes = exact.float()
    weights, precisions = torch.rand(2, 3, 50), torch.full((2, 3, 4), 50.0)
    for dtype in (torch.float32, torch.float64):
        own = votes.to(dtype).requires_grad_()
        data = GaussianVotes(own, sums=2)
        means, squares = data.moments(weights.to(dtype))
        total = data.distances(means, precisions.to(dtype)).sum() + squares.sum()
        (gradient,) = torch.autograd.grad(total, own)
        if dtype == torch.float32:
            found = gradient
    rounding = 100 * 2**-23 * 2 * 51  # of a vote, times what a gradient multiplies it by
    assert (found - gradient).abs().max() < 4 * rounding
