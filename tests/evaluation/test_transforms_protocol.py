"""Transforms move what they say, by as much as they say; strength 0 is accuracy to the image."""

import math
from types import SimpleNamespace

import pytest
import torch
from small_tasks import task_of

from capsbench.evaluation import collect_predictions
from capsbench.evaluation.accuracy import count_errors
from capsbench.evaluation.transforms import (
    SWEEPS,
    Changed,
    background_of,
    excess,
    rotations,
    scalings,
    transforms,
    warp,
)
from capsbench.models import build_model
from capsbench.streams import stream

BLACK = Changed("zeros", (28, 28))


def rng():
    return stream(0, "evaluation")


def given(task, model):
    """Return a context of a task and a network."""
    return SimpleNamespace(task=lambda: task, model=model, rng=rng)


def dot(row, column, side=9):
    image = torch.zeros(1, 1, side, side)
    image[0, 0, row, column] = 1
    return image


def same(count=1):
    return torch.eye(2).repeat(count, 1, 1)


def test_images_move_right_and_down_by_whole_pixels():
    found = warp(dot(4, 4), same(), torch.tensor([[2.0, 1.0]]), "zeros")
    torch.testing.assert_close(found, dot(5, 6), atol=1e-5, rtol=0)
    wide = torch.zeros(1, 1, 5, 9)
    wide[0, 0, 2, 4] = 1
    found = warp(wide, same(), torch.tensor([[-3.0, 2.0]]), "zeros")
    assert found[0, 0].nonzero().tolist() == [[4, 1]] or float(found[0, 0, 4, 1]) == pytest.approx(1, abs=1e-5)


def test_a_quarter_turn_goes_clockwise_and_is_exact():
    found = warp(dot(4, 7), rotations(torch.tensor([math.pi / 2])), torch.zeros(1, 2), "zeros")
    torch.testing.assert_close(found, dot(7, 4), atol=1e-5, rtol=0)
    wide = torch.zeros(1, 1, 5, 9)
    wide[0, 0, 2, 6] = 1  # two pixels to the right of the middle
    found = warp(wide, rotations(torch.tensor([math.pi / 2])), torch.zeros(1, 2), "zeros")
    assert float(found[0, 0, 4, 4]) == pytest.approx(1, abs=1e-5)  # two below


def test_a_factor_of_two_doubles_distances_from_the_middle():
    found = warp(dot(4, 6), scalings(torch.tensor([2.0])), torch.zeros(1, 2), "zeros")
    assert found[0, 0].argmax() == 4 * 9 + 8
    assert float(found.sum()) > 1.9  # and areas by four, where they do not leave the image


@pytest.mark.parametrize(("background", "value"), [("zeros", 0.0), ("border", 0.7)])
def test_what_comes_in_is_background(background, value):
    images = torch.full((1, 2, 9, 9), 0.7)
    images[:, :, 3:6, 3:6] = 0.1
    found = warp(images, same(), torch.tensor([[3.0, 0.0]]), background)
    torch.testing.assert_close(found[..., :3], torch.full((1, 2, 9, 3), value), atol=1e-5, rtol=0)


def test_background_is_black_where_the_rim_is():
    digits = torch.zeros(4, 1, 9, 9)
    digits[:, :, 3:6, 3:6] = 1
    assert background_of(digits) == "zeros"
    assert background_of(1 - digits) == "border"


@pytest.mark.parametrize("name", SWEEPS)
def test_half_of_the_images_go_either_way_and_strength_grows(name):
    _, most, change = SWEEPS[name]
    image = torch.zeros(1, 1, 28, 28)
    image[0, 0, 6:22, 8:17] = 1
    image[0, 0, 6:10, 17:20] = 0.5
    images = image.repeat(40, 1, 1, 1)
    weak, strong = (change(images, most * part, rng(), BLACK) for part in (0.25, 1.0))
    assert torch.equal(strong, change(images, most, rng(), BLACK))  # the same draws each time
    far = [(found - images).square().mean() for found in (weak, strong)]
    assert 0 < far[0] < far[1]
    if name != "blur":
        assert len(strong.flatten(1).unique(dim=0)) > 1  # not all alike
    torch.testing.assert_close(change(images, most * 1e-9, rng(), BLACK) if name != "blur" else images, images,
                               atol=1e-5, rtol=0)  # fmt: skip


def bar(count=20, length=20, side=65):
    """A thin bar from the middle to the right."""
    images = torch.zeros(count, 1, side, side)
    middle = side // 2
    images[:, :, middle, middle : middle + length] = 1
    return images


def ends(images):
    """Where the mass of each image lies from its middle, (x, y) in pixels."""
    place = torch.arange(images.shape[-1]) - (images.shape[-1] - 1) / 2
    found = images[:, 0]
    mass = found.sum(dim=(1, 2))
    return (found.sum(dim=1) @ place) / mass, (found.sum(dim=2) @ place) / mass


LARGE = Changed("zeros", (65, 65))


def test_a_rotation_turns_by_its_degrees():
    x, y = ends(SWEEPS["rotation"][2](bar(), 60.0, rng(), LARGE))
    angles = torch.atan2(y, x).rad2deg()
    torch.testing.assert_close(angles.abs(), torch.full((20,), 60.0), atol=0.5, rtol=0)
    assert {float(sign) for sign in angles.sign()} == {-1.0, 1.0}


