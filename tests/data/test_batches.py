import pytest
import torch

from capsbench.config import Augmentation
from capsbench.data.batches import ordered_batches, training_batches
from capsbench.data.transforms import cutout, rotate_and_scale, shift

NONE = Augmentation(shift=0)
IMAGES = torch.arange(50, dtype=torch.uint8).reshape(50, 1, 1, 1).expand(50, 1, 8, 8).contiguous()
LABELS = torch.arange(50)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def epoch(seed=0, epoch=1, augmentation=NONE, images=IMAGES):
    batches = list(training_batches(images, LABELS, 16, augmentation, seed, epoch))
    return torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])


def test_an_epoch_shows_every_image_once_with_its_label_in_the_unit_range():
    images, labels = epoch()
    assert torch.equal(labels.sort().values, LABELS)
    torch.testing.assert_close(images[:, 0, 0, 0], labels / 255)
    assert [len(x) for x, _ in training_batches(IMAGES, LABELS, 16, NONE, 0, 1)] == [16, 16, 16, 2]


def test_order_depends_on_seed_and_epoch_alone():
    assert torch.equal(epoch()[1], epoch()[1])
    assert not torch.equal(epoch(epoch=1)[1], epoch(epoch=2)[1])
    assert not torch.equal(epoch(seed=0)[1], epoch(seed=1)[1])
    assert torch.equal(epoch()[1], epoch(augmentation=Augmentation(shift=2, cutout=3))[1])


def test_augmentation_depends_on_seed_and_epoch_alone():
    images = torch.randint(0, 256, (50, 1, 8, 8), dtype=torch.uint8)
    every = Augmentation(shift=2, rotation=20, scale=0.2, cutout=3)
    assert torch.equal(epoch(augmentation=every, images=images)[0], epoch(augmentation=every, images=images)[0])
    assert not torch.equal(
        epoch(augmentation=every, images=images)[0], epoch(augmentation=every, images=images, epoch=2)[0]
    )


@pytest.mark.parametrize("change", [{"shift": 2}, {"rotation": 20}, {"scale": 0.2}, {"cutout": 3}], ids=str)
def test_each_augmentation_acts(change):
    images = torch.randint(0, 256, (50, 1, 8, 8), dtype=torch.uint8)
    changed = epoch(augmentation=Augmentation(**{"shift": 0, **change}), images=images)[0]
    assert (changed != epoch(images=images)[0]).flatten(1).any(dim=1).float().mean() > 0.8


def test_test_batches_keep_order_and_values():
    batches = list(ordered_batches(IMAGES, LABELS, 16))
    assert torch.equal(torch.cat([labels for _, labels in batches]), LABELS)
    torch.testing.assert_close(torch.cat([b for b, _ in batches]), IMAGES / 255)


def test_shift_moves_each_image_on_its_own_by_whole_pixels_with_zeros_coming_in():
    images = torch.zeros(500, 2, 9, 9)
    images[:, :, 4, 4] = torch.tensor([1.0, 2.0])
    moved = shift(images, 2, generator())
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
    assert set(shift(corner, 2, generator()).flatten(1).sum(dim=1).tolist()) == {0.0, 1.0}  # nothing wraps around


def test_no_rotation_and_no_scale_is_the_identity():
    images = torch.rand(4, 1, 8, 8)
    torch.testing.assert_close(rotate_and_scale(images, 0, 0, generator()), images)


def test_rotation_turns_up_to_its_limit_either_way():
    images = torch.zeros(300, 1, 65, 65)
    images[:, :, 32, 48:64] = 1  # an arm to the right
    turned = rotate_and_scale(images, 30, 0, generator())
    rows, columns = torch.meshgrid(torch.arange(65.0) - 32, torch.arange(65.0) - 32, indexing="ij")
    weight = turned[:, 0]
    angle = torch.atan2((weight * rows).sum((1, 2)), (weight * columns).sum((1, 2))).rad2deg()
    assert 25 < angle.max() <= 31
    assert -31 <= angle.min() < -25
    assert abs(angle.mean()) < 3


def test_scale_sizes_within_its_range():
    images = torch.zeros(300, 1, 65, 65)
    images[:, :, 22:43, 22:43] = 1
    area = rotate_and_scale(images, 0, 0.2, generator()).flatten(1).sum(dim=1) / 21**2
    side = area.sqrt()
    assert 0.79 < side.min() < 0.85
    assert 1.15 < side.max() < 1.21


def test_cutout_clears_one_square_an_image():
    holes = 1 - cutout(torch.ones(500, 1, 12, 12), 4, generator())
    sizes = holes.flatten(1).sum(dim=1)
    assert sizes.max() == 16
    assert sizes.min() >= 4  # it may hang over the edge, by half at most on each axis
    full = holes[sizes == 16][:, 0]
    rows, columns = full.amax(dim=2).sum(dim=1), full.amax(dim=1).sum(dim=1)
    assert (rows == 4).all()
    assert (columns == 4).all()
    assert len(holes.unique(dim=0)) > 50
