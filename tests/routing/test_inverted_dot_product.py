import math

import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.inverted_dot_product import InvertedDotProductRouting, inverted_dot_product_routing

B, I, J, D = 2, 6, 4, 5  # noqa: E741
ITERATIONS = [1, 2, 3, 5]


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def inputs():
    """votes, gain, shift, readout"""
    return draw(B, I, J, D, seed=0), 0.3 * draw(D, seed=1), 0.3 * draw(D, seed=2), draw(D, seed=3)


def layer_norm(s, gain, shift):
    mean = sum(s) / D
    deviation = math.sqrt(sum((x - mean) ** 2 for x in s) / D + 1e-5)
    return [(x - mean) / deviation * (1 + float(g)) + float(b) for x, g, b in zip(s, gain, shift, strict=True)]


def paper(votes, gain, shift, readout, iterations, scale=1.0):
    """Procedure 1 of T20 for one sample, one capsule at a time, in plain Python."""
    v = votes.tolist()
    p, r = [[0.0] * D for _ in range(J)], {}
    for _ in range(iterations):
        for i in range(I):
            a = [scale * sum(p[j][k] * v[i][j][k] for k in range(D)) for j in range(J)]
            for j in range(J):
                r[i, j] = math.exp(a[j]) / sum(math.exp(x) for x in a)
        for j in range(J):
            p[j] = layer_norm([sum(r[i, j] * v[i][j][k] for i in range(I)) for k in range(D)], gain, shift)
    activations = [1 / (1 + math.exp(-sum(p[j][k] * float(readout[k]) for k in range(D)))) for j in range(J)]
    return p, activations, [[r[i, j] for j in range(J)] for i in range(I)]


@pytest.mark.parametrize("scale_agreement", [False, True])
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_the_papers_procedure(inputs, iterations, scale_agreement):
    votes, *learnt = inputs
    found = inverted_dot_product_routing(*inputs, iterations, scale_agreement)
    for b in range(B):
        expected = paper(votes[b], *learnt, iterations, D**-0.5 if scale_agreement else 1.0)
        for part, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(part[b], torch.tensor(wanted, dtype=torch.double), rtol=0, atol=1e-5)


def test_one_iteration_is_the_uniform_average(inputs):
    votes, gain, shift, readout = inputs
    poses, activations, couplings = inverted_dot_product_routing(*inputs, iterations=1)
    average = votes.sum(dim=1) / J
    centred = average - average.mean(dim=2, keepdim=True)
    expected = centred / (centred.square().mean(dim=2, keepdim=True) + 1e-5).sqrt() * (1 + gain) + shift
    torch.testing.assert_close(poses, expected)
    torch.testing.assert_close(activations.logit(), (expected * readout).sum(dim=2))  # the paper's class logit
    torch.testing.assert_close(couplings, torch.full((B, I, J), 1 / J, dtype=torch.double))


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_each_child_shares_itself_out_over_its_parents(inputs, iterations):
    couplings = inverted_dot_product_routing(*inputs, iterations)[2]
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    if iterations > 1:
        assert (couplings.sum(dim=1) - 1).abs().max() > 0.01  # and not over the children


def test_a_parent_whose_pose_a_vote_is_like_wins_that_child():
    votes = torch.zeros(1, 4, 2, 4)
    votes[:, :, 0] = torch.tensor([3.0, -3.0, 1.0, -1.0])  # all children agree about parent 0
    votes[:, :2, 1], votes[:, 2:, 1] = torch.tensor([1.0, -1.0, 3.0, -3.0]), torch.tensor([-1.0, 1.0, -3.0, 3.0])
    zeros = torch.zeros(4)
    first, second = (inverted_dot_product_routing(votes, zeros, zeros, zeros, r)[2][0, :, 0] for r in (1, 2))
    assert (first == 0.5).all()
    assert (second > 0.9).all()


def test_options_have_the_defaults_of_the_paper_and_act(inputs):
    default = inverted_dot_product_routing(*inputs)
    torch.testing.assert_close(default, inverted_dot_product_routing(*inputs, 2, False))
    for options in ((3, False), (2, True)):
        other = inverted_dot_product_routing(*inputs, *options)
        assert not any(torch.allclose(a, b) for a, b in zip(default, other, strict=True))


def test_what_is_learnt_starts_as_plain_layer_norm(inputs):
    votes = inputs[0]
    learnt = InvertedDotProductRouting(LayerSize(I, 7, J, D)).double()
    assert not learnt.gain.any() and not learnt.shift.any()
    poses, activations, _ = inverted_dot_product_routing(votes, learnt.gain, learnt.shift, 0 * learnt.readout)
    torch.testing.assert_close(poses.mean(dim=2), torch.zeros(B, J, dtype=torch.double))
    torch.testing.assert_close(poses.square().mean(dim=2), torch.ones(B, J, dtype=torch.double), rtol=0, atol=1e-3)
    torch.testing.assert_close(activations, torch.full((B, J), 0.5, dtype=torch.double))
    readout = InvertedDotProductRouting(LayerSize(I, 7, J, 10_000)).readout
    assert readout.std().item() == pytest.approx(0.088, abs=0.002)  # of a normal with 0.1, cut at 0.2
    assert readout.abs().max() <= 0.2


@pytest.mark.parametrize("iterations", [0, -1])
def test_less_than_one_iteration_is_refused(inputs, iterations):
    with pytest.raises(ValueError, match="at least 1 iteration"):
        inverted_dot_product_routing(*inputs, iterations)


def test_the_module_hands_on_what_it_learns_and_its_options():
    poses, weight = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6)
    activations = draw(B, I, seed=1).sigmoid()
    routing = InvertedDotProductRouting(LayerSize(I, 7, J, D), iterations=3, scale_agreement=True).double()
    for seed, parameter in enumerate(routing.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed)
    expected = inverted_dot_product_routing(
        stored_votes(poses, weight), routing.gain, routing.shift, routing.readout, 3, True
    )
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
