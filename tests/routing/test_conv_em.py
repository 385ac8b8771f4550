"""EM routing of children on a grid, where parents at different positions compete for a child."""

import math

import pytest
import torch
import torch.nn.functional as F
from test_em import ITERATIONS, SHARP, B, H, I, J, draw, paper

from capsbench.routing import conv_em_routing, em_routing
from capsbench.routing.em import AUTHORS, EMSettings

SIDE, KERNEL, TYPES = 4, 3, 2  # a 4x4 grid of 2 child types under 3x3 kernels of stride 1: 2x2 parent positions
CHILDREN = torch.arange(SIDE * SIDE).view(SIDE, SIDE).unfold(0, KERNEL, 1).unfold(1, KERNEL, 1).reshape(4, 9)
N = KERNEL * KERNEL * TYPES


def settings(iterations=3, inverse_temperature=0.01, damping=0.0, variance_floor=1e-4):
    """Settings with the defaults of `em_routing`, which are not those of the networks."""
    return EMSettings(iterations, inverse_temperature, damping, variance_floor)


@pytest.fixture
def grid_inputs():
    """votes, activations, children, beta_u, beta_a of the convolutional form."""
    votes, activations = draw(B, 4, N, J, H, seed=0), draw(B, SIDE * SIDE, TYPES, seed=1).sigmoid()
    return votes, activations, CHILDREN, draw(J, seed=2), draw(J, seed=3)


@pytest.mark.parametrize("inverse_temperature", [0.01, SHARP])
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_the_papers_procedure_where_children_feed_parents_at_several_positions(
    grid_inputs, iterations, inverse_temperature
):
    votes, activations, children, beta_u, beta_a = grid_inputs
    means, parents, assignments = conv_em_routing(*grid_inputs, settings(iterations, inverse_temperature, 0.1))
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
def test_each_child_shares_itself_out_over_parents_of_all_positions(grid_inputs, iterations):
    assignments = conv_em_routing(*grid_inputs, settings(iterations, SHARP))[2]  # [B, P, N, J]
    shares = assignments.sum(dim=3).unflatten(2, (9, TYPES)).flatten(1, 2)  # [B, P * 9, T]
    totals = torch.zeros(B, SIDE * SIDE, TYPES, dtype=torch.double).index_add(1, CHILDREN.flatten(), shares)
    torch.testing.assert_close(totals, torch.ones_like(totals))
    if iterations > 1:  # positions compete: they do not each get the part that they start from
        assert (shares - 1 / torch.bincount(CHILDREN.flatten())[CHILDREN.flatten()][:, None]).abs().max() > 0.01


def test_a_child_starts_uniform_over_the_parents_that_it_feeds(grid_inputs):
    assignments = conv_em_routing(*grid_inputs, settings(1))[2].unflatten(2, (9, TYPES))
    # the corner of the grid feeds the 4 types of one position, its neighbour those of two, the middle those of four
    for place, parents in ((0, 4), (1, 8), (4, 16)):
        expected = torch.full((B, TYPES, J), 1 / parents, dtype=torch.double)
        torch.testing.assert_close(assignments[:, 0, place], expected)


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_one_parent_position_is_the_fully_connected_form(iterations):
    votes, activations = draw(B, I, J, H, seed=0), draw(B, I, seed=1).sigmoid()
    beta_u, beta_a = draw(J, seed=2), draw(J, seed=3)
    plain = em_routing(votes, activations, beta_u, beta_a, iterations, SHARP, 0.1)
    arguments = (beta_u, beta_a, settings(iterations, SHARP, 0.1))
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
    before = conv_em_routing(*grid_inputs, settings(3, SHARP))[2]  # [B, P, N, J]
    votes = votes.clone()
    votes[:, 3] *= 0.01  # the parents at position 3 now agree, and hold what they share with position 0
    after = conv_em_routing(votes, activations, children, beta_u, beta_a, settings(3, SHARP))[2]
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


def test_a_sample_on_a_grid_does_not_depend_on_its_batch_mates(grid_inputs):
    votes, activations, *rest = grid_inputs
    together = conv_em_routing(*grid_inputs, settings(3, SHARP))
    alone = conv_em_routing(votes[1:], activations[1:], *rest, settings(3, SHARP))
    torch.testing.assert_close(alone, tuple(x[1:] for x in together))


def test_gradients_agree_with_finite_differences_on_a_grid():
    children = torch.tensor([[0, 1], [1, 2]])
    leaves = [draw(1, 2, 4, 2, 2, seed=0), draw(1, 3, 2, seed=1).sigmoid(), draw(2, seed=2), draw(2, seed=3)]
    leaves = [leaf.requires_grad_() for leaf in leaves]

    def route(votes, activations, *betas):
        return conv_em_routing(votes, activations, children, *betas, settings(3, SHARP, 0.1, 0.01))

    assert torch.autograd.gradcheck(route, leaves)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_values_and_gradients_stay_finite_on_a_grid(grid_inputs, scale):
    votes, activations, children, beta_u, beta_a = grid_inputs
    leaves = [x.float().requires_grad_() for x in (scale * votes, activations, beta_u, beta_a)]
    results = conv_em_routing(leaves[0], leaves[1], children, *leaves[2:], settings(5, SHARP))
    assert all(x.isfinite().all() for x in results)
    assert all(g.isfinite().all() for g in torch.autograd.grad(sum(x.square().sum() for x in results), leaves))


