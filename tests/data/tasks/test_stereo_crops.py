import numpy as np
import pytest
import torch
from stereo_pairs import PAPER, drawn, offsets, raw_of, task_of

from capsbench.data import Raw
from capsbench.data.tasks.augmentation import standardise
from capsbench.data.tasks.stereo import (
    CROPS,
    SIDES,
    NorbOptions,
    ToyNorbOptions,
    resized,
)


def test_training_crops_are_drawn_for_each_image_and_reach_every_place():
    raw = Raw(np.tile(raw_of(1).images, (5000, 1, 1, 1)), np.zeros(5000, np.int64))
    targets = drawn(task_of(raw, crop=32)).targets
    corner = raw.images[0, 0].astype(int)
    # the crop's upper left pixels tell its place: one number of three neighbours
    key = torch.from_numpy(corner[:-1, :-1] * 65536 + corner[:-1, 1:] * 256 + corner[1:, :-1])[:17, :17]
    assert key.unique().numel() == 17 * 17
    shown = (targets[:, 0] * 255).round().long()
    found = shown[:, 0, 0] * 65536 + shown[:, 0, 1] * 256 + shown[:, 1, 0]
    place = (key.flatten()[None] == found[:, None]).int().argmax(dim=1)
    assert (key.flatten()[place] == found).all()  # each is at one of the 17 x 17 places
    counts = place.bincount(minlength=17 * 17)
    assert counts.min() > 0  # 17 are expected of each
    for axis in (place // 17, place % 17):
        by_place = axis.bincount(minlength=17)
        assert by_place.min() > 0.75 * 5000 / 17


@pytest.mark.parametrize("crop", [32, 28, 48])
def test_a_target_is_the_crop_as_it_is_and_the_image_is_the_crop_standardised(crop):
    raw = raw_of()
    batch = drawn(task_of(raw, crop=crop))
    assert batch.targets.shape == batch.images.shape == (40, 2, crop, crop)
    place = offsets(raw, batch.targets)  # raises unless it is a part of both cameras' images, at one place
    assert place.max() <= 48 - crop
    assert torch.equal(batch.labels, torch.from_numpy(raw.labels))
    torch.testing.assert_close(batch.images, standardise(batch.targets))


def test_a_target_knows_nothing_of_brightness_and_contrast():
    raw = raw_of()
    plain, changed = drawn(task_of(raw)), drawn(task_of(raw), PAPER)
    assert changed.targets.min() >= 0
    assert changed.targets.max() <= 1
    offsets(raw, changed.targets)
    assert not torch.equal(plain.images, changed.images)


def test_both_cameras_are_cropped_at_one_place_and_drawn_anew():
    raw = raw_of()
    task = task_of(raw)
    first, again, other = (offsets(raw, drawn(task, seed=seed).targets) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert (first != other).any(dim=1).float().mean() > 0.8
    assert len(first.unique(dim=0)) > 30  # not one for the whole batch


@pytest.mark.parametrize(("crop", "margin"), [(32, 8), (48, 0), (31, 8), (1, 23)])
def test_the_test_shows_the_centre(crop, margin):
    raw = raw_of()
    task = task_of(raw, crop=crop)
    (batch,) = task.eval_batches(100)
    middle = raw.images[:, :, margin : margin + crop, margin : margin + crop]
    torch.testing.assert_close(batch.targets, torch.from_numpy(middle) / 255)
    torch.testing.assert_close(batch.images, standardise(batch.targets))
    assert torch.equal(batch.labels, torch.from_numpy(raw.labels))


def places_of_13(**options):
    raw = raw_of()
    task = task_of(raw, views=13, **options)
    assert task.views == len(CROPS["run"]) == len(CROPS["written"]) == 13
    places = [offsets(raw, next(task.eval_batches(100, view)).targets) for view in range(13)]
    assert all(len(place.unique(dim=0)) == 1 for place in places)  # alike for every image
    return [tuple((place[0] - 8).tolist()) for place in places]


def test_thirteen_crops_go_along_both_diagonals_as_the_authors_wrote():
    found = places_of_13(crop_offsets="written")
    assert set(found) == {(0, 0)} | {(y, x) for n in (1, 2, 3) for y in (n, -n) for x in (n, -n)}


def test_thirteen_crops_are_by_default_where_tensorflow_puts_them():
    """TF1's extract_glimpse puts the upper left corner at int(48 / 2 + offset / 2 - 32 / 2); the centre is at 8."""
    found = places_of_13()
    expected = [(0, 0)]
    for n in (1, 2, 3):
        for y in (n, -n):
            expected += [(int(24 + y / 2 - 16) - 8, int(24 + x / 2 - 16) - 8) for x in (n, -n)]
    assert found == expected
    assert len(set(found)) == 10


def test_crops_that_are_nearly_whole_stay_inside():
    raw = raw_of()
    task = task_of(raw, views=13, crop=46)
    for view in range(13):
        assert offsets(raw, next(task.eval_batches(100, view)).targets).max() <= 2


@pytest.mark.parametrize(
    "options", [{"crop": 49}, {"resize": "mean", "crop": 64}, {"resize": "bilinear_64", "crop": 65}]
)
def test_a_crop_is_no_larger_than_the_image(options):
    with pytest.raises(ValueError, match="crop"):
        NorbOptions(**options)
    assert NorbOptions(resize="bilinear_64", crop=64).side == 64


def test_resized_images_have_their_sides():
    images = torch.rand(2, 3, 96, 96)
    for resize, side in SIDES.items():
        assert resized(images, resize).shape == (2, 3, side, side)
    assert torch.equal(resized(images, "every_second"), images[..., ::2, ::2])


def test_smallnorb_takes_every_second_pixel_and_toynorb_the_mean():
    assert (NorbOptions().resize, ToyNorbOptions().resize) == ("every_second", "mean")


def test_an_epoch_shows_every_pair_once_with_its_label():
    raw = raw_of()
    labelled = Raw(raw.images, np.arange(40))
    batches = list(task_of(labelled).train_batches(16, PAPER, 0, 1))
    assert [len(batch.labels) for batch in batches] == [16, 16, 8]
    labels = torch.cat([batch.labels for batch in batches])
    assert torch.equal(labels.sort().values, torch.arange(40))
    offsets(Raw(raw.images[labels.numpy()], labels.numpy()), torch.cat([batch.targets for batch in batches]))
