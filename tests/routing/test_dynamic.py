import pytest
import torch

from capsbench.routing import LayerSize, dynamic_routing, linear_dynamic_routing, squash
from capsbench.routing.dynamic import DynamicRouting, linear_dynamic_routing_with_couplings

B, I, J, D, d = 3, 7, 5, 6, 4  # noqa: E741
ITERATIONS = [1, 2, 3, 5]


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(B, I, d, dtype=torch.double, generator=torch.Generator().manual_seed(0), requires_grad=True)


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.randn(I, J, D, d, dtype=torch.double, generator=torch.Generator().manual_seed(1), requires_grad=True)


@pytest.fixture
def bias() -> torch.Tensor:
    return torch.randn(J, D, dtype=torch.double, generator=torch.Generator().manual_seed(2), requires_grad=True)


def votes_of(inputs, weight):
    return torch.einsum("ijed,bid->bije", weight, inputs)


def paper(votes, iterations):
    """Procedure 1 of S17, one capsule at a time, in plain Python."""
    poses = torch.zeros(votes.shape[0], votes.shape[2], votes.shape[3], dtype=votes.dtype)
    couplings = torch.zeros(votes.shape[:3], dtype=votes.dtype)
    for b in range(votes.shape[0]):
        logits = torch.zeros(votes.shape[1:3], dtype=votes.dtype)
        for _ in range(iterations):
            c = torch.stack([row.exp() / row.exp().sum() for row in logits])
            v = torch.stack([squash(sum(c[i, j] * votes[b, i, j] for i in range(I))) for j in range(J)])
            logits = logits + torch.tensor([[float(votes[b, i, j] @ v[j]) for j in range(J)] for i in range(I)])
        poses[b], couplings[b] = v, c
    return poses, couplings


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_both_forms_follow_the_papers_procedure(inputs, weight, iterations):
    with torch.no_grad():
        votes = votes_of(inputs, weight)
        expected_poses, expected_couplings = paper(votes, iterations)
        for poses, couplings in (
            dynamic_routing(votes, iterations),
            linear_dynamic_routing_with_couplings(inputs, weight, iterations),
        ):
            torch.testing.assert_close(poses, expected_poses, rtol=0, atol=1e-6)
            torch.testing.assert_close(couplings, expected_couplings, rtol=0, atol=1e-6)


