"""EM routing of children on a grid, where parents at different positions compete for a child."""

import pytest
import torch
from test_em import ITERATIONS, SHARP, B, H, I, J, draw, paper

from capsbench.routing import conv_em_routing, em_routing
from capsbench.routing.em import EMSettings

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


@pytest.mark.parametrize("iterations", [0, -1])
def test_less_than_one_iteration_is_refused(grid_inputs, iterations):
    with pytest.raises(ValueError, match="at least 1 iteration"):
        conv_em_routing(*grid_inputs, settings(iterations))
