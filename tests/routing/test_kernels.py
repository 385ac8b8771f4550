"""The sums over votes that make routing fast, each beside the same sum written out."""

import torch

from capsbench.routing import linear_dynamic_routing
from capsbench.routing.kernels import linear_votes, moments
from capsbench.routing.kernels.linear_votes import agreement, weighted_sum
from capsbench.routing.kernels.moments import squared_distances, weighted_moments

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


def test_sums_of_squared_deviations(monkeypatch):
    votes = draw(3, 2, 4, 2, seed=0).requires_grad_()
    weights, precisions = (draw(*shape, seed=4).sigmoid().requires_grad_() for shape in ((3, 2, 4), (3, 2, 2)))
    other = draw(3, 2, 2, seed=5).requires_grad_()
    monkeypatch.setattr(moments, "_SCRATCH_ELEMENTS", 32)  # two rows at a time, and one at the end
    means, squares = weighted_moments(votes, weights)
    expected = (weights.unsqueeze(3) * votes).sum(dim=2) / weights.sum(dim=2, keepdim=True)
    deviations = votes - expected.unsqueeze(2)
    torch.testing.assert_close(means, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(squares, (weights.unsqueeze(3) * deviations**2).sum(dim=2), atol=1e-6, rtol=0)
    distances = ((votes - other.unsqueeze(2)) ** 2 * precisions.unsqueeze(2)).sum(dim=3)
    torch.testing.assert_close(squared_distances(votes, other, precisions), distances)
    assert torch.autograd.gradcheck(weighted_moments, (votes, weights))
    assert torch.autograd.gradcheck(squared_distances, (votes, other, precisions))
    monkeypatch.setattr(moments, "EPSILON", 0.5)  # as next to the mass of a parent without data
    assert torch.autograd.gradcheck(weighted_moments, (votes, weights))
