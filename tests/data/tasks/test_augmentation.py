import pytest
import torch

from capsbench.data.tasks.augmentation import (
    brightness_and_contrast,
    cutout,
    flip,
    rotate_and_scale,
    shift,
    standardise,
)


def draws(count, columns=2, seed=0):
    return torch.rand(count, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_flip_mirrors_about_half_of_the_images_whole():
    images = torch.rand(400, 3, 4, 5)
    changed = flip(images, draws(400, 1))
    mirrored = (changed == images.flip(3)).flatten(1).all(dim=1)
    kept = (changed == images).flatten(1).all(dim=1)
    assert (mirrored ^ kept).all()
    assert 160 < mirrored.sum() < 240


def test_brightness_and_contrast_are_drawn_for_each_image_within_their_ranges():
    images = torch.rand(400, 2, 6, 6)
    brighter = brightness_and_contrast(images, 0.2, 0.0, draws(400)) - images
    by_image = brighter.flatten(1)
    torch.testing.assert_close(by_image, by_image[:, :1].expand_as(by_image), atol=1e-6, rtol=0)
    assert -0.2 <= by_image.min() < -0.19
    assert 0.19 < by_image.max() <= 0.2 + 1e-6
    stretched = brightness_and_contrast(images, 0.0, 0.8, draws(400))
    mean = images.mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(stretched.mean(dim=(2, 3), keepdim=True), mean)  # of each channel
    factor = (stretched - mean).flatten(1).norm(dim=1) / (images - mean).flatten(1).norm(dim=1)
    torch.testing.assert_close(stretched, mean + (images - mean) * factor[:, None, None, None])
    assert 0.2 <= factor.min() < 0.22
    assert 1.78 < factor.max() <= 1.8


def test_standardised_images_have_mean_0_and_std_1_each_by_its_own_statistics():
    images = torch.rand(5, 2, 6, 6) * torch.arange(1, 6)[:, None, None, None] + 3
    found = standardise(images)
    torch.testing.assert_close(found.mean(dim=(1, 2, 3)), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.std(dim=(1, 2, 3), correction=0), torch.ones(5))
    torch.testing.assert_close(standardise(images[3:4]), found[3:4])  # whatever else is in the batch
    assert (found[:, 0].mean(dim=(1, 2)) - found[:, 1].mean(dim=(1, 2))).abs().min() > 1e-4  # channels go together
    assert standardise(torch.full((1, 2, 6, 6), 0.3)).abs().max() < 1e-5  # an even image stays finite


def test_the_floor_of_the_std_is_on_the_scale_of_0_to_255():
    """tf.image.per_image_standardization divides by max(std, 1 / sqrt(values)), and the authors' images go to 255."""
    images = torch.randn(1, 2, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    images = (images - images.mean()) / images.std(correction=0)
    floor = 2048**-0.5
    for std, expected in ((0.5 * floor, 0.5), (2 * floor, 1.0)):
        found = standardise(0.5 + images * std / 255)
        assert float(found.std(correction=0)) == pytest.approx(expected, rel=1e-6)


def test_shift_moves_each_image_on_its_own_by_whole_pixels_with_zeros_coming_in():
    images = torch.zeros(500, 2, 9, 9)
    images[:, :, 4, 4] = torch.tensor([1.0, 2.0])
    moved = shift(images, 2, draws(500))
    places = moved[:, 0].flatten(1).argmax(dim=1)
    offsets = torch.stack([places // 9 - 4, places % 9 - 4], dim=1)
    assert moved.sum() == images.sum()
    torch.testing.assert_close(moved[:, 1], 2 * moved[:, 0])  # channels move together
    for axis in (0, 1):
        counts = (offsets[:, axis] + 2).bincount(minlength=5)
        assert len(counts) == 5
        assert counts.min() > 60  # uniform over -2 .. 2
    assert len(offsets.unique(dim=0)) == 25  # the axes are independent
    corner = torch.zeros(200, 1, 9, 9)
    corner[:, :, 0, 0] = 1
    assert set(shift(corner, 2, draws(200)).flatten(1).sum(dim=1).tolist()) == {0.0, 1.0}  # nothing wraps around


def test_no_rotation_and_no_scale_is_the_identity():
    images = torch.rand(4, 1, 8, 8)
    torch.testing.assert_close(rotate_and_scale(images, 0.0, 0.0, draws(4)), images)


def test_rotation_turns_up_to_its_limit_either_way():
    images = torch.zeros(300, 1, 65, 65)
    images[:, :, 32, 48:64] = 1  # an arm to the right
    turned = rotate_and_scale(images, 30.0, 0.0, draws(300))
    rows, columns = torch.meshgrid(torch.arange(65.0) - 32, torch.arange(65.0) - 32, indexing="ij")
    weight = turned[:, 0]
    angle = torch.atan2((weight * rows).sum((1, 2)), (weight * columns).sum((1, 2))).rad2deg()
    assert 25 < angle.max() <= 31
    assert -31 <= angle.min() < -25
    assert abs(angle.mean()) < 3


def test_scale_sizes_within_its_range():
    images = torch.zeros(300, 1, 65, 65)
    images[:, :, 22:43, 22:43] = 1
    area = rotate_and_scale(images, 0.0, 0.2, draws(300)).flatten(1).sum(dim=1) / 21**2
    side = area.sqrt()
    assert 0.79 < side.min() < 0.85
    assert 1.15 < side.max() < 1.21


def test_cutout_clears_one_square_an_image():
    holes = 1 - cutout(torch.ones(500, 1, 12, 12), 4, draws(500))
    sizes = holes.flatten(1).sum(dim=1)
    assert sizes.max() == 16
    assert sizes.min() >= 4  # it may hang over the edge, by half at most on each axis
    full = holes[sizes == 16][:, 0]
    rows, columns = full.amax(dim=2).sum(dim=1), full.amax(dim=1).sum(dim=1)
    assert (rows == 4).all()
    assert (columns == 4).all()
    assert len(holes.unique(dim=0)) > 50


def test_a_part_is_changed_as_its_whole_is():
    """What the papers do before the crop may be done after it, by the statistics of the whole image."""
    whole = torch.rand(50, 2, 12, 12)
    part = whole[:, :, 3:8, 2:9]
    changed = brightness_and_contrast(whole, 0.2, 0.8, draws(50))[:, :, 3:8, 2:9]
    found = brightness_and_contrast(part, 0.2, 0.8, draws(50), means=whole.mean(dim=(2, 3), keepdim=True))
    torch.testing.assert_close(found, changed, atol=5e-6, rtol=0)
    torch.testing.assert_close(standardise(part, whole), standardise(whole)[:, :, 3:8, 2:9], atol=5e-6, rtol=0)
    assert (standardise(part) - standardise(part, whole)).abs().max() > 0.01