def windows(side, stride, kernel=KERNEL):
    """The child position at each place of each parent position's kernel [P, K*K], on a square grid."""
    numbers = torch.arange(side * side).view(side, side)
    return numbers.unfold(0, kernel, stride).unfold(1, kernel, stride).reshape(-1, kernel * kernel)


def authors(votes, activations, children, groups, sigma_biases, activation_biases, iterations, final_beta=0.01):
    """The authors' update_conv_routing for one sample, one number at a time, in its own terms.

    votes [P, N, J, H], activations [C, T], children and groups [P, K*K]: the child at each place of a kernel, and the
    group in which its posterior is normalised, for each child type and each parent type alone; biases lists [J]
    -> {(p, j): centre}, {(p, j): activation}.
    """
    places = [(p, k, t) for p in range(len(children)) for k in range(KERNEL * KERNEL) for t in range(TYPES)]
    entries = [(p, k, t, j) for p, k, t in places for j in range(J)]
    parents = [(p, j) for p in range(len(children)) for j in range(J)]
    vote = {(p, k, t, j): [float(x) for x in votes[p, k * TYPES + t, j]] for p, k, t, j in entries}
    active = {(p, k, t): float(activations[int(children[p, k]), t]) for p, k, t in places}
    group = {(p, k, t, j): (int(groups[p, k]), t, j) for p, k, t, j in entries}
    posterior = dict.fromkeys(entries, 1 / J)
    centre, variance, logit = {parent: [0.0] * H for parent in parents}, {}, {}
    for i in range(iterations):
        beta = final_beta * (1 - 0.95 ** (i + 1))
        for p, j in parents:
            conf = {e: posterior[e] * active[e[:3]] for e in entries if (e[0], e[3]) == (p, j)}
            mass = sum(conf.values()) + 1e-7
            centre[p, j] = [
                0.9 * sum(c * vote[e][h] for e, c in conf.items()) / mass + 0.1 * centre[p, j][h] for h in range(H)
            ]
            variance[p, j] = [
                0.0005 + sum(c * (vote[e][h] - centre[p, j][h]) ** 2 for e, c in conf.items()) / mass for h in range(H)
            ]
            entropy = sigma_biases[j] * H * (math.log(2 * math.pi) + 1)
            win = mass * (-sum(math.log(v) for v in variance[p, j]) - entropy)
            logit[p, j] = beta * (win - 5000 * activation_biases[j])
        prior = {}
        for e in entries:
            at = e[0], e[3]
            log_density = -sum(math.log(2 * math.pi * v) for v in variance[at]) / 2
            log_density -= sum(
                (x - c) ** 2 / (2 * v) for x, c, v in zip(vote[e], centre[at], variance[at], strict=True)
            )
            prior[e] = -math.log1p(math.exp(-logit[at])) + log_density
        totals = {}
        for e in entries:
            totals[group[e]] = totals.get(group[e], 0.0) + math.exp(prior[e])
        posterior = {e: math.exp(prior[e]) / totals[group[e]] for e in entries}
    return centre, {parent: 1 / (1 + math.exp(-x)) for parent, x in logit.items()}


