import math

import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.self_routing import SelfRouting, self_routing

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
    learnt = SelfRouting(LayerSize(I, d, J, D)).double()
    route, bias = learnt.route, learnt.bias
    assert route.shape == (I, J, d) and bias.shape == (I, J)
    assert not route.any() and not bias.any()
    votes, inputs, activations, *_ = arguments
    poses, parents, couplings = self_routing(votes, inputs, activations, route, bias)
    torch.testing.assert_close(couplings, torch.full((B, I, J), 1 / J, dtype=torch.double))
    for output in (poses.square().sum(), parents[:, 0].log().sum()):
        gradients = torch.autograd.grad(output, (route, bias), retain_graph=True)
        assert all(gradient.abs().max() > 1e-3 for gradient in gradients)


def test_a_child_is_routed_by_its_own_pose_alone(arguments):
    votes, inputs, *rest = arguments
    couplings = self_routing(*arguments).couplings
    moved = inputs.clone()
    moved[:, 0] += 1
    found = self_routing(votes + 1, moved, *rest).couplings
    torch.testing.assert_close(found[:, 1:], couplings[:, 1:])
    assert (found[:, 0] - couplings[:, 0]).abs().max() > 0.01


def test_a_child_without_activation_has_no_influence_and_activations_count_in_proportion(arguments):
    votes, inputs, activations, route, bias = arguments
    activations = activations.clone()
    activations[:, 0] = 0
    poses, parents, couplings = self_routing(votes, inputs, activations, route, bias)
    without = self_routing(votes[:, 1:], inputs[:, 1:], activations[:, 1:], route[1:], bias[1:])
    torch.testing.assert_close((poses, parents, couplings[:, 1:]), tuple(without))
    halved = self_routing(votes, inputs, activations / 2, route, bias)  # shares: only proportions act
    torch.testing.assert_close(halved[:2], (poses, parents), rtol=0, atol=1e-5)
    activations[:, 1] = 0.9  # and they do
    assert (self_routing(votes, inputs, activations, route, bias)[1] - parents).abs().max() > 1e-3


def test_a_parent_that_no_child_chooses_stays_finite(arguments):
    votes, inputs, activations, route, bias = (x.float().requires_grad_() for x in arguments)
    offset = torch.zeros(I, J)
    offset[:, 0] = -1e3  # its couplings are zero in float32
    poses, parents, _ = self_routing(votes, inputs, activations, route, bias + offset)
    assert (parents[:, 0] == 0).all() and (poses[:, 0] == 0).all()
    assert torch.autograd.grad(poses.square().sum() + parents.sum(), route)[0].isfinite().all()


def test_the_module_hands_on_what_it_learns_and_its_options():
    poses, weight = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6)
    activations = draw(B, I, seed=1).sigmoid()
    routing = SelfRouting(LayerSize(I, 7, J, D)).double()
    for seed, parameter in enumerate(routing.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed)
    expected = self_routing(stored_votes(poses, weight), poses, activations, routing.route, routing.bias)
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
