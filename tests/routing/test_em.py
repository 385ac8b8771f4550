import math

import pytest
import torch

from capsbench.routing import conv_em_routing, em_routing
from capsbench.routing.moments import squared_distances, weighted_moments

B, I, J, H = 2, 6, 4, 5  # noqa: E741
ITERATIONS = [1, 2, 3, 5]
SIDE, KERNEL, TYPES = 4, 3, 2  # a 4x4 grid of 2 child types under 3x3 kernels of stride 1: 2x2 parent positions
CHILDREN = torch.arange(SIDE * SIDE).view(SIDE, SIDE).unfold(0, KERNEL, 1).unfold(1, KERNEL, 1).reshape(4, 9)
N = KERNEL * KERNEL * TYPES
SHARP = 1.0  # an inverse temperature that makes activations of these small cases differ


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def inputs():
    """votes, activations, beta_u, beta_a of the fully connected form."""
    return draw(B, I, J, H, seed=0), draw(B, I, seed=1).sigmoid(), draw(J, seed=2), draw(J, seed=3)


@pytest.fixture
def grid_inputs():
    """votes, activations, children, beta_u, beta_a of the convolutional form."""
    votes, activations = draw(B, 4, N, J, H, seed=0), draw(B, SIDE * SIDE, TYPES, seed=1).sigmoid()
    return votes, activations, CHILDREN, draw(J, seed=2), draw(J, seed=3)


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


