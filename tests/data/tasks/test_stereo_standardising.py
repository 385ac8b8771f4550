import numpy as np
import pytest
import torch
from small_data import CPU, data_of, draws_of
from stereo_pairs import NONE, PAPER, drawn, offsets, raw_of, task_of

from capsbench.data import Raw, make_task
from capsbench.data.tasks.augmentation import brightness_and_contrast, standardise
from capsbench.data.tasks.stereo import (
    Crops,
    NorbOptions,
    ToyNorbOptions,
    class_shares,
)
from capsbench.study import Augmentation


@pytest.mark.parametrize("augmentation", [NONE, PAPER], ids=["none", "the paper's"])
def test_every_image_has_mean_0_and_std_1_by_its_own_statistics(augmentation):
    raw = raw_of()
    scaled = Raw((raw.images * np.linspace(0.6, 1, 40)[:, None, None, None]).astype(np.uint8), raw.labels)
    task = task_of(scaled)
    for batch in (drawn(task, augmentation), task.eval_batch(torch.arange(40), 0)):
        torch.testing.assert_close(batch.images.mean(dim=(1, 2, 3)), torch.zeros(40), atol=1e-4, rtol=0)
        torch.testing.assert_close(batch.images.std(dim=(1, 2, 3), correction=0), torch.ones(40))
    alone = task.eval_batch(torch.tensor([7]), 0).images
    torch.testing.assert_close(task.eval_batch(torch.arange(40), 0).images[7:8], alone)


def with_and_without(task, augmentation):
    """What a network sees of each crop without brightness and contrast, and with them."""
    batch = drawn(task, augmentation)
    return standardise(batch.targets), batch.images


def test_a_dull_image_is_standardised_too_and_only_an_even_one_is_not():
    """At contrast 0.2 real crops come down to a std of 2 of 255; the floor, 1 / sqrt(2048), is of that scale."""
    dull = 0.5 + torch.randn(4, 2, 32, 32, generator=torch.Generator().manual_seed(0)) * 10 / 255 * 0.2
    torch.testing.assert_close(standardise(dull).std(dim=(1, 2, 3), correction=0), torch.ones(4))
    assert standardise(torch.full((1, 2, 32, 32), 0.5)).abs().max() < 1e-3


def test_standardising_undoes_brightness():
    raw = raw_of()
    plain, seen = with_and_without(task_of(raw), Augmentation(brightness=63 / 255))
    torch.testing.assert_close(seen, plain, atol=1e-4, rtol=1e-4)


def test_of_contrast_the_difference_between_the_cameras_means_is_left():
    raw = raw_of()
    level = raw.images.copy()
    level[:, 1] = level[:, 0, ::-1]  # both cameras have one mean: contrast is undone altogether
    plain, seen = with_and_without(task_of(Raw(level, raw.labels)), Augmentation(contrast=0.8))
    torch.testing.assert_close(seen, plain, atol=1e-4, rtol=1e-4)
    level[:, 1] //= 2
    plain, seen = with_and_without(task_of(Raw(level, raw.labels)), Augmentation(contrast=0.8))
    apart = (seen - plain).flatten(1).abs().mean(dim=1)
    assert (apart > 0.01).float().mean() > 0.8
    # each camera's image is the same but for a linear map
    for camera in (0, 1):
        for one, other in zip(plain[:, camera].flatten(1), seen[:, camera].flatten(1), strict=True):
            assert float(torch.corrcoef(torch.stack([one, other]))[0, 1]) == pytest.approx(1, abs=1e-4)


def after(**options):
    return {"augment": "after_standardising", **options}


def test_after_standardising_whole_images_are_standardised_and_then_cropped():
    raw = raw_of()
    whole = standardise(torch.from_numpy(raw.images) / 255)
    batch = task_of(raw, **after()).eval_batch(torch.arange(40), 0)
    torch.testing.assert_close(batch.images, whole[:, :, 8:40, 8:40])
    assert (batch.images - standardise(batch.targets)).abs().max() > 0.01  # the crop's own statistics are others
    training = drawn(task_of(raw, **after()))
    for image, seen, (row, column) in zip(whole, training.images, offsets(raw, training.targets).tolist(), strict=True):
        torch.testing.assert_close(seen, image[:, row : row + 32, column : column + 32])


