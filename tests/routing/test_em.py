import math
from dataclasses import replace

import pytest
import torch

from capsbench.routing import em_routing
from capsbench.routing.em import EMSettings, route_by_em

B, I, J, H = 2, 6, 4, 5  # noqa: E741
ITERATIONS = [1, 2, 3, 5]
SHARP = 1.0  # an inverse temperature that makes activations of these small cases differ


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def inputs():
    """votes, activations, beta_u, beta_a of the fully connected form."""
    return draw(B, I, J, H, seed=0), draw(B, I, seed=1).sigmoid(), draw(J, seed=2), draw(J, seed=3)


def paper(
    links,
    activations,
    beta_u,
    beta_a,
    iterations,
    inverse_temperature=0.01,
    damping=0.0,
    variance_floor=1e-4,
    annealing=0.95,
):
    """Procedure 1 of H18 for one sample, one capsule at a time, in plain Python.

    links: {(child, parent): vote}, beta_u and beta_a: {parent: number} -> {parent: mean}, {parent: activation},
    {(child, parent): assignment}.
    """
    parents = {j: [i for i, other in links if other == j] for j in dict.fromkeys(j for _, j in links)}
    fed = {i: [j for other, j in links if other == i] for i in dict.fromkeys(i for i, _ in links)}
    R = {(i, j): 1 / len(fed[i]) for i, j in links}
    mu, sigma, a = {}, {}, {}
    for t in range(iterations):
        for i in fed if t else ():  # E-step
            p = {}
            for j in fed[i]:
                density = 1.0
                for h in range(H):
                    z = float(links[i, j][h] - mu[j][h]) / sigma[j][h]
                    density *= math.exp(-z * z / 2) / (math.sqrt(2 * math.pi) * sigma[j][h])
                p[j] = a[j] * density
            for j in fed[i]:
                R[i, j] = p[j] / sum(p.values())
        for j, its_children in parents.items():  # M-step
            data = {i: R[i, j] * float(activations[i]) for i in its_children}
            mass = sum(data.values())
            new = [sum(r * float(links[i, j][h]) for i, r in data.items()) / mass for h in range(H)]
            if t:
                new = [(1 - damping) * n + damping * m for n, m in zip(new, mu[j], strict=True)]
            mu[j] = new
            variance = [
                variance_floor + sum(r * float(links[i, j][h] - new[h]) ** 2 for i, r in data.items()) / mass
                for h in range(H)
            ]
            sigma[j] = [math.sqrt(v) for v in variance]
            cost = sum((float(beta_u[j]) + math.log(s)) * mass for s in sigma[j])
            a[j] = 1 / (1 + math.exp(-inverse_temperature * (1 - annealing ** (t + 1)) * (float(beta_a[j]) - cost)))
    return mu, a, R


