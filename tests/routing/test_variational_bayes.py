import math

import pytest
import torch
from scipy.special import digamma

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.variational_bayes import VariationalBayesRouting, variational_bayes_routing

B, I, J, D = 2, 6, 4, 5  # noqa: E741
ITERATIONS = [1, 2, 3, 5]
PRIORS = {"concentration": 0.7, "mean_strength": 2.5, "inverse_scale": 0.3, "extra_degrees": 2.0}


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def inputs():
    """votes, activations, beta_a, beta_u, gain"""
    return (
        draw(B, I, J, D, seed=0), draw(B, I, seed=1).sigmoid(),
        draw(J, seed=2), draw(J, seed=3), 0.3 * draw(J, seed=4),
    )  # fmt: skip


def paper(
    votes, activations, beta_a, beta_u, gain, iterations,
    concentration=1.0, mean_strength=1.0, inverse_scale=1.0, extra_degrees=1.0,
):  # fmt: skip
    """Algorithm 1 of R20 for one sample, one capsule at a time, in plain Python: densities, not their logarithms,
    and the posterior as in a textbook's mixture (Bishop 2006, 10.51-10.63), divided by R_j."""
    V, a, parents, children, elements = votes.tolist(), activations.tolist(), range(J), range(I), range(D)
    r = {(i, j): 1 / J for i in children for j in parents}
    alpha, kappa, nu, m, W, ln_pi, ln_det, R = ({} for _ in range(8))
    for t in range(iterations):
        for i in children if t else ():
            density = {}
            for j in parents:
                mahalanobis = D / kappa[j] + nu[j] * sum(W[j][h] * (V[i][j][h] - m[j][h]) ** 2 for h in elements)
                density[j] = math.exp(ln_pi[j] + ln_det[j] / 2 - D / 2 * math.log(2 * math.pi) - mahalanobis / 2)
            for j in parents:
                r[i, j] = density[j] / sum(density.values())
        for j in parents:
            R[j] = sum(r[i, j] * a[i] for i in children)
            alpha[j], kappa[j], nu[j] = concentration + R[j], mean_strength + R[j], D + extra_degrees + R[j]
            m[j], W[j] = [], []
            for h in elements:
                average = sum(r[i, j] * a[i] * V[i][j][h] for i in children) / R[j]
                scatter = sum(r[i, j] * a[i] * (V[i][j][h] - average) ** 2 for i in children)
                m[j].append((mean_strength * 0 + R[j] * average) / kappa[j])
                W[j].append(1 / (inverse_scale + scatter + mean_strength * R[j] / kappa[j] * (average - 0) ** 2))
            ln_det[j] = D * math.log(2) + sum(math.log(w) for w in W[j])
            ln_det[j] += sum(digamma((nu[j] + 1 - k) / 2) for k in range(1, D + 1))
        for j in parents:
            ln_pi[j] = digamma(alpha[j]) - digamma(sum(alpha.values()))
    cost = {j: J * math.exp(ln_pi[j]) * (D / 2 * math.log(2 * math.pi * math.e) - ln_det[j] / 2) for j in parents}
    parent = []
    for j in parents:
        logit = float(beta_a[j]) - (cost[j] - sum(cost.values()) / J + float(beta_u[j]))
        parent.append(1 / (1 + math.exp(-math.exp(float(gain[j])) * logit)))
    return [m[j] for j in parents], parent, [[r[i, j] for j in parents] for i in children]


@pytest.mark.parametrize("options", [{}, PRIORS], ids=["authors' priors", "other"])
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_the_papers_procedure(inputs, iterations, options):
    votes, activations, *learnt = inputs
    found = variational_bayes_routing(*inputs, iterations, **options)
    for b in range(B):
        expected = paper(votes[b], activations[b], *learnt, iterations, **options)
        for part, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(part[b], torch.tensor(wanted, dtype=torch.double), rtol=0, atol=1e-5)