@pytest.mark.parametrize("inverse_temperature", [0.01, SHARP])
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_the_papers_procedure_where_children_feed_parents_at_several_positions(
    grid_inputs, iterations, inverse_temperature
):
    votes, activations, children, beta_u, beta_a = grid_inputs
    means, parents, assignments = conv_em_routing(*grid_inputs, iterations, inverse_temperature, 0.1)
    for b in range(B):
        links, place = {}, {}
        for p in range(4):
            for k in range(9):
                for kind in range(TYPES):
                    for j in range(J):
                        link = ((int(children[p, k]), kind), (p, j))
                        place[link] = (p, k * TYPES + kind, j)
                        links[link] = votes[(b, *place[link])]
        betas = [{(p, j): beta[j] for p in range(4) for j in range(J)} for beta in (beta_u, beta_a)]
        mu, a, R = paper(links, activations[b], *betas, iterations, inverse_temperature, 0.1)
        for (p, j), mean in mu.items():
            torch.testing.assert_close(means[b, p, j], torch.tensor(mean, dtype=torch.double), rtol=0, atol=1e-5)
            assert float(parents[b, p, j]) == pytest.approx(a[p, j], abs=1e-5)
        found = [float(assignments[(b, *place[link])]) for link in links]
        assert found == pytest.approx([R[link] for link in links], abs=1e-5)


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_each_child_shares_itself_out_over_its_parents(inputs, iterations):
    assignments = em_routing(*inputs, iterations, SHARP)[2]
    torch.testing.assert_close(assignments.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    if iterations > 1:
        assert (assignments.sum(dim=1) - I / J).abs().max() > 0.01  # and not over the children


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_each_child_shares_itself_out_over_parents_of_all_positions(grid_inputs, iterations):
    assignments = conv_em_routing(*grid_inputs, iterations, SHARP)[2]  # [B, P, N, J]
    shares = assignments.sum(dim=3).unflatten(2, (9, TYPES)).flatten(1, 2)  # [B, P * 9, T]
    totals = torch.zeros(B, SIDE * SIDE, TYPES, dtype=torch.double).index_add(1, CHILDREN.flatten(), shares)
    torch.testing.assert_close(totals, torch.ones_like(totals))
    if iterations > 1:  # positions compete: they do not each get the part that they start from
        assert (shares - 1 / torch.bincount(CHILDREN.flatten())[CHILDREN.flatten()][:, None]).abs().max() > 0.01


def test_a_child_starts_uniform_over_the_parents_that_it_feeds(grid_inputs):
    assignments = conv_em_routing(*grid_inputs, iterations=1)[2].unflatten(2, (9, TYPES))
    # the corner of the grid feeds the 4 types of one position, its neighbour those of two, the middle those of four
    for place, parents in ((0, 4), (1, 8), (4, 16)):
        expected = torch.full((B, TYPES, J), 1 / parents, dtype=torch.double)
        torch.testing.assert_close(assignments[:, 0, place], expected)


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_one_parent_position_is_the_fully_connected_form(inputs, iterations):
    votes, activations, beta_u, beta_a = inputs
    arguments = (beta_u, beta_a, iterations, SHARP, 0.1)
    plain = em_routing(votes, activations, *arguments)
    as_positions = conv_em_routing(
        votes.unsqueeze(1), activations.unsqueeze(2), torch.arange(I).unsqueeze(0), *arguments
    )
    as_types = conv_em_routing(
        votes.unsqueeze(1), activations.unsqueeze(1), torch.zeros(1, 1, dtype=torch.long), *arguments
    )
    for expected, *found in zip(plain, as_positions, as_types, strict=True):
        for one in found:
            torch.testing.assert_close(one.squeeze(1), expected)


def test_parents_of_other_positions_take_a_child_away(grid_inputs):
    votes, activations, children, beta_u, beta_a = grid_inputs
    before = conv_em_routing(*grid_inputs, 3, SHARP)[2]  # [B, P, N, J]
    votes = votes.clone()
    votes[:, 3] *= 0.01  # the parents at position 3 now agree, and hold what they share with position 0
    after = conv_em_routing(votes, activations, children, beta_u, beta_a, 3, SHARP)[2]
    shared = [k for k in range(9) if children[0, k] in children[3]]
    before, after = (x[:, 0].sum(dim=2).unflatten(1, (9, TYPES))[:, shared] for x in (before, after))
    assert len(shared) == 4
    assert before.mean() > 0.2
    assert after.max() < 0.01


def test_children_that_feed_no_parent_do_no_harm(grid_inputs):
    votes, activations, children, beta_u, beta_a = grid_inputs
    more = torch.cat([activations, torch.ones(B, 3, TYPES, dtype=torch.double)], dim=1).requires_grad_()
    found = conv_em_routing(votes, more, children, beta_u, beta_a)
    torch.testing.assert_close(found, conv_em_routing(*grid_inputs))
    gradient = torch.autograd.grad(found[1].sum(), more)[0]
    assert gradient.isfinite().all()
    assert not gradient[:, -3:].any()


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


def test_permuting_children_changes_nothing_and_permuting_parents_permutes_them(inputs):
    votes, activations, beta_u, beta_a = inputs
    means, parents, assignments = em_routing(*inputs, 3, SHARP)
    order = torch.randperm(I)
    found = em_routing(votes[:, order], activations[:, order], beta_u, beta_a, 3, SHARP)
    torch.testing.assert_close(found, (means, parents, assignments[:, order]))
    order = torch.randperm(J)
    found = em_routing(votes[:, :, order], activations, beta_u[order], beta_a[order], 3, SHARP)
    torch.testing.assert_close(found, (means[:, order], parents[:, order], assignments[:, :, order]))


def test_a_sample_does_not_depend_on_its_batch_mates(inputs, grid_inputs):
    votes, activations, *rest = inputs
    together = em_routing(*inputs, 3, SHARP)
    for b in range(B):
        alone = em_routing(votes[b : b + 1], activations[b : b + 1], *rest, 3, SHARP)
        torch.testing.assert_close(alone, tuple(x[b : b + 1] for x in together))
    votes, activations, *rest = grid_inputs
    together = conv_em_routing(*grid_inputs, 3, SHARP)
    torch.testing.assert_close(
        conv_em_routing(votes[1:], activations[1:], *rest, 3, SHARP), tuple(x[1:] for x in together)
    )


def test_a_child_without_activation_has_no_influence_and_its_size_matters(inputs):
    votes, activations, *betas = inputs
    activations = activations.clone()
    activations[:, 0] = 0
    means, parents, assignments = em_routing(votes, activations, *betas, 3, SHARP)
    without = em_routing(votes[:, 1:], activations[:, 1:], *betas, 3, SHARP)
    torch.testing.assert_close((means, parents, assignments[:, 1:]), without)

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


def test_gradients_agree_with_finite_differences_on_a_grid():
    children = torch.tensor([[0, 1], [1, 2]])
    leaves = [draw(1, 2, 4, 2, 2, seed=0), draw(1, 3, 2, seed=1).sigmoid(), draw(2, seed=2), draw(2, seed=3)]
    leaves = [leaf.requires_grad_() for leaf in leaves]

    def route(votes, activations, *betas):
        return conv_em_routing(votes, activations, children, *betas, 3, SHARP, 0.1, 0.01)

    assert torch.autograd.gradcheck(route, leaves)


def test_sums_of_squared_deviations(inputs, monkeypatch):
    from capsbench.routing import moments

    votes = draw(7, 3, 5, 2, seed=0).requires_grad_()
    weights, precisions = (draw(*shape, seed=4).sigmoid().requires_grad_() for shape in ((7, 3, 5), (7, 3, 2)))
    other = draw(7, 3, 2, seed=5).requires_grad_()
    monkeypatch.setattr(moments, "_SCRATCH_ELEMENTS", 60)  # two rows at a time, and one at the end
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


EXTREMES = {
    "large votes": (100.0, 1.0),
    "huge votes": (1e4, 1.0),
    "small votes": (1e-6, 1.0),
    "identical votes": (0.0, 1.0),
    "no activation": (1.0, 0.0),
    "next to no activation": (1.0, 1e-30),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("children", [1, 40])
@pytest.mark.parametrize(("scale", "activation"), EXTREMES.values(), ids=list(EXTREMES))
def test_values_and_gradients_stay_finite(scale, activation, children, dtype):
    votes = (scale * draw(3, children, J, 16, seed=0) + (scale == 0)).to(dtype)
    leaves = [votes, torch.full((3, children), activation, dtype=dtype), torch.ones(J, dtype=dtype)]
    leaves = [leaf.requires_grad_() for leaf in (*leaves, torch.ones(J, dtype=dtype))]
    for inverse_temperature in (0.01, SHARP):
        results = em_routing(*leaves, 5, inverse_temperature)
        assert all(x.dtype == dtype and x.isfinite().all() for x in results)
        total = sum(x.float().square().sum() for x in results)
        assert all(g.isfinite().all() for g in torch.autograd.grad(total, leaves))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_values_and_gradients_stay_finite_on_a_grid(grid_inputs, scale):
    votes, activations, children, beta_u, beta_a = grid_inputs
    leaves = [x.float().requires_grad_() for x in (scale * votes, activations, beta_u, beta_a)]
    results = conv_em_routing(leaves[0], leaves[1], children, *leaves[2:], 5, SHARP)
    assert all(x.isfinite().all() for x in results)
    assert all(g.isfinite().all() for g in torch.autograd.grad(sum(x.square().sum() for x in results), leaves))


def test_half_precision_is_computed_in_full(inputs):
    halves = [x.bfloat16() for x in inputs]
    found = em_routing(*halves, 3, SHARP)
    expected = em_routing(*(x.float() for x in halves), 3, SHARP)
    torch.testing.assert_close(found, tuple(x.bfloat16() for x in expected))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(em_routing(*(x.float() for x in halves), 3, SHARP), expected)


@pytest.mark.parametrize("iterations", [0, -1])
def test_less_than_one_iteration_is_refused(inputs, grid_inputs, iterations):
    with pytest.raises(ValueError, match="at least 1 iteration"):
        em_routing(*inputs, iterations)
    with pytest.raises(ValueError, match="at least 1 iteration"):
        conv_em_routing(*grid_inputs, iterations)
