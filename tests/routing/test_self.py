import math

import pytest
import torch

from capsbench.routing.self import LEARNT, self_routing

B, I, J, D, d = 3, 6, 4, 5, 7  # noqa: E741


def draw(*shape, seed):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def arguments():
    """votes, inputs, activations, route, bias."""
    return (
        draw(B, I, J, D, seed=0), draw(B, I, d, seed=1), draw(B, I, seed=2).sigmoid(), draw(I, J, d, seed=3),
        draw(I, J, seed=4),
    )  # fmt: skip


def paper(votes, inputs, activations, route, bias):
    """The equations of Hahn 2019 with the bias of the authors' code, one capsule at a time, in plain Python."""
    poses, parents, couplings = torch.zeros(B, J, D), torch.zeros(B, J), torch.zeros(B, I, J)
    for b in range(B):
        a = activations[b].tolist()
        for i in range(I):
            logits = [float(route[i, j] @ inputs[b, i] + bias[i, j]) for j in range(J)]
            for j in range(J):
                couplings[b, i, j] = math.exp(logits[j]) / sum(math.exp(x) for x in logits)
        for j in range(J):
            c = couplings[b, :, j].tolist()
            mass = sum(c[i] * a[i] for i in range(I))
            parents[b, j] = mass / sum(a)
            poses[b, j] = sum(c[i] * a[i] * votes[b, i, j] for i in range(I)) / mass
    return poses, parents, couplings


def test_it_follows_the_papers_equations(arguments):
    found = tuple(x.float() for x in self_routing(*arguments))
    torch.testing.assert_close(found, paper(*arguments), rtol=2e-6, atol=2e-6)  # EPSILON is in ours alone


def test_two_children_by_hand():
    votes = torch.tensor([[[[4.0], [1.0]], [[8.0], [3.0]]]])  # two children, two parents
    inputs = torch.tensor([[[1.0], [2.0]]])
    activations = torch.tensor([[1.0, 0.5]])
    route = torch.tensor([[[math.log(3.0)], [0.0]], [[0.0], [0.0]]])  # child 0: (3/4, 1/4); child 1 by its bias
    bias = torch.tensor([[0.0, 0.0], [0.0, math.log(4.0)]])  # (1/5, 4/5)
    poses, parents, couplings = self_routing(votes, inputs, activations, route, bias)
    torch.testing.assert_close(couplings, torch.tensor([[[0.75, 0.25], [0.2, 0.8]]]))
    # mass of parent 0: 0.75 + 0.2 * 0.5 = 0.85, of parent 1: 0.25 + 0.8 * 0.5 = 0.65; of the children 1.5
    torch.testing.assert_close(parents, torch.tensor([[0.85 / 1.5, 0.65 / 1.5]]), rtol=0, atol=1e-6)
    expected = torch.tensor([[[(0.75 * 4 + 0.1 * 8) / 0.85], [(0.25 * 1 + 0.4 * 3) / 0.65]]])
    torch.testing.assert_close(poses, expected, rtol=0, atol=2e-6)


def test_couplings_of_a_child_and_activations_of_the_parents_sum_to_one(arguments):
    _, parents, couplings = self_routing(*arguments)
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    torch.testing.assert_close(parents.sum(dim=1), torch.ones(B, dtype=torch.double), rtol=0, atol=1e-6)
    assert (couplings.sum(dim=1) - 1).abs().max() > 0.1  # and not over the children


def test_learnt_tensors_start_uniform_and_still_learn(arguments):
    assert {name: std for name, (_, std) in LEARNT.items()} == {"route": 0.0, "bias": 0.0}
    assert [LEARNT[name][0] for name in ("route", "bias")] == ["IJd", "IJ"]
    votes, inputs, activations, route, bias = arguments
    route, bias = torch.zeros_like(route).requires_grad_(), torch.zeros_like(bias).requires_grad_()
    poses, parents, couplings = self_routing(votes, inputs, activations, route, bias)
    torch.testing.assert_close(couplings, torch.full((B, I, J), 1 / J, dtype=torch.double))
    for output in (poses.square().sum(), parents[:, 0].log().sum()):
        gradients = torch.autograd.grad(output, (route, bias), retain_graph=True)
        assert all(gradient.abs().max() > 1e-3 for gradient in gradients)