@pytest.mark.parametrize("as_coded", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_the_authors_code_where_positions_of_each_type_share_a_child(iterations, stride, as_coded):
    children = windows(5, stride)
    p = len(children)
    rivals = windows(round(p**0.5) + KERNEL - 1, 1) if as_coded else None
    votes, activations = 0.3 * draw(1, p, N, J, H, seed=0), draw(1, 25, TYPES, seed=1).sigmoid()
    u, a = [0.5, 0.2, 0.8, 0.1], [0.0, 0.002, -0.002, 0.001]
    betas = torch.tensor(u) * (math.log(2 * math.pi) + 1) / 2, -2500 * torch.tensor(a)
    found = conv_em_routing(
        votes, activations, children, *(beta.double() for beta in betas),
        EMSettings(iterations, 2 * 0.1, damping=0.1, variance_floor=5e-4, damp_first_mean=True), "positions", rivals,
    )  # fmt: skip
    groups = children if rivals is None else rivals
    centres, active = authors(votes[0], activations[0], children, groups, u, a, iterations, final_beta=0.1)
    for (q, j), centre in centres.items():
        torch.testing.assert_close(found[0][0, q, j], torch.tensor(centre, dtype=torch.double), rtol=0, atol=1e-5)
        assert float(found[1][0, q, j]) == pytest.approx(active[q, j], abs=1e-5)
    assert max(active.values()) - min(active.values()) > 0.01


@pytest.mark.parametrize("stride", [1, 2])
def test_under_positions_each_parent_type_gets_the_whole_child(stride):
    children = windows(5, stride)
    p = len(children)
    votes, activations = draw(B, p, N, J, H, seed=0), draw(B, 25, TYPES, seed=1).sigmoid()
    first, later = (
        conv_em_routing(
            votes, activations, children, draw(J, seed=2), draw(J, seed=3), settings(r, SHARP), "positions"
        )[2]
        for r in (1, 3)
    )
    torch.testing.assert_close(first, torch.full_like(first, 1 / J))
    shares = later.unflatten(2, (9, TYPES)).flatten(1, 2)  # [B, P * 9, T, J]
    totals = torch.zeros(B, 25, TYPES, J, dtype=torch.double).index_add(1, children.flatten(), shares)
    torch.testing.assert_close(totals, torch.ones_like(totals))
    by_parents = conv_em_routing(
        votes, activations, children, draw(J, seed=2), draw(J, seed=3), settings(3, SHARP), "parents"
    )[2]
    assert float(later.sum() / by_parents.sum()) == pytest.approx(J)  # J times the mass


@pytest.mark.parametrize("n", [2, 3, 6])
def test_rivals_are_the_entries_that_the_authors_patches_sum(n):
    """Their code lays entries (row h, place a of the kernel) out at h k + a, and sums patches, at any stride."""
    k = KERNEL
    entries = torch.eye(n * n * k * k).view(-1, n, n, k, k)  # one image for each entry: 1 there
    image = entries.permute(0, 1, 3, 2, 4).reshape(-1, 1, n * k, n * k)
    # extract_image_patches of the padded image: ksizes k, strides k, rates k - 1
    sums = F.unfold(image, k, dilation=k - 1, padding=(k - 1) ** 2, stride=k).sum(dim=1)
    side = round(sums.shape[1] ** 0.5)
    assert side == n + k - 1
    patches = F.unfold(sums.view(-1, 1, side, side), k)  # ksizes k, strides 1
    counted = patches.transpose(1, 2).reshape(-1, n * n * k * k)  # [entry, the entry in whose total it counts]
    rivals = windows(n + k - 1, 1).flatten()
    assert torch.equal(counted.bool(), rivals[:, None] == rivals)
    assert counted.max() == 1


@pytest.mark.parametrize("stride", [1, 2])
def test_their_sums_run_over_entries_of_other_children_at_stride_2(stride):
    children = windows(5, stride)
    rivals = windows(round(len(children) ** 0.5) + KERNEL - 1, 1)
    together = [len(set(children[rivals == number].tolist())) for number in range(int(rivals.max()) + 1)]
    assert max(together) == (1 if stride == 1 else 4)
    votes, activations = draw(B, len(children), N, J, H, seed=0), draw(B, 25, TYPES, seed=1).sigmoid()
    arguments = votes, activations, children, draw(J, seed=2), draw(J, seed=3), settings(3, SHARP), "positions"
    plain, coded = (conv_em_routing(*arguments, other)[0] for other in (None, rivals))
    assert torch.allclose(plain, coded) == (stride == 1)


def test_rivals_belong_to_positions(grid_inputs):
    with pytest.raises(ValueError, match="rivals belong to 'positions'"):
        conv_em_routing(*grid_inputs, AUTHORS, "parents", CHILDREN)


def test_gradients_agree_with_finite_differences_where_positions_compete():
    children = torch.tensor([[0, 1], [1, 2]])
    leaves = [draw(1, 2, 4, 2, 2, seed=0), draw(1, 3, 2, seed=1).sigmoid(), draw(2, seed=2), draw(2, seed=3)]
    leaves = [leaf.requires_grad_() for leaf in leaves]

    def route(votes, activations, *betas):
        return conv_em_routing(votes, activations, children, *betas, settings(3, SHARP, 0.1, 0.01), "positions")

    assert torch.autograd.gradcheck(route, leaves)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_values_and_gradients_stay_finite_where_positions_compete(grid_inputs, scale):
    votes, activations, children, beta_u, beta_a = grid_inputs
    leaves = [x.float().requires_grad_() for x in (scale * votes, activations, beta_u, beta_a)]
    results = conv_em_routing(leaves[0], leaves[1], children, *leaves[2:], settings(5, SHARP), "positions")
    assert all(x.isfinite().all() for x in results)
    assert all(g.isfinite().all() for g in torch.autograd.grad(sum(x.square().sum() for x in results), leaves))


@pytest.mark.parametrize("iterations", [0, -1])
def test_less_than_one_iteration_is_refused(grid_inputs, iterations):
    with pytest.raises(ValueError, match="at least 1 iteration"):
        conv_em_routing(*grid_inputs, settings(iterations))
