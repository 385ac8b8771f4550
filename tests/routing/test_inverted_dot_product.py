import math

import pytest
import torch

from capsbench.routing.inverted_dot_product import LEARNT, inverted_dot_product_routing

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


def test_permuting_children_changes_nothing_and_permuting_parents_permutes_them(inputs):
    votes, *learnt = inputs
    poses, activations, couplings = inverted_dot_product_routing(*inputs, 3)
    order = torch.randperm(I)
    found = inverted_dot_product_routing(votes[:, order], *learnt, 3)
    torch.testing.assert_close(found, (poses, activations, couplings[:, order]))
    order = torch.randperm(J)
    found = inverted_dot_product_routing(votes[:, :, order], *learnt, 3)
    torch.testing.assert_close(found, (poses[:, order], activations[:, order], couplings[:, :, order]))


def test_a_sample_does_not_depend_on_its_batch_mates(inputs):
    votes, *learnt = inputs
    together = inverted_dot_product_routing(*inputs, 3)
    for b in range(B):
        alone = inverted_dot_product_routing(votes[b : b + 1], *learnt, 3)
        torch.testing.assert_close(alone, tuple(x[b : b + 1] for x in together))


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
    learnt = {name: torch.zeros({"D": D}[shape], dtype=torch.double) for name, (shape, _) in LEARNT.items()}
    poses, activations, _ = inverted_dot_product_routing(votes, **learnt)
    torch.testing.assert_close(poses.mean(dim=2), torch.zeros(B, J, dtype=torch.double))
    torch.testing.assert_close(poses.square().mean(dim=2), torch.ones(B, J, dtype=torch.double), rtol=0, atol=1e-3)
    torch.testing.assert_close(activations, torch.full((B, J), 0.5, dtype=torch.double))
    assert {name: std for name, (_, std) in LEARNT.items()} == {"gain": 0.0, "shift": 0.0, "readout": 0.1}


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_gradients_agree_with_finite_differences(inputs, iterations):
    leaves = [leaf.clone().requires_grad_() for leaf in inputs]
    assert torch.autograd.gradcheck(lambda *x: inverted_dot_product_routing(*x, iterations), leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("children", [1, 40])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 100.0, 1e4])
def test_values_and_gradients_stay_finite(scale, children, dtype):
    leaves = [scale * draw(3, children, J, 16, seed=0), *(draw(16, seed=s) for s in (1, 2, 3))]
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    for iterations in (1, 5):
        results = inverted_dot_product_routing(*leaves, iterations)
        assert all(x.dtype == dtype and x.isfinite().all() for x in results)
        total = sum(x.float().square().sum() for x in results)
        assert all(g.isfinite().all() for g in torch.autograd.grad(total, leaves))


@pytest.mark.parametrize("iterations", [0, -1])
def test_less_than_one_iteration_is_refused(inputs, iterations):
    with pytest.raises(ValueError, match="at least 1 iteration"):
        inverted_dot_product_routing(*inputs, iterations)