@pytest.mark.parametrize("augment", ["before_standardising", "after_standardising"])
def test_brightness_acts_after_standardising_and_is_undone_before_it(augment):
    raw = raw_of()
    bright = Augmentation(brightness=63 / 255)
    plain, seen = drawn(task_of(raw, augment=augment)), drawn(task_of(raw, augment=augment), bright)
    if augment == "after_standardising":  # crops are in the same places
        assert torch.equal(plain.targets, seen.targets)
        added = (seen.images - plain.images).flatten(1)
        torch.testing.assert_close(added, added[:, :1].expand_as(added), atol=1e-5, rtol=0)
        assert 0.9 * 63 / 255 < added[:, 0].abs().max() <= 63 / 255 + 1e-6  # its unit is the standard deviation
    else:
        assert (seen.images - standardise(seen.targets)).abs().max() < 1e-5


def test_contrast_after_standardising_is_about_the_mean_of_the_crop():
    raw = raw_of()
    plain, seen = drawn(task_of(raw, **after())), drawn(task_of(raw, **after()), Augmentation(contrast=0.8))
    torch.testing.assert_close(seen.images.mean(dim=(2, 3)), plain.images.mean(dim=(2, 3)), atol=1e-5, rtol=0)
    factor = seen.images.std(dim=(1, 2, 3)) / plain.images.std(dim=(1, 2, 3))
    assert factor.min() < 0.6
    assert factor.max() > 1.4


@pytest.mark.parametrize("options", [NorbOptions, ToyNorbOptions])
def test_the_training_set_standardises_each_camera_alike_everywhere(options):
    raw = raw_of()
    chosen = options(standardise_by="training_set")
    batch = Crops(raw, chosen, CPU).eval_batch(torch.arange(40), 0)
    for camera in (0, 1):
        expected = (batch.targets[:, camera] - chosen.camera_means[camera]) / chosen.camera_stds[camera]
        torch.testing.assert_close(batch.images[:, camera], expected)
    alone = Crops(raw.take(np.arange(3)), chosen, CPU).eval_batch(torch.arange(3), 0)
    assert torch.equal(alone.images, batch.images[:3])


MAZZIA = {"resize": "bilinear_64", "crop": 48, **after(standardise_by="training_set")}


def test_efficient_capsnets_protocol_can_be_written():
    """Its code standardises, brings to 64x64, crops 48x48 at random or in the centre, adds up to 2.0, contrast 0.5."""
    data = data_of("smallnorb", **MAZZIA)
    assert data.image_shape == (2, 48, 48)
    usual = data.facts.augmentation
    assert dict(data.options.augmentation(usual)) == {"brightness": 2.0, "contrast": 0.5}
    assert NorbOptions().augmentation(usual) == usual
    raw = raw_of(side=64)
    task = make_task(data, raw, "train", CPU)
    mean, std = (torch.tensor(v)[:, None, None] for v in (NorbOptions.camera_means, NorbOptions.camera_stds))
    whole = (torch.from_numpy(raw.images) / 255 - mean) / std
    torch.testing.assert_close(task.eval_batch(torch.arange(40), 0).images, whole[:, :, 8:56, 8:56])
    augmentation = Augmentation(**data.options.augmentation(usual))
    batch = drawn(task, augmentation, seed=3)
    draws = draws_of(torch.arange(40), seed=3)
    rows, columns = (draws("crop", 2) * 17).long().T.tolist()
    cut = [image[:, r : r + 48, c : c + 48] for image, r, c in zip(whole, rows, columns, strict=True)]
    expected = brightness_and_contrast(torch.stack(cut), 2.0, 0.5, draws("brightness_and_contrast", 2))
    torch.testing.assert_close(batch.images, expected)


def test_shares_of_a_crop_sum_to_one():
    activations = torch.tensor([[0.9, 0.3], [0.01, 0.03], [0.0, 0.0]])
    torch.testing.assert_close(
        class_shares(torch.zeros(3, 2), activations), torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.0, 0.0]])
    )
    logits = torch.tensor([[1000.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(class_shares(logits, None), torch.tensor([[1.0, 0.0], [0.5, 0.5]]))


def test_the_test_is_never_augmented():
    task = task_of()
    before = task.eval_batch(torch.arange(40), 0)
    drawn(task, PAPER)
    torch.manual_seed(1)
    after = task.eval_batch(torch.arange(40), 0)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
