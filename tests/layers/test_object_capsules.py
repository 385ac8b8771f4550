import math

import pytest
import torch

from capsbench.layers.object_capsules import (
    DUMMY,
    Attention,
    LinearPerCapsule,
    ObjectCapsules,
    SetTransformer,
    Standardise,
    Votes,
)
from capsbench.layers.part_capsules import affine, compose

NORMAL = -3 * math.log(2 * math.pi)  # the logarithm of a standard normal density of six dimensions at its mean


def votes_for(poses, presences, deviation=1.0):
    presences = torch.tensor(presences).unsqueeze(0)
    return Votes(poses[:, :, 0], poses, presences, torch.full_like(presences, deviation), torch.zeros(()))


def capsules(noise=4.0, presence=0.1, parts=3):
    torch.manual_seed(0)
    return ObjectCapsules(objects=4, parts=parts, in_dim=8, params=5, hidden=16, noise=noise, presence=presence)


def test_a_vote_that_is_right_has_the_density_of_a_normal_distribution():
    poses = torch.randn(1, 2, 2, 3)
    likelihoods, _ = votes_for(poses.unsqueeze(1), [[1.0, 0.5]], deviation=0.1).explain(poses)
    expected = torch.tensor([[math.log(1.0), math.log(0.5)]]) + NORMAL - 6 * math.log(0.1)
    torch.testing.assert_close(likelihoods, expected, atol=1e-4, rtol=0)


def test_a_vote_away_from_the_part_costs_half_its_squared_distance():
    poses = torch.zeros(1, 1, 2, 3)
    away = poses.unsqueeze(1) + torch.tensor([[0.3, 0.0, 0.0], [0.0, 0.0, 0.4]])
    near, far = (votes_for(v, [[1.0]], deviation=0.1).explain(poses)[0] for v in (poses.unsqueeze(1), away))
    assert (near - far).item() == pytest.approx(0.25 / (2 * 0.01), rel=1e-3)


def test_objects_share_a_part_by_presence_and_leave_it_to_nobody_when_absent():
    poses = torch.zeros(1, 1, 2, 3)
    both = poses.unsqueeze(1).expand(1, 2, 1, 2, 3)
    _, shares = votes_for(both, [[0.75], [0.25]], deviation=0.1).explain(poses)
    torch.testing.assert_close(shares[0, :, 0], torch.tensor([0.75, 0.25]), atol=1e-4, rtol=0)
    likelihoods, shares = votes_for(both, [[0.0], [0.0]]).explain(poses)
    assert likelihoods.item() == pytest.approx(DUMMY, abs=0.02)
    assert shares.sum() < 0.02


def test_the_presence_of_an_object_is_that_of_its_most_present_vote():
    votes = votes_for(torch.zeros(1, 2, 2, 2, 3), [[0.1, 0.7], [0.3, 0.2]])
    torch.testing.assert_close(votes.prior(), torch.tensor([[0.7, 0.3]]))


def test_without_deformation_a_vote_is_the_learned_place_in_the_object():
    model = capsules().eval()
    model.outputs[-1].weight.detach()[:, :, :18] = 0
    votes = model(torch.randn(6, 4, 8))
    assert votes.deformation == 0
    torch.testing.assert_close(votes.votes, compose(votes.poses.unsqueeze(2), affine(model.places)))


def test_deformations_cost_half_their_squares_and_start_small():
    model, features = capsules().eval(), torch.randn(6, 4, 8)
    before = model(features).deformation
    model.outputs[-1].weight.detach()[:, :, :18] *= 2
    assert model(features).deformation.item() == pytest.approx(4 * before.item(), rel=1e-4)
    assert before < 0.1


@pytest.mark.parametrize("presence", [0.1, 0.5])
def test_presences_start_where_they_are_told(presence):
    model = capsules(presence=presence, parts=1).eval()
    model.outputs[-1].weight.detach().zero_()
    assert model(torch.randn(6, 4, 8)).prior().mean().item() == pytest.approx(presence / 2)  # the vote's is a half


def test_presences_are_noisy_in_training_alone():
    model, features = capsules(), torch.randn(1, 4, 8).expand(50, -1, -1)
    assert model(features).presences.std(dim=0).min() > 0.01
    assert model.eval()(features).presences.std(dim=0).max() < 1e-6


def test_a_linear_layer_of_each_capsules_own():
    layer, values = LinearPerCapsule(3, 2, 4), torch.randn(5, 3, 2)
    torch.nn.init.normal_(layer.bias)
    for capsule in range(3):
        expected = values[:, capsule] @ layer.weight[capsule] + layer.bias[capsule]
        torch.testing.assert_close(layer(values)[:, capsule], expected)


def test_standardised_values_and_a_batch_of_one():
    layer, values = Standardise(2, 3), 5 + 3 * torch.randn(400, 2, 3)
    for _ in range(60):
        found = layer(values)
    torch.testing.assert_close(found.mean(dim=0), torch.zeros(2, 3), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.std(dim=0), torch.ones(2, 3), atol=1e-2, rtol=0)
    one = layer(values[:1])
    torch.testing.assert_close(one, layer.eval()(values)[:1])
    torch.testing.assert_close(one, found[:1], atol=0.05, rtol=0.05)


def test_attention_goes_to_a_token_by_its_presence():
    layer, tokens = Attention(4, 6), torch.randn(1, 3, 6)
    torch.nn.init.zeros_(layer.query.weight)
    torch.nn.init.zeros_(layer.query.bias)
    found = layer(torch.randn(1, 2, 4), tokens, torch.tensor([[0.6, 0.2, 0.0]]))
    expected = layer.out(0.75 * layer.value(tokens[:, 0]) + 0.25 * layer.value(tokens[:, 1]))
    torch.testing.assert_close(found[:, 0], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[:, 0], found[:, 1])


def test_absent_parts_do_not_change_what_a_set_transformer_says():
    torch.manual_seed(0)
    model = SetTransformer(tokens=3, in_dim=4, dim=8, layers=2, outputs=2, out_dim=6).eval()
    tokens, presences = torch.randn(5, 3, 4), torch.tensor([0.9, 0.4, 0.0]).expand(5, 3)
    found, other = model(tokens, presences), tokens.clone()
    other[:, 2] += 10
    torch.testing.assert_close(model(other, presences), found, atol=1e-4, rtol=1e-4)
    other[:, 0] += 10
    assert (model(other, presences) - found).abs().max() > 1e-3
