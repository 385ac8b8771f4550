import math

import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.heinsen import HeinsenRouting, heinsen_routing

B, I, J, D = 2, 6, 4, 5  # noqa: E741
ITERATIONS = [1, 2, 3, 5]


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def inputs():
    """votes, activations, beta_use, beta_ign"""
    return draw(B, I, J, D, seed=0), draw(B, I, seed=1).sigmoid(), draw(I, J, seed=2), draw(I, J, seed=3)


def paper(votes, activations, beta_use, beta_ign, iterations, variance_floor=1e-5):
    """Algorithm 1 of He19 for one sample, one capsule at a time, in plain Python, from input scores."""

    def f(score):
        return 1 / (1 + math.exp(-score))

    V, scores, use, ign = votes.tolist(), activations.logit().tolist(), beta_use.tolist(), beta_ign.tolist()
    inputs, outputs, elements = range(I), range(J), range(D)
    R, mu, variance, a = {}, {}, {}, {}
    for t in range(iterations):
        for i in inputs:  # E-step
            P = {}
            for j in outputs if t else ():
                exponent = sum((V[i][j][h] - mu[j][h]) ** 2 / (2 * variance[j][h]) for h in elements)
                P[j] = math.exp(-exponent) / math.sqrt(math.prod(2 * math.pi * x for x in variance[j]))
            total = sum(f(a[j]) * p for j, p in P.items())
            for j in outputs:
                R[i, j] = f(a[j]) * P[j] / total if t else 1 / J
        used = {(i, j): f(scores[i]) * R[i, j] for i, j in R}  # D-step
        ignored = {(i, j): f(scores[i]) - used[i, j] for i, j in R}
        for j in outputs:  # M-step
            a[j] = sum(use[i][j] * used[i, j] for i in inputs) - sum(ign[i][j] * ignored[i, j] for i in inputs)
            mass = sum(used[i, j] for i in inputs) + 1e-7  # as in moments
            mu[j] = [sum(used[i, j] * V[i][j][h] for i in inputs) / mass for h in elements]
            variance[j] = [
                sum(used[i, j] * (V[i][j][h] - mu[j][h]) ** 2 for i in inputs) / mass + variance_floor for h in elements
            ]
    return [mu[j] for j in outputs], [f(a[j]) for j in outputs], [[R[i, j] for j in outputs] for i in inputs]


@pytest.mark.parametrize("variance_floor", [1e-5, 0.1])
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_the_papers_procedure(inputs, iterations, variance_floor):
    votes, activations, *betas = inputs
    found = heinsen_routing(*inputs, iterations, variance_floor)
    for b in range(B):
        expected = paper(votes[b], activations[b], *betas, iterations, variance_floor)
        for part, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(part[b], torch.tensor(wanted, dtype=torch.double), rtol=0, atol=1e-5)