def test_one_iteration_is_one_update_from_the_uniform_start(inputs):
    votes, activations, beta_a, beta_u, gain = inputs
    means, parents, responsibilities = variational_bayes_routing(*inputs, iterations=1)
    mass = activations.sum(dim=1) / J  # [B], the same for all parents, so that E[ln pi_j] is too
    kappa = 1 + mass
    m = torch.einsum("bi,bijd->bjd", activations / J, votes) / kappa[:, None, None]
    # the scatter about the posterior mean and the prior's pull on it, added up, are the two terms of the paper
    inverse = 1 + torch.einsum("bi,bijd->bjd", activations / J, (votes - m.unsqueeze(1)) ** 2) + m**2
    ln_det = -inverse.log().sum(dim=2) + D * math.log(2)
    ln_det += sum(((D + 1 + mass - k) / 2).digamma() for k in range(D)).unsqueeze(1)
    share = J * ((1 + mass).digamma() - (J * (1 + mass)).digamma()).exp().unsqueeze(1)
    entropy = D / 2 * (1 + math.log(2 * math.pi)) - ln_det / 2
    torch.testing.assert_close(means, m, rtol=0, atol=1e-6)
    cost = share * (entropy - entropy.mean(dim=1, keepdim=True))
    torch.testing.assert_close(parents, (gain.exp() * (beta_a - cost - beta_u)).sigmoid(), rtol=0, atol=1e-6)
    torch.testing.assert_close(responsibilities, torch.full((B, I, J), 1 / J, dtype=torch.double))


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_each_child_shares_itself_out_over_its_parents(inputs, iterations):
    responsibilities = variational_bayes_routing(*inputs, iterations)[2]
    torch.testing.assert_close(responsibilities.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    if iterations > 1:
        assert (responsibilities.sum(dim=1) - I / J).abs().max() > 0.01  # and not over the children


@pytest.mark.parametrize("iterations", [1, 3])
def test_the_responsibilities_are_those_that_made_the_means(inputs, iterations):
    votes, activations, *_ = inputs
    means, _, responsibilities = variational_bayes_routing(*inputs, iterations)
    weights = responsibilities * activations.unsqueeze(2)
    expected = torch.einsum("bij,bijd->bjd", weights, votes) / (1 + weights.sum(dim=1).unsqueeze(2))
    torch.testing.assert_close(means, expected, atol=1e-6, rtol=0)


def test_a_child_without_activation_has_no_influence_and_its_size_matters(inputs):
    votes, activations, *learnt = inputs
    activations = activations.clone()
    activations[:, 0] = 0
    means, parents, responsibilities = variational_bayes_routing(votes, activations, *learnt, 3)
    without = variational_bayes_routing(votes[:, 1:], activations[:, 1:], *learnt, 3)
    torch.testing.assert_close((means, parents, responsibilities[:, 1:]), without)
    half = variational_bayes_routing(votes, activations / 2, *learnt, 1)
    mass = activations.sum(dim=1)[:, None, None] / J
    first = variational_bayes_routing(votes, activations, *learnt, 1)
    torch.testing.assert_close(half[0], first[0] * (1 + mass) / (2 + mass))  # half the data against the same prior
    assert not torch.allclose(half[1], first[1])


def test_a_parent_without_data_falls_back_on_its_prior(inputs):
    votes, _, *learnt = inputs
    nothing = torch.zeros(B, I, dtype=torch.double)
    means, parents, responsibilities = variational_bayes_routing(votes, nothing, *learnt, 3, inverse_scale=0.3)
    torch.testing.assert_close(means, torch.zeros_like(means))
    beta_a, beta_u, gain = learnt
    torch.testing.assert_close(parents, (gain.exp() * (beta_a - beta_u)).sigmoid().expand(B, J))  # all cost the same
    assert (responsibilities - 1 / J).abs().max() > 0.01  # children still prefer the parents whose prior they fit


def test_a_cluster_of_votes_wins_the_children_and_the_activation():
    votes = draw(1, 20, 2, D, seed=0)
    votes[:, :, 0] *= 0.05  # all children agree about parent 0
    ones, zeros = torch.ones(1, 20, dtype=torch.double), torch.zeros(2, dtype=torch.double)
    for iterations in (1, 3):
        parents = variational_bayes_routing(votes, ones, zeros, zeros, zeros, iterations)[1]
        assert parents[0, 0] > parents[0, 1]
    responsibilities = variational_bayes_routing(votes, ones, zeros, zeros, zeros, 3)[2]
    assert responsibilities[0, :, 0].min() > 0.9


def test_options_have_the_authors_values_as_defaults_and_act(inputs):
    default = variational_bayes_routing(*inputs)
    torch.testing.assert_close(default, variational_bayes_routing(*inputs, 3, 1.0, 1.0, 1.0, 1.0))
    for name, value in ({"iterations": 2} | PRIORS).items():
        other = variational_bayes_routing(*inputs, **{name: value})
        assert not any(torch.allclose(a, b) for a, b in zip(default, other, strict=True)), name


def test_betas_shift_the_logit_and_gain_scales_it(inputs):
    votes, activations, beta_a, beta_u, gain = inputs
    logits = variational_bayes_routing(*inputs)[1].logit()
    zeros = torch.zeros(J, dtype=torch.double)
    plain = variational_bayes_routing(votes, activations, zeros, zeros, zeros)[1].logit()
    torch.testing.assert_close(logits, gain.exp() * (plain + beta_a - beta_u))


def test_gradients_agree_with_finite_differences_under_other_priors(inputs):
    votes, activations, *learnt = inputs
    leaves = [votes[:1, :4, :3, :2], activations[:1, :4], *(x[:3] for x in learnt)]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(lambda *x: variational_bayes_routing(*x, 3, **PRIORS), leaves)


def test_what_is_learnt_starts_at_zero():
    learnt = dict(VariationalBayesRouting(LayerSize(I, 7, J, D)).named_parameters())
    assert {name: x.shape for name, x in learnt.items()} == dict.fromkeys(("beta_a", "beta_u", "gain"), (J,))
    assert not any(x.any() for x in learnt.values())


def test_half_precision_is_computed_in_full(inputs):
    halves = [x.bfloat16() for x in inputs]
    expected = variational_bayes_routing(*(x.float() for x in halves))
    torch.testing.assert_close(variational_bayes_routing(*halves), tuple(x.bfloat16() for x in expected))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(variational_bayes_routing(*(x.float() for x in halves)), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"iterations": 0}, "at least 1 iteration"), ({"iterations": -1}, "at least 1 iteration")]
    + [({name: 0.0}, name) for name in ("concentration", "mean_strength", "inverse_scale")]
    + [({"extra_degrees": -1.0}, "extra_degrees")],
)
def test_what_cannot_be_is_refused(inputs, options, message):
    with pytest.raises(ValueError, match=message):
        variational_bayes_routing(*inputs, **options)


def test_the_module_hands_on_what_it_learns_and_its_options():
    poses, weight = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6)
    activations = draw(B, I, seed=1).sigmoid()
    routing = VariationalBayesRouting(LayerSize(I, 7, J, D), iterations=2, **PRIORS).double()
    for seed, parameter in enumerate(routing.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed)
    expected = variational_bayes_routing(
        stored_votes(poses, weight), activations, routing.beta_a, routing.beta_u, routing.gain, 2, **PRIORS
    )
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected), rtol=0, atol=0)
