import pytest
import torch

from capsbench.routing import LayerSize, stored_votes
from capsbench.routing.contract import squash
from capsbench.routing.random_couplings import RandomRouting, random_routing

B, I, J, D = 3, 6, 4, 5  # noqa: E741


@pytest.fixture
def votes() -> torch.Tensor:
    return torch.randn(B, I, J, D, dtype=torch.double, generator=torch.Generator().manual_seed(0), requires_grad=True)


def test_poses_are_the_votes_under_the_couplings(votes):
    poses, activations, couplings = random_routing(votes)
    torch.testing.assert_close(activations, poses.norm(dim=2))
    for b in range(B):
        for j in range(J):
            expected = sum(couplings[b, i, j] * votes[b, i, j] for i in range(I))
            torch.testing.assert_close(poses[b, j], squash(expected))


def test_one_parent_takes_all():
    votes = torch.tensor([[[[6.0, 0.0]], [[-3.0, 4.0]]]])  # whatever is drawn, c = 1
    poses, _, couplings = random_routing(votes)
    torch.testing.assert_close(poses, torch.tensor([[[3 / 5 * 25 / 26, 4 / 5 * 25 / 26]]]))
    assert (couplings == 1).all()


def test_each_input_shares_itself_out_over_the_outputs(votes):
    couplings = random_routing(votes).couplings
    torch.testing.assert_close(couplings.sum(dim=2), torch.ones(B, I, dtype=torch.double), atol=1e-6, rtol=0)
    assert couplings.min() > 0
    assert (couplings - 1 / J).abs().max() > 0.1  # and unevenly


def test_logits_are_standard_normal():
    couplings = random_routing(torch.zeros(1, 20_000, 10, 1)).couplings
    logits = couplings[0].log() - couplings[0].log().mean(dim=1, keepdim=True)  # known but for a shift of each row
    assert abs(logits.square().mean() / (1 - 1 / 10) - 1) < 0.02
    assert abs(logits.pow(4).mean() / logits.square().mean() ** 2 - 3) < 0.1  # a normal's kurtosis


def test_couplings_are_alike_for_all_samples_and_calls_and_know_nothing_of_the_votes(votes):
    couplings = random_routing(votes).couplings
    assert (couplings == couplings[:1]).all()
    other = torch.randn_like(votes)
    torch.testing.assert_close(random_routing(other).couplings, couplings, atol=0, rtol=0)
    torch.testing.assert_close(random_routing(votes.float()).couplings.double(), couplings, atol=0, rtol=0)


def test_the_seed_decides_the_couplings(votes):
    first, again, other = (random_routing(votes, seed).couplings for seed in (7, 7, 8))
    torch.testing.assert_close(again, first, atol=0, rtol=0)
    assert (other - first).abs().max() > 0.1


def test_the_runs_own_random_numbers_stay_as_they_are(votes):
    before = torch.get_rng_state()
    random_routing(votes)
    assert (torch.get_rng_state() == before).all()


def test_couplings_stay_in_place_where_inputs_or_outputs_are_permuted(votes):
    # the documented exception: children and parents are not exchangeable here, unlike in all other routing
    couplings = random_routing(votes).couplings
    for permuted in (votes[:, torch.arange(I).flip(0)], votes[:, :, torch.arange(J).flip(0)]):
        found, _, same = random_routing(permuted)
        torch.testing.assert_close(same, couplings, atol=0, rtol=0)
        torch.testing.assert_close(found, squash(torch.einsum("bij,bijd->bjd", couplings, permuted)))
        assert (found.norm(dim=2).sort().values - random_routing(votes)[0].norm(dim=2).sort().values).abs().max() > 0.01


def test_the_module_hands_on_what_it_learns_and_its_options():
    def draw(*shape, seed):
        return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))

    poses, weight = draw(B, I, 7, seed=5), draw(I, J, D, 7, seed=6)
    activations = draw(B, I, seed=1).sigmoid()
    routing = RandomRouting(LayerSize(I, 7, J, D), coupling_seed=7).double()
    for seed, parameter in enumerate(routing.parameters()):
        parameter.data = draw(*parameter.shape, seed=seed)
    expected = random_routing(stored_votes(poses, weight), 7)
    torch.testing.assert_close(tuple(routing(poses, activations, weight)), tuple(expected))