def test_one_iteration_is_a_weighted_average_and_linear_scores(inputs):
    votes, activations, beta_use, beta_ign = inputs
    means, outputs, probabilities = heinsen_routing(*inputs, iterations=1)
    share = activations / activations.sum(dim=1, keepdim=True)
    torch.testing.assert_close(means, torch.einsum("bi,bijd->bjd", share, votes), rtol=0, atol=1e-6)
    # of each input, 1/J is used and the rest ignored
    torch.testing.assert_close(outputs.logit(), activations @ (beta_use / J - beta_ign * (1 - 1 / J)))
    torch.testing.assert_close(probabilities, torch.full((B, I, J), 1 / J, dtype=torch.double))


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_each_input_shares_itself_out_over_the_outputs(inputs, iterations):
    probabilities = heinsen_routing(*inputs, iterations)[2]
    torch.testing.assert_close(probabilities.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    if iterations > 1:
        assert (probabilities.sum(dim=1) - I / J).abs().max() > 0.01  # and not over the inputs


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_means_and_scores_come_from_the_probabilities_given_back(inputs, iterations):
    votes, activations, beta_use, beta_ign = inputs
    means, outputs, probabilities = heinsen_routing(*inputs, iterations)
    used = activations.unsqueeze(2) * probabilities
    expected = torch.einsum("bij,bijd->bjd", used / used.sum(dim=1, keepdim=True), votes)
    torch.testing.assert_close(means, expected, atol=1e-5, rtol=0)
    # use, ignored and gated off add up to the whole input
    ignored = activations.unsqueeze(2) * (1 - probabilities)
    torch.testing.assert_close(outputs.logit(), (beta_use * used - beta_ign * ignored).sum(dim=1))


def test_an_input_without_activation_has_no_influence_and_its_size_matters(inputs):
    votes, activations, *betas = inputs
    activations = activations.clone()
    activations[:, 0] = 0
    means, outputs, probabilities = heinsen_routing(votes, activations, *betas, 3)
    without = heinsen_routing(votes[:, 1:], activations[:, 1:], *(x[1:] for x in betas), 3)
    torch.testing.assert_close((means, outputs, probabilities[:, 1:]), without)

    full, half = (heinsen_routing(votes, scale * activations, *betas, 1)[1] for scale in (1.0, 0.5))
    torch.testing.assert_close(half.logit(), full.logit() / 2)


def test_an_output_gains_by_what_it_uses_and_loses_by_what_it_ignores():
    votes = draw(1, 20, 2, D, seed=0)
    votes[:, :, 0] *= 0.05  # all inputs agree about output 0
    ones, betas = torch.ones(1, 20, dtype=torch.double), torch.full((20, 2), 0.1, dtype=torch.double)
    _, outputs, probabilities = heinsen_routing(votes, ones, betas, betas, 3)
    assert probabilities[0, :, 0].min() > 0.9
    torch.testing.assert_close(outputs.logit()[0], torch.tensor([2.0, -2.0], dtype=torch.double), rtol=0, atol=1e-3)


def test_what_is_learnt_starts_at_zero_where_all_activations_are_a_half(inputs):
    votes, activations, *_ = inputs
    betas = dict(HeinsenRouting(LayerSize(I, 7, J, D)).double().named_parameters())
    assert {name: beta.shape for name, beta in betas.items()} == {"beta_use": (I, J), "beta_ign": (I, J)}
    assert not any(beta.any() for beta in betas.values())
    outputs = heinsen_routing(votes, activations, **betas).activations
    torch.testing.assert_close(outputs, torch.full((B, J), 0.5, dtype=torch.double))
    gradients = torch.autograd.grad(outputs.sum(), tuple(betas.values()))
    assert all((g != 0).all() for g in gradients)


def test_options_have_the_codes_defaults_and_act(inputs):
    default = heinsen_routing(*inputs)
    torch.testing.assert_close(default, heinsen_routing(*inputs, 3, 1e-5))
    for options in ((2, 1e-5), (3, 0.1)):
        other = heinsen_routing(*inputs, *options)
        assert not any(torch.allclose(a, b) for a, b in zip(default, other, strict=True))


def test_half_precision_is_computed_in_full(inputs):
    halves = [x.bfloat16() for x in inputs]
    expected = heinsen_routing(*(x.float() for x in halves))
    torch.testing.assert_close(heinsen_routing(*halves), tuple(x.bfloat16() for x in expected))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(heinsen_routing(*(x.float() for x in halves)), expected)


@pytest.mark.parametrize("iterations", [0, -1])
def test_less_than_one_iteration_is_refused(inputs, iterations):
    with pytest.raises(ValueError, match="at least 1 iteration"):
        heinsen_routing(*inputs, iterations)


def test_the_module_hands_on_what_it_learns_and_its_options():
    poses, weight = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6)
    activations = draw(B, I, seed=1).sigmoid()
    routing = HeinsenRouting(LayerSize(I, 7, J, D), iterations=2, variance_floor=0.1).double()
    for seed, parameter in enumerate(routing.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed)
    expected = heinsen_routing(stored_votes(poses, weight), activations, routing.beta_use, routing.beta_ign, 2, 0.1)
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected), rtol=0, atol=0)