def test_a_scale_multiplies_or_divides_lengths_by_its_percentage():
    x, y = ends(SWEEPS["scale"][2](bar(), 60.0, rng(), LARGE))
    was = ends(bar(1))[0]
    factors = {round(float(factor), 1) for factor in x / was}
    assert factors == {1.6, 0.6}  # 1 / 1.6 is 0.625
    assert y.abs().max() < 0.1


def test_a_shear_moves_by_its_strength_per_pixel():
    x, y = ends(SWEEPS["shear"][2](bar(), 0.6, rng(), LARGE))
    was = float(ends(bar(1))[0])
    along = y.abs() > 0.1  # columns go up or down; rows of a bar in the middle stay
    torch.testing.assert_close(y[along].abs(), torch.full((int(along.sum()),), 0.6 * was), atol=0.2, rtol=0)
    torch.testing.assert_close(x, torch.full((20,), was), atol=0.2, rtol=0)
    assert 3 < int(along.sum()) < 17


def test_noise_has_its_standard_deviation():
    grey = torch.full((20, 1, 40, 40), 0.5)
    found = SWEEPS["noise"][2](grey, 0.1, rng(), BLACK)
    assert float((found - grey).std()) == pytest.approx(0.1, rel=0.02)
    assert abs(float((found - grey).mean())) < 0.002
    assert SWEEPS["noise"][2](grey, 0.4, rng(), BLACK).max() == 1  # cut to what an image can be


def test_translation_moves_every_image_as_far():
    blob = torch.zeros(20, 1, 28, 28)
    blob[:, :, 12:16, 12:16] = 1
    found = SWEEPS["translation"][2](blob, 6.0, rng(), BLACK)[:, 0]
    place = torch.arange(28) - 13.5
    mass = found.sum(dim=(1, 2))
    x, y = (found.sum(dim=1) @ place / mass), (found.sum(dim=2) @ place / mass)
    torch.testing.assert_close((x**2 + y**2).sqrt(), torch.full((20,), 6.0), atol=1e-3, rtol=0)
    assert x.std() > 1 and y.std() > 1


def test_blur_spreads_a_dot_by_its_standard_deviation():
    found = SWEEPS["blur"][2](dot(14, 14, 29), 2.0, rng(), BLACK)[0, 0]
    place = torch.arange(29.0) - 14
    assert float(found.sum()) == pytest.approx(1, abs=1e-5)
    for axis in (0, 1):
        assert float(found.sum(dim=axis) @ place**2) ** 0.5 == pytest.approx(2, rel=0.02)
    grey = torch.full((1, 2, 9, 9), 0.7)
    torch.testing.assert_close(SWEEPS["blur"][2](grey, 2.0, rng(), BLACK), grey)


def test_the_covered_square_lies_in_what_the_network_sees():
    images = torch.rand(50, 2, 48, 48) * 0.5 + 0.5
    found = SWEEPS["occlusion"][2](images, 50.0, rng(), Changed("border", (32, 32)))
    covered = (found != images).all(dim=1)
    assert (covered.sum(dim=(1, 2)) == 16 * 16).all()
    assert not covered[:, :8].any() and not covered[:, :, :8].any() and not covered[:, 40:].any()
    inside = found[0, 1][covered[0]]
    assert (inside == inside[0]).all()
    rim = torch.cat([images[0, 1, 0], images[0, 1, -1], images[0, 1, :, 0], images[0, 1, :, -1]])
    assert float(inside[0]) == pytest.approx(float(rim.mean()), abs=1e-5)


def test_the_excess_is_the_mean_of_the_curve_above_its_start():
    assert excess([0, 1, 2], [10, 10, 10]) == 0
    assert excess([0, 10, 20], [10, 30, 50]) == pytest.approx(20)
    assert excess([0, 1, 4], [0, 4, 4]) == pytest.approx((2 + 12) / 4)


def test_strength_zero_is_accuracy_to_the_image():
    task = task_of(images=40)
    model = build_model("capsnet", (1, 28, 28), 10, conv_channels=4, primary_types=1, decoder=None).eval()
    found = transforms(given(task, model), images=1000, steps=1)
    expected = count_errors(collect_predictions(model, task))["error"]
    assert found["error"] == expected and found["images"] == 40
    assert [curve["name"] for curve in found["curves"]] == list(SWEEPS)
    assert {curve["y"][0] for curve in found["curves"]} == {expected}
    for curve in found["curves"]:
        assert found[f"{curve['name']}_excess"] == pytest.approx((curve["y"][1] - expected) / 2, abs=1e-5)


class Corner(torch.nn.Module):
    """Says 1 where the right third of an image is bright, else 0."""

    def forward(self, images, labels=None):
        from capsbench.models import Output

        bright = images[..., images.shape[3] * 2 // 3 :].mean(dim=(1, 2, 3))
        return Output(torch.stack([torch.full_like(bright, 0.05), bright], 1))


def test_a_rule_about_places_fails_under_moves_and_not_under_noise():
    task = task_of(images=60)
    task.images.zero_()
    task.labels = torch.arange(60) % 2
    task.images[task.labels == 1, :, 10:18, 20:27] = 255
    found = transforms(given(task, Corner()), images=60, steps=2)
    assert found["error"] == 0 and found["background"] == "zeros"
    assert found["rotation_excess"] > 2 or found["translation_excess"] > 2
    assert found["translation_excess"] > found["blur_excess"] == 0
