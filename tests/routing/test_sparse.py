import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.contract import squash
from capsbench.routing.dynamic import dynamic_routing
from capsbench.routing.sparse import SparseRouting, sparse_routing

B, I, J, D = 3, 6, 4, 5  # noqa: E741
ITERATIONS = [1, 2, 3, 5]


@pytest.fixture
def votes() -> torch.Tensor:
    return torch.randn(B, I, J, D, dtype=torch.double, generator=torch.Generator().manual_seed(0), requires_grad=True)


def plain(votes, iterations, keep):
    """Dynamic routing, one capsule at a time, with the couplings of each input cut down and renormalised."""
    poses = torch.zeros(B, J, D, dtype=votes.dtype)
    couplings = torch.zeros(B, I, J, dtype=votes.dtype)
    for b in range(B):
        logits = torch.zeros(I, J, dtype=votes.dtype)
        for _ in range(iterations):
            c = torch.stack([row.exp() / row.exp().sum() for row in logits])
            for i in range(I):
                least = sorted(c[i].tolist(), reverse=True)[min(keep, J) - 1]
                c[i] = torch.tensor([x if x >= least else 0.0 for x in c[i].tolist()], dtype=votes.dtype)
                c[i] = c[i] / c[i].sum()
            v = torch.stack([squash(sum(c[i, j] * votes[b, i, j] for i in range(I))) for j in range(J)])
            logits = logits + torch.tensor([[float(votes[b, i, j] @ v[j]) for j in range(J)] for i in range(I)])
        poses[b], couplings[b] = v, c
    return poses, poses.norm(dim=2), couplings


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_it_is_dynamic_routing_with_couplings_cut_down_and_renormalised(votes, iterations, keep):
    with torch.no_grad():
        expected = plain(votes, iterations, keep)
        torch.testing.assert_close(tuple(sparse_routing(votes, iterations, keep)), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("keep", [J, J + 5])
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_keeping_all_is_dynamic_routing_value_and_gradient(votes, iterations, keep):
    found, _, couplings = sparse_routing(votes, iterations, keep)
    expected, expected_couplings = dynamic_routing(votes, iterations)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(couplings, expected_couplings)
    gradients = [torch.autograd.grad(poses.square().sum(), votes)[0] for poses in (found, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("keep", [1, 2, J])
def test_one_iteration_is_the_uniform_average(votes, keep):
    poses, _, couplings = sparse_routing(votes, 1, keep)
    torch.testing.assert_close(poses, squash(votes.sum(dim=1) / J))
    torch.testing.assert_close(couplings, torch.full((B, I, J), 1 / J, dtype=torch.double))


def test_two_iterations_by_hand():
    votes = torch.tensor([[[[6.0], [3.0], [0.0]]]])  # one child, three parents
    # uniform: s = (2, 1, 0), v = (4/5, 1/2, 0), agreements (4.8, 1.5, 0)
    for keep, kept in ((1, [0]), (2, [0, 1])):
        poses, _, couplings = sparse_routing(votes, 2, keep)
        c = torch.zeros(3)
        c[kept] = torch.tensor([4.8, 1.5, 0.0])[kept].softmax(dim=0)
        torch.testing.assert_close(couplings, c.view(1, 1, 3))
        torch.testing.assert_close(poses, squash(c.view(1, 3, 1) * votes[:, 0]))


@pytest.mark.parametrize("keep", [1, 2, 3, 4])
@pytest.mark.parametrize("iterations", [2, 3, 5])
def test_each_input_shares_itself_out_over_the_outputs_it_keeps(votes, iterations, keep):
    couplings = sparse_routing(votes, iterations, keep).couplings
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    assert ((couplings > 0).sum(dim=2) == keep).all()


def test_outputs_that_tie_are_kept_together():
    votes = torch.ones(1, 2, 3, 1)
    votes[:, :, 2] = 0.0  # parents 0 and 1 alike, parent 2 behind
    couplings = sparse_routing(votes, 2, keep=1).couplings
    torch.testing.assert_close(couplings, torch.tensor([0.5, 0.5, 0.0]).expand(1, 2, 3))
    couplings = sparse_routing(torch.zeros(1, 2, 3, 1), 3, keep=1).couplings  # votes that say nothing
    torch.testing.assert_close(couplings, torch.full((1, 2, 3), 1 / 3))


def test_a_dropped_output_may_come_back():
    votes = torch.tensor([[1.2, 1.0], [0.9, 1.0], [0.9, 1.0], [0.9, 1.0]]).view(1, 4, 2, 1)
    # uniform: v = squash(1.95, 2) = (0.79, 0.8); the first child prefers parent 0 (0.95 to 0.8), the others parent 1;
    # then v = squash(1.2, 3) = (0.59, 0.9), and the first child's agreements add up to 1.66 to 1.7
    second, third = (sparse_routing(votes, iterations, keep=1).couplings[0] for iterations in (2, 3))
    torch.testing.assert_close(second, torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]]))
    torch.testing.assert_close(third, torch.tensor([[0.0, 1.0]]).expand(4, 2))


def test_options_act(votes):
    results = [sparse_routing(votes, iterations, keep)[0] for iterations, keep in ((3, 1), (3, 2), (3, 3), (2, 2))]
    for n, one in enumerate(results):
        assert all((one - other).abs().max() > 1e-3 for other in results[:n])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("keep", [1, J])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4])
def test_dropped_and_tied_couplings_have_finite_gradients(votes, scale, keep, dtype):
    votes = (scale * votes.detach()).to(dtype).requires_grad_()
    poses, _, couplings = sparse_routing(votes, 5, keep)
    assert poses.isfinite().all() and couplings.isfinite().all()
    total = poses.float().square().sum() + couplings.float().square().sum()
    assert torch.autograd.grad(total, votes)[0].isfinite().all()


@pytest.mark.parametrize("number", [0, -1])
def test_less_than_one_iteration_or_coupling_is_refused(votes, number):
    with pytest.raises(ValueError, match="at least 1 iteration"):
        sparse_routing(votes, iterations=number)
    with pytest.raises(ValueError, match="at least 1 coupling"):
        sparse_routing(votes, keep=number)


def test_the_module_hands_on_what_it_learns_and_its_options():
    def draw(*shape, seed):
        return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))

    poses, weight = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6)
    activations = draw(B, I, seed=1).sigmoid()
    routing = SparseRouting(LayerSize(I, 7, J, D), iterations=4, keep=3).double()
    for seed, parameter in enumerate(routing.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed)
    expected = sparse_routing(stored_votes(poses, weight), 4, 3)
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
