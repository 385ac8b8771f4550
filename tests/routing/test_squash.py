import math

import pytest
import torch

from capsbench.losses import margin_loss
from capsbench.routing import capsule_lengths, squash
from capsbench.routing.contract import exponential_squash


def test_squash_is_the_papers_formula():
    s = torch.tensor([[3.0, 4.0]])  # length 5
    torch.testing.assert_close(squash(s), s / 5 * 25 / 26)


def test_squash_keeps_direction_and_stays_below_one():
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(100, 8, generator=generator) * torch.logspace(-4, 4, 100).unsqueeze(1)
    v = squash(s)
    assert (v.norm(dim=1) <= 1 + 1e-6).all()  # to rounding: s / |s| may be 1 + 1e-7 long
    torch.testing.assert_close(torch.cosine_similarity(s, v), torch.ones(100))


def test_squash_along_another_dimension():
    s = torch.randn(2, 8, 5)
    torch.testing.assert_close(squash(s, dim=1), squash(s.transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-12, 1e-6, 1e6])
def test_squash_and_its_length_in_the_loss_have_finite_gradients(size):
    s = torch.full((2, 3, 4), size, requires_grad=True)
    lengths = capsule_lengths(squash(s))
    margin_loss(lengths, torch.eye(3)[:2]).backward()
    assert lengths.isfinite().all()
    assert s.grad.isfinite().all()


def test_squash_gradient_agrees_with_finite_differences():
    s = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(squash, (s,))


def test_the_exponential_squash_keeps_direction_and_short_vectors_and_stays_below_one():
    s = torch.tensor([3.0, 4.0], dtype=torch.double)
    torch.testing.assert_close(exponential_squash(s), s / 5 * (1 - math.exp(-5)))
    short = torch.tensor([3e-5, -4e-5])
    torch.testing.assert_close(exponential_squash(short), short, rtol=1e-4, atol=0)
    table = torch.randn(2, 3, 4, dtype=torch.double, requires_grad=True)
    turned = exponential_squash(table.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(exponential_squash(table, dim=1), turned)
    assert (exponential_squash(100 * table).norm(dim=2) <= 1 + 1e-12).all()  # to rounding
    assert torch.autograd.gradcheck(exponential_squash, (table,))
    assert torch.autograd.gradcheck(exponential_squash, (1e-3 * table.detach().requires_grad_(),))
