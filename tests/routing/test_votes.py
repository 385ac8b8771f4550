"""Votes that are never stored against votes that are: values and gradients of every sum, and of every routing."""

import pytest
import torch

from capsbench.registry import ROUTINGS
from capsbench.routing import LayerSize
from capsbench.routing.ablated_attention import ablated_attention_routing
from capsbench.routing.attention import attention_routing
from capsbench.routing.centred_attention import centred_attention_routing
from capsbench.routing.contract import stored_votes
from capsbench.routing.inverted_dot_product import inverted_dot_product_routing
from capsbench.routing.kernels.forms import plain_forms
from capsbench.routing.random_couplings import random_routing
from capsbench.routing.self_routing import self_routing
from capsbench.routing.sparse import sparse_routing
from capsbench.routing.uniform import uniform_routing
from capsbench.routing.votes import LinearVotes, StoredVotes, votes_of

SIZES = [LayerSize(6, 7, 4, 5), LayerSize(1, 3, 2, 4), LayerSize(9, 1, 3, 1), LayerSize(5, 4, 1, 3)]
ROUTED = {  # by the procedure of the file, on votes of either form
    "attention": lambda routing, votes, poses, activations: attention_routing(votes, routing.priors),
    "centred_attention": lambda routing, votes, poses, activations: centred_attention_routing(votes),
    "inverted_dot_product": lambda routing, votes, poses, activations: inverted_dot_product_routing(
        votes, routing.gain, routing.shift, routing.readout, routing.iterations, routing.scale_agreement
    ),
    "random": lambda routing, votes, poses, activations: random_routing(votes, routing.coupling_seed),
    "self": lambda routing, votes, poses, activations: self_routing(
        votes, poses, activations, routing.route, routing.bias
    ),
    "sparse": lambda routing, votes, poses, activations: sparse_routing(votes, routing.iterations, routing.keep),
    "uniform": lambda routing, votes, poses, activations: uniform_routing(votes),
    "ablated_attention": lambda routing, votes, poses, activations: ablated_attention_routing(
        votes, routing.priors, routing.agreement
    ),
}
ITERATED = ("sparse", "inverted_dot_product")
every_size = pytest.mark.parametrize("size", SIZES, ids=str)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def children(size, batch=3):
    poses, weight = (
        draw(batch, size.children, size.child_dim),
        draw(size.children, size.parents, size.parent_dim, size.child_dim, seed=1),
    )
    return (
        poses.requires_grad_(),
        draw(batch, size.children, seed=2).sigmoid().requires_grad_(),
        weight.requires_grad_(),
    )


def gradients(results, leaves):
    total = sum((x * torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).view(x.shape)).sum() for x in results)
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]


@every_size
def test_every_sum_over_votes_that_are_not_stored_is_that_over_stored_ones(size):
    poses, _, weight = children(size)
    _, _, J, D = size
    couplings = draw(J, 3, size.children, seed=3).requires_grad_()
    shared = draw(J, 1, size.children, seed=4).requires_grad_()
    parents = draw(J, 3, D, seed=5).requires_grad_()
    for needed, sums in (
        ((), lambda votes: votes.total()),
        ((couplings,), lambda votes: votes.weighted_sum(couplings)),
        ((shared,), lambda votes: votes.weighted_sum(shared)),
        ((parents,), lambda votes: votes.agreement(parents)),
    ):
        leaves = [poses, weight, *needed]
        stored, linear = sums(StoredVotes(stored_votes(poses, weight))), sums(LinearVotes(poses, weight))
        torch.testing.assert_close(linear, stored)
        torch.testing.assert_close(gradients([linear], leaves), gradients([stored], leaves))


def test_the_plain_form_is_taken_where_it_is_asked_for():
    poses, _, weight = children(SIZES[0])
    assert isinstance(votes_of(poses, weight), LinearVotes)
    with plain_forms():
        assert isinstance(votes_of(poses, weight), StoredVotes)
        plain = stored_votes(poses, weight)
    assert isinstance(votes_of(poses, weight), LinearVotes)
    torch.testing.assert_close(plain, stored_votes(poses, weight))


def test_every_sum_has_a_known_answer():
    votes = StoredVotes(torch.tensor([[[[1.0, 2.0]], [[3.0, -4.0]]]]))  # one image, two children, one parent
    assert votes.total().tolist() == [[[4.0, -2.0]]]
    assert votes.weighted_sum(torch.tensor([[[0.5, 2.0]]])).tolist() == [[[6.5, -7.0]]]
    assert votes.agreement(torch.tensor([[[10.0, 1.0]]])).tolist() == [[[12.0, 26.0]]]
    assert votes.uniform().tolist() == [[[1.0], [1.0]]]


@every_size
@pytest.mark.parametrize(
    ("name", "iterations"),
    [(name, number) for name in ROUTED for number in (1, 2, 4) if number == 1 or name in ITERATED],
)
def test_routing_without_stored_votes_is_the_same_procedure(name, size, iterations):
    takes = {"iterations": iterations} if name in ITERATED else {}
    torch.manual_seed(0)
    routing = ROUTINGS.build(name, size, **takes).double()
    for parameter in routing.parameters():
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    poses, activations, weight = children(size)
    leaves = [poses, activations, weight, *routing.parameters()]
    found = routing(poses, activations, weight)
    expected = ROUTED[name](routing, stored_votes(poses, weight), poses, activations)
    torch.testing.assert_close(tuple(found), tuple(expected))
    torch.testing.assert_close(gradients(found, leaves), gradients(expected, leaves))


@pytest.mark.parametrize("name", ROUTED)
def test_memory_does_not_hold_the_votes(name):
    """What autograd keeps between the passes is smaller than one tensor of votes."""
    size = LayerSize(200, 8, 10, 16)
    routing = ROUTINGS.build(name, size)
    poses, activations, weight = (x.float().detach().requires_grad_() for x in children(size, batch=16))
    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        routing(poses, activations, weight)
    assert max(kept.values()) < 16 * 200 * 10 * 16