def test_one_iteration_is_the_uniform_average(inputs, weight):
    votes = votes_of(inputs, weight)
    poses, couplings = dynamic_routing(votes, iterations=1)
    torch.testing.assert_close(poses, squash(votes.sum(dim=1) / J))
    torch.testing.assert_close(couplings, torch.full((B, I, J), 1 / J, dtype=torch.double))


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_each_input_shares_itself_out_over_the_outputs(inputs, weight, iterations):
    _, couplings = dynamic_routing(votes_of(inputs, weight), iterations)
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(B, I, dtype=torch.double))
    if iterations > 1:
        assert (couplings.sum(dim=1) - 1).abs().max() > 0.01  # and not over the inputs


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("iterations", ITERATIONS)
def test_the_form_without_votes_has_the_values_and_gradients_of_the_oracle(
    inputs, weight, bias, iterations, with_bias, detach
):
    added = bias if with_bias else None
    leaves = (inputs, weight, bias) if with_bias else (inputs, weight)
    upstream = torch.randn(B, J, D, dtype=torch.double)
    plain = dynamic_routing(votes_of(inputs, weight), iterations, detach, added)[0]
    fast = linear_dynamic_routing(inputs, weight, iterations, detach, added)
    torch.testing.assert_close(fast, plain)
    expected = torch.autograd.grad(plain, leaves, upstream)
    for found, wanted in zip(torch.autograd.grad(fast, leaves, upstream), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_agreement_of_both_forms_in_float32_at_the_papers_size():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, 1152, 8, generator=generator) * 0.1
    weight = torch.randn(1152, 10, 16, 8, generator=generator) * 0.1
    found = linear_dynamic_routing(inputs, weight, 3)
    torch.testing.assert_close(found, dynamic_routing(votes_of(inputs, weight), 3)[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("iterations", ITERATIONS)
def test_gradients_agree_with_finite_differences(inputs, weight, bias, iterations):
    leaves = [x.detach().clone().requires_grad_() for x in (inputs[:2, :3, :2], weight[:3, :3, :2, :2], bias[:3, :2])]
    assert torch.autograd.gradcheck(lambda u, w, b: linear_dynamic_routing(u, w, iterations, False, b), leaves)
    votes = votes_of(*leaves[:2]).detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: dynamic_routing(v, iterations)[0], (votes,))


def test_detach_keeps_values_and_changes_gradients_but_for_one_iteration(inputs, weight):
    for iterations, same in ((1, True), (2, False), (3, False)):
        results = [linear_dynamic_routing(inputs, weight, iterations, detach) for detach in (False, True)]
        torch.testing.assert_close(*results)
        gradients = [torch.autograd.grad(r.square().sum(), weight)[0] for r in results]
        assert torch.allclose(*gradients) is same


def test_a_sample_does_not_depend_on_its_batch_mates(inputs, weight):
    together = linear_dynamic_routing(inputs, weight, 3)
    for b in range(B):
        torch.testing.assert_close(linear_dynamic_routing(inputs[b : b + 1], weight, 3), together[b : b + 1])
    votes = votes_of(inputs, weight)
    torch.testing.assert_close(dynamic_routing(votes[1:2], 3)[0], dynamic_routing(votes, 3)[0][1:2])


def test_permuting_inputs_changes_nothing_and_permuting_outputs_permutes_poses(inputs, weight):
    poses = linear_dynamic_routing(inputs, weight, 3)
    order_in, order_out = torch.randperm(I), torch.randperm(J)
    torch.testing.assert_close(linear_dynamic_routing(inputs[:, order_in], weight[order_in], 3), poses)
    torch.testing.assert_close(linear_dynamic_routing(inputs, weight[:, order_out], 3), poses[:, order_out])


def test_iterations_sharpen_the_couplings_where_votes_agree():
    votes = torch.zeros(1, 4, 2, 3)
    votes[:, :, 0, 0] = 2.0  # all inputs agree about parent 0, and say nothing of parent 1
    first, third = (dynamic_routing(votes, r)[1][0, 0, 0] for r in (1, 3))
    assert first == 0.5
    assert third > 0.8


@pytest.mark.parametrize("iterations", [0, -1])
def test_less_than_one_iteration_is_refused(inputs, weight, iterations):
    with pytest.raises(ValueError, match="at least 1 iteration"):
        linear_dynamic_routing(inputs, weight, iterations)
    with pytest.raises(ValueError, match="at least 1 iteration"):
        dynamic_routing(votes_of(inputs, weight), iterations)


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_module_is_its_function_with_lengths_for_activations(inputs, weight, bias, with_bias):
    routing = DynamicRouting(LayerSize(I, d, J, D), iterations=4, bias=with_bias).double()
    assert len(list(routing.parameters())) == with_bias
    if with_bias:
        torch.testing.assert_close(routing.bias, torch.full((J, D), 0.1, dtype=torch.double))  # the authors' code
        routing.bias.data = bias.detach()
    poses, activations, couplings = routing(inputs, torch.ones(B, I, dtype=torch.double), weight)
    expected = dynamic_routing(votes_of(inputs, weight), 4, bias=bias if with_bias else None)
    torch.testing.assert_close((poses, couplings), expected)
    torch.testing.assert_close(activations, poses.norm(dim=2))


@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_leaky_routing_has_one_output_more_with_a_logit_of_zero(iterations):
    torch.manual_seed(0)
    inputs, weight = torch.randn(2, 6, 4).double(), torch.randn(6, 3, 5, 4).double()
    votes = torch.einsum("ijkd,bid->bijk", weight, inputs)
    # an output whose votes are all zero keeps a logit of zero: the leak
    with_one_more = torch.cat([votes, torch.zeros(2, 6, 1, 5).double()], dim=2)
    expected_poses, expected = dynamic_routing(with_one_more, iterations)
    poses, couplings = dynamic_routing(votes, iterations, leaky=True)
    torch.testing.assert_close(couplings, expected[:, :, :3])
    torch.testing.assert_close(poses, expected_poses[:, :3])
    assert (couplings.sum(dim=2) < 1).all()
    found = linear_dynamic_routing_with_couplings(inputs, weight, iterations, leaky=True)
    torch.testing.assert_close(found, (poses, couplings))
