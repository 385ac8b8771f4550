import math

import pytest
import torch

from capsbench.layers.part_capsules import Mixture, PartEncoder, Parts, TemplateDecoder, affine, compose, inverse

SIDE, SIZE = 9, 5


def decoder(parts=2, channels=1, gain=1.0):
    torch.manual_seed(0)
    return TemplateDecoder((channels, SIDE, SIDE), parts, SIZE, features=3, gain=gain)


def parts_at(poses, presences=None):
    count = len(poses)
    presences = torch.ones(1, count) if presences is None else torch.tensor([presences])
    return Parts(torch.tensor(poses).unsqueeze(0), presences, torch.zeros(1, count, 3))


def test_an_affine_transform_of_known_numbers():
    found = affine(torch.tensor([0.0, math.log(3), 0.25, 0.0, 10.0, -10.0]))  # a quarter turn, the widest translations
    expected = torch.tensor([[0.0, -0.51, 1.0], [0.76, 0.0, -1.0]])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_shear_moves_x_with_y():
    sheared, plain = (affine(torch.tensor([0.0, 0.0, 0.0, shear, 0.0, 0.0])) for shear in (0.1, 0.0))
    torch.testing.assert_close(sheared - plain, torch.tensor([[0, 0.51 * math.tanh(0.5), 0], [0, 0, 0]]))


def test_scales_and_translations_stay_in_their_limits():
    found = affine(torch.tensor([-50.0, 50.0, 0.0, 0.0, 50.0, 50.0]))
    torch.testing.assert_close(found, torch.tensor([[0.01, 0.0, 1.0], [0.0, 1.01, 1.0]]))


def test_an_inverse_undoes_and_compositions_apply_the_inner_first():
    torch.manual_seed(0)
    first, second = affine(torch.randn(2, 4, 6))
    identity = torch.eye(3)[:2].expand(4, 2, 3)
    torch.testing.assert_close(compose(first, inverse(first)), identity, atol=1e-4, rtol=0)
    point = torch.randn(4, 2, 1)
    apply = lambda transform, place: transform[:, :, :2] @ place + transform[:, :, 2:]  # noqa: E731
    torch.testing.assert_close(apply(compose(second, first), point), apply(second, apply(first, point)))


def test_a_mixture_of_one_component_is_a_normal_density_and_of_two_their_sum():
    means, pixels = torch.tensor([0.2, 0.8]).view(1, 2, 1, 1), torch.full((1, 1, 1), 0.5)
    log_weights = torch.tensor([0.25, 0.75]).log().view(1, 2, 1)
    one = Mixture(means[:, :1], torch.zeros(1, 1, 1))
    assert one.log_likelihood(pixels, 0.1).item() == pytest.approx(-4.5)
    mixture = Mixture(means, log_weights)
    assert mixture.mean().item() == pytest.approx(0.65)
    assert mixture.log_likelihood(torch.full((1, 1, 1), 0.2), 0.3).item() == pytest.approx(
        math.log(0.25 + 0.75 * math.exp(-2))
    )


def test_a_template_lies_where_its_pose_puts_it():
    draw = decoder(parts=1)
    torch.nn.init.constant_(draw.masks, 30.0)  # wins inside, against a background that wins outside
    torch.nn.init.constant_(draw.background_mask, 15.0)
    half = [[0.5, 0.0, 0.5], [0.0, 0.5, -0.5]]  # the upper right quarter of the image
    weights = draw(parts_at([half])).log_weights.exp()[0, 0].view(SIDE, SIDE)
    expected = torch.zeros(SIDE, SIDE)
    expected[: SIDE // 2 + 1, SIDE // 2 :] = 1
    torch.testing.assert_close(weights, expected, atol=1e-3, rtol=0)


def test_a_template_in_its_own_place_is_drawn_pixel_by_pixel():
    draw = TemplateDecoder((2, SIZE, SIZE), 1, SIZE, features=3, gain=1.0)
    parts = parts_at([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    means = draw(parts).means[0, 0].view(2, SIZE, SIZE)
    colour = draw.colour(parts.features)[0, 0]
    torch.testing.assert_close(means, draw.templates[0].sigmoid() * colour[:, None, None], atol=1e-5, rtol=0)


def test_absent_parts_are_not_drawn():
    draw, here = decoder(), [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    weights = draw(parts_at([here, here], presences=[1.0, 0.0])).log_weights.exp()
    assert weights[0, 1].max() < 1e-6
    assert weights[0, 0].min() > 0.1
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(1, SIDE * SIDE))


def test_some_pixels_are_those_of_the_whole_image():
    draw, parts = decoder(channels=3), parts_at([[[0.5, 0.1, 0.2], [0.0, 0.6, -0.1]]] * 2)
    pixels = torch.tensor([40, 3, 77])
    some, whole = draw(parts, pixels), draw(parts)
    torch.testing.assert_close(some.means, whole.means[..., pixels])
    torch.testing.assert_close(some.log_weights, whole.log_weights[..., pixels])


def test_gain_changes_the_speed_of_templates_and_not_the_start():
    slow, fast = decoder(gain=1.0), decoder(gain=10.0)
    parts = parts_at([[[0.5, 0.1, 0.2], [0.0, 0.6, -0.1]]] * 2)
    torch.testing.assert_close(slow(parts).mean(), fast(parts).mean())
    for draw in (slow, fast):
        draw(parts).mean().sum().backward()
    torch.testing.assert_close(fast.templates.grad, 10 * slow.templates.grad)


def test_presences_are_noisy_in_training_alone():
    torch.manual_seed(0)
    encoder = PartEncoder(1, (2, 2), 4, parts=3, features=2, noise=4.0)
    images = torch.rand(1, 1, 28, 28).expand(200, -1, -1, -1)
    noise = encoder(images).presences.logit() - encoder.eval()(images).presences.logit()
    assert noise.min().item() == pytest.approx(-2, abs=0.05) and noise.max().item() == pytest.approx(2, abs=0.05)
    assert encoder(images).presences.std(dim=0).max() < 1e-6


def test_parts_start_apart():
    torch.manual_seed(0)
    encoder = PartEncoder(1, (2, 2), 16, parts=16, features=2, noise=4.0)
    poses = encoder(torch.rand(8, 1, 28, 28)).poses
    assert poses[..., 2].std(dim=1).mean() > 0.15  # over parts
    assert poses[..., 2].std(dim=0).mean() < 0.1  # over images
