import pytest
import torch

from capsbench.routing.contract import squash
from capsbench.routing.dynamic import dynamic_routing
from capsbench.routing.uniform import uniform_routing

B, I, J, D = 3, 6, 4, 5  # noqa: E741


@pytest.fixture
def votes() -> torch.Tensor:
    return torch.randn(B, I, J, D, dtype=torch.double, generator=torch.Generator().manual_seed(0), requires_grad=True)


def test_two_children_by_hand():
    votes = torch.tensor([[[[6.0, 0.0], [0.0, 0.0]], [[0.0, 8.0], [0.0, 2.0]]]])  # two children, two parents
    poses, activations, couplings = uniform_routing(votes)
    # parent 0: s = (3, 4), length 5, squashed to 25/26; parent 1: s = (0, 1), squashed to 1/2
    torch.testing.assert_close(poses, torch.tensor([[[3 / 5 * 25 / 26, 4 / 5 * 25 / 26], [0.0, 0.5]]]))
    torch.testing.assert_close(activations, torch.tensor([[25 / 26, 0.5]]))
    torch.testing.assert_close(couplings, torch.full((1, 2, 2), 0.5))


def test_it_is_dynamic_routing_at_one_iteration_value_and_gradient(votes):
    found, _, couplings = uniform_routing(votes)
    expected, expected_couplings = dynamic_routing(votes, iterations=1)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(couplings, expected_couplings)
    gradients = [torch.autograd.grad(poses.square().sum(), votes)[0] for poses in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_each_input_shares_itself_out_over_the_outputs(votes):
    poses, _, couplings = uniform_routing(votes)
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    torch.testing.assert_close(poses, squash(torch.einsum("bij,bijd->bjd", couplings, votes)))
