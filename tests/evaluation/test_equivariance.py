"""A pose that encodes the transform exactly has R2 1, one that ignores it none, noise about 0."""

import math
from types import SimpleNamespace

import pytest
import torch
from small_tasks import task_of

from capsbench.evaluation.equivariance import draw_moves, equivariance, linear_r2, measure
from capsbench.models import Network, Output, build_model
from capsbench.streams import stream

N = 400
GROUPS = torch.arange(N) // 2 % 4


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def given(task, model):
    return SimpleNamespace(task=lambda: task, model=model, rng=lambda: stream(0, "evaluation"))


def test_an_exact_code_has_r2_one_with_another_map_for_each_capsule():
    rest, parameters = normal(N, 16), normal(N, 2, seed=1)
    maps = normal(4, 2, 16, seed=2)
    moved = rest + torch.einsum("ik,ikd->id", parameters, maps[GROUPS])
    found, why = measure(rest, moved, parameters, GROUPS)
    assert found["r2"] == pytest.approx(1, abs=1e-9)
    assert found["decoded_r2"] == pytest.approx(1, abs=1e-9)
    assert found["pose_change"] > 0.5 and why == ""
    assert linear_r2(parameters, moved - rest, torch.zeros(N, dtype=torch.int64)) < 0.6  # one map does not do


def test_a_pose_that_ignores_the_transform_has_no_r2_and_says_so():
    rest = normal(N, 16)
    found, why = measure(rest, rest.clone(), normal(N, 2, seed=1), GROUPS)
    assert found == {"pose_change": 0} and "does not change" in why


def test_a_change_that_has_nothing_to_do_with_the_transform_has_an_r2_of_about_zero():
    rest = normal(N, 16)
    found, _ = measure(rest, rest + normal(N, 16, seed=3), normal(N, 2, seed=1), GROUPS)
    assert -0.2 < found["r2"] < 0.02
    assert found["decoded_r2"] < 0.05
    assert found["pose_change"] == pytest.approx(1, abs=0.05)


def test_half_signal_half_noise_has_an_r2_of_a_half():
    parameters = normal(N, 1)
    change = parameters @ torch.ones(1, 4, dtype=torch.float64) + normal(N, 4, seed=3)
    found, _ = measure(normal(N, 4, seed=4), normal(N, 4, seed=4) + change, parameters, GROUPS)
    assert found["r2"] == pytest.approx(0.5, abs=0.08)


def test_many_features_do_not_overfit():
    features, parameters = normal(N, 500), normal(N, 1, seed=1)
    found, _ = measure(features, features + normal(N, 500, seed=2), parameters, GROUPS)
    assert -0.6 < found["decoded_r2"] < 0.1
    hidden = normal(N, 500, seed=2) * 0.01 + parameters @ normal(1, 500, seed=3)
    assert measure(features, features + hidden, parameters, GROUPS)[0]["decoded_r2"] > 0.99


def test_scored_images_are_not_those_of_the_fit():
    # the map of the odd images is the opposite of that of the even ones
    parameters = normal(N, 2)
    sign = torch.where(torch.arange(N) % 2 == 0, 1.0, -1.0).double()[:, None]
    assert linear_r2(parameters, sign * parameters, torch.zeros(N, dtype=torch.int64)) < -1


def test_too_few_images_have_no_r2():
    found, why = measure(normal(6, 4), normal(6, 4, seed=1), normal(6, 2), torch.zeros(6, dtype=torch.int64))
    assert "r2" not in found and "few" in why


def test_moves_are_what_their_parameters_say():
    moves = draw_moves(500, stream(0, "evaluation"))
    shifts = moves["translation"]
    assert torch.equal(shifts.shifts, shifts.parameters) and 3.8 < shifts.shifts.abs().max() <= 4
    turned = moves["rotation"]
    torch.testing.assert_close(turned.matrices[:, :, 0], turned.parameters)  # (1, 0) goes to (cos, sin)
    assert math.cos(math.radians(30)) - 1e-6 <= turned.parameters[:, 0].min() < math.cos(math.radians(29))
    scaled = moves["scale"]
    torch.testing.assert_close(scaled.matrices[:, 0, 0].log(), scaled.parameters[:, 0], atol=1e-6, rtol=1e-4)
    assert scaled.parameters.mean().abs() < 0.02


class Place(Network):
    """One capsule a class; its pose is the centre of mass of an image, or says nothing of it.

    limit: beyond that far to the right the other class wins, and the pose of the first is lost.
    """

    def __init__(self, blind=False, limit=100.0):
        super().__init__()
        self.blind, self.limit = blind, limit

    def forward(self, images, labels=None):
        place = torch.arange(28.0) - 13.5
        ink = images.sum(dim=(1, 2, 3))
        x, y = (images.sum(dim=(1, axis)) @ place / ink for axis in (2, 3))
        pose = torch.stack([x, y, ink.detach() / 50], 1)
        if self.blind:
            pose = torch.ones_like(pose)
        beyond = x > self.limit
        pose = torch.where(beyond[:, None], 1000 * torch.rand_like(pose), pose)
        scores = torch.stack([torch.where(beyond, 0.3, 0.9), torch.full_like(ink, 0.5)], 1)
        return Output(scores, poses=pose[:, None].repeat(1, 2, 1), activations=scores)


def blobs(count=80):
    task = task_of(images=count)
    task.images.zero_()
    for i in range(count):
        task.images[i, 0, 9 + i % 5 : 18, 10 : 17 + i % 3] = 255
    return task


def test_centres_of_mass_are_equivariant_to_translation_and_not_to_scale_about_the_middle():
    found = equivariance(given(blobs(), Place()), images=1000)
    assert found["of"] == "poses" and found["images"] == 80
    assert found["translation_r2"] > 0.99 and found["translation_decoded_r2"] > 0.99
    assert found["presence_change"] == 0 and found["winner_stays"] == 100
    assert found["scale_r2"] < found["translation_r2"]


def test_poses_are_compared_where_the_capsule_still_wins():
    found = equivariance(given(blobs(200), Place(limit=1.5)), images=1000)
    assert found["translation_winner_stays"] < 90
    assert found["translation_presence_change"] == pytest.approx(
        0.6 * (1 - found["translation_winner_stays"] / 100), abs=1e-5
    )
    assert found["translation_r2"] > 0.99


def test_a_blind_pose_is_invariant_and_its_r2_is_not_defined():
    found = equivariance(given(blobs(), Place(blind=True)), images=1000)
    assert "translation_r2" not in found
    assert set(found["undefined"]) == {"translation", "rotation", "scale"}


@pytest.mark.parametrize(
    ("name", "options", "of"),
    [
        ("capsnet", {"conv_channels": 4, "primary_types": 1, "decoder": None}, "poses"),
        ("resnet20", {"widths": (4, 8), "blocks": 1}, "features"),
    ],
)
def test_capsules_and_cnns_go_through_the_same_measure(name, options, of):
    found = equivariance(given(blobs(60), build_model(name, (1, 28, 28), 2, **options).eval()), images=60)
    assert found["of"] == of and found["status"] == "ok"
    assert found["translation_r2"] <= 1 and 0 <= found["presence_change"] <= 1


def test_a_network_without_poses_or_features_has_nothing_to_measure():
    model = build_model("self_routing_capsnet", (1, 28, 28), 10, types=2, pose_dim=4, widths=(4, 4), blocks=1).eval()
    assert equivariance(given(blobs(10), model), images=10)["status"] == "not applicable"