def test_a_child_is_routed_by_its_own_pose_alone(arguments):
    votes, inputs, *rest = arguments
    couplings = self_routing(*arguments)[2]
    moved = inputs.clone()
    moved[:, 0] += 1
    found = self_routing(votes + 1, moved, *rest)[2]
    torch.testing.assert_close(found[:, 1:], couplings[:, 1:])
    assert (found[:, 0] - couplings[:, 0]).abs().max() > 0.01


def test_a_child_without_activation_has_no_influence_and_activations_count_in_proportion(arguments):
    votes, inputs, activations, route, bias = arguments
    activations = activations.clone()
    activations[:, 0] = 0
    poses, parents, couplings = self_routing(votes, inputs, activations, route, bias)
    without = self_routing(votes[:, 1:], inputs[:, 1:], activations[:, 1:], route[1:], bias[1:])
    torch.testing.assert_close((poses, parents, couplings[:, 1:]), without)
    halved = self_routing(votes, inputs, activations / 2, route, bias)  # shares: only proportions act
    torch.testing.assert_close(halved[:2], (poses, parents), rtol=0, atol=1e-5)
    activations[:, 1] = 0.9  # and they do
    assert (self_routing(votes, inputs, activations, route, bias)[1] - parents).abs().max() > 1e-3


def test_permuting_children_changes_nothing_and_permuting_parents_permutes_them(arguments):
    votes, inputs, activations, route, bias = arguments
    poses, parents, couplings = self_routing(*arguments)
    order = torch.randperm(I)
    found = self_routing(votes[:, order], inputs[:, order], activations[:, order], route[order], bias[order])
    torch.testing.assert_close(found, (poses, parents, couplings[:, order]))
    order = torch.randperm(J)
    found = self_routing(votes[:, :, order], inputs, activations, route[:, order], bias[:, order])
    torch.testing.assert_close(found, (poses[:, order], parents[:, order], couplings[:, :, order]))


def test_a_sample_does_not_depend_on_its_batch_mates(arguments):
    *sample, route, bias = arguments
    together = self_routing(*arguments)
    for b in range(B):
        alone = self_routing(*(x[b : b + 1] for x in sample), route, bias)
        torch.testing.assert_close(alone, tuple(x[b : b + 1] for x in together))


def test_gradients_agree_with_finite_differences(arguments):
    votes, inputs, activations, route, bias = arguments
    leaves = votes[:2, :3, :3, :2], inputs[:2, :3, :2], activations[:2, :3], route[:3, :3, :2], bias[:3, :3]
    assert torch.autograd.gradcheck(self_routing, [leaf.clone().requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", [0.0, 1e-30, 1.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_values_and_gradients_stay_finite(arguments, scale, activation, dtype):
    votes, inputs, activations, route, bias = arguments
    leaves = scale * votes, scale * inputs, torch.full_like(activations, activation), route, bias
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    results = self_routing(*leaves)
    assert all(x.dtype == dtype and x.isfinite().all() for x in results)
    total = sum(x.float().square().sum() for x in results)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(total, leaves))
    if activation == 0:
        assert (results[0] == 0).all() and (results[1] == 0).all()


def test_a_parent_that_no_child_chooses_stays_finite(arguments):
    votes, inputs, activations, route, bias = (x.float().requires_grad_() for x in arguments)
    offset = torch.zeros(I, J)
    offset[:, 0] = -1e3  # its couplings are zero in float32
    poses, parents, _ = self_routing(votes, inputs, activations, route, bias + offset)
    assert (parents[:, 0] == 0).all() and (poses[:, 0] == 0).all()
    assert torch.autograd.grad(poses.square().sum() + parents.sum(), route)[0].isfinite().all()