@pytest.mark.parametrize(("damping", "annealing"), [(0.0, 0.95), (0.1, 0.0)])
@pytest.mark.parametrize("inverse_temperature", [0.01, SHARP])
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_the_papers_procedure(inputs, iterations, inverse_temperature, damping, annealing):
    votes, activations, beta_u, beta_a = inputs
    means, parents, assignments = em_routing(*inputs, iterations, inverse_temperature, damping, annealing=annealing)
    for b in range(B):
        links = {(i, j): votes[b, i, j] for i in range(I) for j in range(J)}
        mu, a, R = paper(
            links, activations[b], beta_u, beta_a, iterations, inverse_temperature, damping, annealing=annealing
        )
        for j in range(J):
            torch.testing.assert_close(means[b, j], torch.tensor(mu[j], dtype=torch.double), rtol=0, atol=1e-5)
            assert float(parents[b, j]) == pytest.approx(a[j], abs=1e-5)
            assert [float(assignments[b, i, j]) for i in range(I)] == pytest.approx(
                [R[i, j] for i in range(I)], abs=1e-5
            )


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_each_child_shares_itself_out_over_its_parents(inputs, iterations):
    assignments = em_routing(*inputs, iterations, SHARP)[2]
    torch.testing.assert_close(assignments.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    if iterations > 1:
        assert (assignments.sum(dim=1) - I / J).abs().max() > 0.01  # and not over the children


def test_one_iteration_in_closed_form(inputs):
    votes, activations, beta_u, beta_a = inputs
    means, parents, assignments = em_routing(*inputs, iterations=1, variance_floor=0.01)
    weights = activations / activations.sum(dim=1, keepdim=True)  # the uniform 1/J cancels
    expected = torch.einsum("bi,bijh->bjh", weights, votes)
    variances = torch.einsum("bi,bijh->bjh", weights, (votes - expected.unsqueeze(1)) ** 2) + 0.01
    mass = activations.sum(dim=1, keepdim=True) / J
    costs = mass * (H * beta_u + variances.sqrt().log().sum(dim=2))
    torch.testing.assert_close(means, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(parents, (0.01 * (1 - 0.95) * (beta_a - costs)).sigmoid())
    torch.testing.assert_close(assignments, torch.full((B, I, J), 1 / J, dtype=torch.double))


@pytest.mark.parametrize("iterations", [1, 3])
def test_the_assignments_are_those_that_made_the_means(inputs, iterations):
    votes, activations, *_ = inputs
    means, _, assignments = em_routing(*inputs, iterations, SHARP)
    weights = assignments * activations.unsqueeze(2)
    expected = torch.einsum("bij,bijh->bjh", weights / weights.sum(dim=1, keepdim=True), votes)
    torch.testing.assert_close(means, expected, atol=1e-5, rtol=0)


def test_the_temperature_term_grows_with_the_iteration(inputs):
    votes, _, beta_u, _ = inputs
    nothing, beta_a = torch.zeros(B, I, dtype=torch.double), torch.full((J,), 2.0, dtype=torch.double)
    for iterations in ITERATIONS:  # without mass there is no cost, and the logit is lambda beta_a
        logits = em_routing(votes, nothing, beta_u, beta_a, iterations, 0.5)[1].logit()
        expected = 0.5 * (1 - 0.95**iterations) * beta_a
        torch.testing.assert_close(logits, expected.expand(B, J))


def test_a_child_without_activation_has_no_influence_and_its_size_matters(inputs):
    votes, activations, *betas = inputs
    activations = activations.clone()
    activations[:, 0] = 0
    means, parents, assignments = em_routing(votes, activations, *betas, 3, SHARP)
    without = em_routing(votes[:, 1:], activations[:, 1:], *betas, 3, SHARP)
    torch.testing.assert_close((means, parents, assignments[:, 1:]), tuple(without))

    full, half = (em_routing(votes, scale * activations, *betas, 1, SHARP)[1] for scale in (1.0, 0.5))
    # half the data, half the cost: logits are lambda (beta_a - cost)
    temperature = SHARP * (1 - 0.95)
    cost = betas[1] - full.logit() / temperature
    torch.testing.assert_close(half.logit(), temperature * (betas[1] - cost / 2))


def test_damping_keeps_a_part_of_the_previous_mean(inputs):
    first, second, damped = (
        em_routing(*inputs, iterations, SHARP, damping)[0] for iterations, damping in ((1, 0.3), (2, 0.0), (2, 0.3))
    )
    torch.testing.assert_close(damped, 0.7 * second + 0.3 * first)
    torch.testing.assert_close(first, em_routing(*inputs, 1, SHARP)[0])  # nothing to keep at the first


def test_the_variance_floor_is_added(inputs):
    votes, activations, beta_u, beta_a = inputs
    same = votes[:, :1].expand_as(votes)
    mass = activations.sum(dim=1, keepdim=True) / J
    for floor in (1e-4, 0.25):
        logits = em_routing(same, activations, beta_u, beta_a, 1, SHARP, variance_floor=floor)[1].logit()
        expected = SHARP * (1 - 0.95) * (beta_a - H * mass * (beta_u + math.log(floor) / 2))
        torch.testing.assert_close(logits, expected)


def test_a_cluster_of_votes_wins_the_assignments():
    votes = draw(1, 8, 2, H, seed=0)
    votes[:, :, 0] *= 0.05  # all children agree about parent 0
    _, parents, assignments = em_routing(
        votes, torch.ones(1, 8, dtype=torch.double), torch.ones(2, dtype=torch.double),
        torch.ones(2, dtype=torch.double), 3,
    )  # fmt: skip
    assert assignments[0, :, 0].min() > 0.9
    assert parents[0, 0] > parents[0, 1]


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_gradients_agree_with_finite_differences(inputs, iterations):
    votes, activations, beta_u, beta_a = inputs
    leaves = [votes[:, :4, :3, :2], activations[:, :4], beta_u[:3], beta_a[:3]]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(lambda *x: em_routing(*x, iterations, SHARP, 0.1, 0.01), leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("children", [1, 40])
def test_values_and_gradients_stay_finite_where_activations_are_0_or_1(children, dtype):
    activation = torch.ones(3, children, dtype=dtype)
    votes, betas = draw(3, children, J, 16, seed=0), torch.ones(2, J, dtype=dtype)
    for case in (100 * votes, 1e4 * votes, 1e-6 * votes, torch.ones_like(votes)):
        leaves = [leaf.clone().requires_grad_() for leaf in (case.to(dtype), activation, *betas)]
        results = em_routing(*leaves, 5, SHARP)
        assert all(x.dtype == dtype and x.isfinite().all() for x in results)
        total = sum(x.float().square().sum() for x in results)
        assert all(g.isfinite().all() for g in torch.autograd.grad(total, leaves))


def test_half_precision_is_computed_in_full(inputs):
    halves = [x.bfloat16() for x in inputs]
    found = em_routing(*halves, 3, SHARP)
    expected = em_routing(*(x.float() for x in halves), 3, SHARP)
    torch.testing.assert_close(found, tuple(x.bfloat16() for x in expected))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(em_routing(*(x.float() for x in halves), 3, SHARP), expected)


@pytest.mark.parametrize("iterations", [0, -1])
def test_less_than_one_iteration_is_refused(inputs, iterations):
    with pytest.raises(ValueError, match="at least 1 iteration"):
        em_routing(*inputs, iterations)


def test_logits_are_those_of_the_activations(inputs):
    routed = em_routing(*inputs, 3, SHARP)
    assert len(routed) == 3
    torch.testing.assert_close(routed.logits.sigmoid(), routed[1])
    votes, _, beta_u, _ = inputs
    nothing, beta_a = torch.zeros(B, I, dtype=torch.double), torch.tensor([100.0, 200, 300, 400], dtype=torch.double)
    routed = em_routing(votes, nothing, beta_u, beta_a, 1, 1.0, annealing=0.0)
    assert (routed[1] == 1).all()
    torch.testing.assert_close(routed.logits, beta_a.expand(B, J))


def test_the_first_mean_is_drawn_towards_zero_in_the_authors_code(inputs):
    votes, activations, beta_u, beta_a = inputs
    settings = EMSettings(1, SHARP, damping=0.3, variance_floor=0.01)
    plain = route_by_em(*inputs, settings)
    damped = route_by_em(*inputs, replace(settings, damp_first_mean=True))
    torch.testing.assert_close(damped[0], 0.7 * plain[0])
    weights = activations / activations.sum(dim=1, keepdim=True)
    variances = torch.einsum("bi,bijh->bjh", weights, (votes - 0.7 * plain[0].unsqueeze(1)) ** 2) + 0.01  # about it
    costs = activations.sum(dim=1, keepdim=True) / J * (H * beta_u + variances.sqrt().log().sum(dim=2))
    torch.testing.assert_close(damped.logits, SHARP * (1 - 0.95) * (beta_a - costs))
    second = [route_by_em(*inputs, replace(settings, iterations=2, damp_first_mean=x))[0] for x in (False, True)]
    assert not torch.allclose(*second)
