import pytest
import torch

from capsbench.routing.dynamic import dynamic_routing
from capsbench.routing.squash import squash
from capsbench.routing.uniform import uniform_routing

B, I, J, D = 3, 6, 4, 5  # noqa: E741


@pytest.fixture
def votes() -> torch.Tensor:
    return torch.randn(B, I, J, D, dtype=torch.double, generator=torch.Generator().manual_seed(0), requires_grad=True)


def test_two_children_by_hand():
    votes = torch.tensor([[[[6.0, 0.0], [0.0, 0.0]], [[0.0, 8.0], [0.0, 2.0]]]])  # two children, two parents
    poses, couplings = uniform_routing(votes)
    # parent 0: s = (3, 4), length 5, squashed to 25/26; parent 1: s = (0, 1), squashed to 1/2
    torch.testing.assert_close(poses, torch.tensor([[[3 / 5 * 25 / 26, 4 / 5 * 25 / 26], [0.0, 0.5]]]))
    torch.testing.assert_close(couplings, torch.full((1, 2, 2), 0.5))


def test_it_is_dynamic_routing_at_one_iteration_value_and_gradient(votes):
    found, expected = uniform_routing(votes), dynamic_routing(votes, iterations=1)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(poses.square().sum(), votes)[0] for poses, _ in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_each_input_shares_itself_out_over_the_outputs(votes):
    poses, couplings = uniform_routing(votes)
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    torch.testing.assert_close(poses, squash(torch.einsum("bij,bijd->bjd", couplings, votes)))


def test_permuting_inputs_changes_nothing_and_permuting_outputs_permutes_poses(votes):
    poses, _ = uniform_routing(votes)
    order_in, order_out = torch.randperm(I), torch.randperm(J)
    torch.testing.assert_close(uniform_routing(votes[:, order_in])[0], poses)
    torch.testing.assert_close(uniform_routing(votes[:, :, order_out])[0], poses[:, order_out])


def test_a_sample_does_not_depend_on_its_batch_mates(votes):
    together = uniform_routing(votes)
    for b in range(B):
        torch.testing.assert_close(uniform_routing(votes[b : b + 1]), tuple(x[b : b + 1] for x in together))


def test_gradients_agree_with_finite_differences(votes):
    assert torch.autograd.gradcheck(lambda v: uniform_routing(v)[0], (votes,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4])
def test_values_and_gradients_stay_finite(votes, scale, dtype):
    votes = (scale * votes.detach()).to(dtype).requires_grad_()
    poses, couplings = uniform_routing(votes)
    assert poses.dtype == couplings.dtype == dtype
    assert poses.isfinite().all() and couplings.isfinite().all()
    assert torch.autograd.grad(poses.float().square().sum(), votes)[0].isfinite().all()
