import numpy as np
import pytest
import torch
from small_data import CPU, data_of, draws_of

from capsbench.data import Raw, make_task
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.tasks.cropped import CroppedOptions, central_crops
from capsbench.study import Augmentation

COUNT = 200
NOTHING = Augmentation()


def coordinates():
    """Images whose first two channels are each pixel's row and column, and whose third is the image's number."""
    rows, columns = np.mgrid[:32, :32].astype(np.uint8)
    return np.stack([np.stack([rows, columns, np.full_like(rows, n)]) for n in range(COUNT)])


def task(split="train", **options):
    raw = Raw(coordinates(), np.arange(COUNT) % 10)
    return make_task(data_of("cifar10", **options), raw, split, CPU)


def batch_of(made, augmentation=NOTHING, seed=0):
    images = torch.arange(COUNT)
    return made.train_batch(images, augmentation, draws_of(images, seed))


def test_by_default_images_are_whole_and_nothing_is_drawn():
    made = task()
    batch = made.train_batch(torch.arange(COUNT), NOTHING, None)
    np.testing.assert_array_equal((batch.images * 255).round().numpy(), coordinates())
    assert torch.equal(next(made.eval_batches(COUNT)).images, batch.images)


@pytest.mark.parametrize("side", [24, 25, 31])
def test_training_crops_lie_anywhere_and_each_image_has_a_place_of_its_own(side):
    images = (batch_of(task(crop=side)).images * 255).round()
    assert images.shape == (COUNT, 3, side, side)
    tops, lefts = images[:, 0, 0, 0], images[:, 1, 0, 0]
    assert tops.unique().tolist() == lefts.unique().tolist() == list(range(32 - side + 1))
    assert len(torch.stack([tops, lefts], 1).unique(dim=0)) > (32 - side + 1)  # not tied to one another
    steps = torch.arange(side)
    assert torch.equal(images[:, 0], (tops[:, None, None] + steps[:, None]).expand(-1, side, side))
    assert torch.equal(images[:, 1], (lefts[:, None, None] + steps).expand(-1, side, side))
    assert images[:, 2, 0, 0].tolist() == list(range(COUNT))


@pytest.mark.parametrize("split", ["test", "validation"])
def test_evaluation_shows_the_middle(split):
    images = (next(task(split, crop=24).eval_batches(50)).images * 255).round()
    assert images[:, 0, 0, 0].unique().tolist() == images[:, 1, 0, 0].unique().tolist() == [4]
    assert images[:, 0, -1, 0].unique().tolist() == [27]


def test_whole_images_are_what_a_data_set_is_described_by():
    assert task(crop=24).eval_images(torch.arange(3))[0].shape == (3, 3, 32, 32)
    assert data_of("cifar10", crop=24).image_shape == (3, 24, 24)
    assert data_of("cifar10").image_shape == (3, 32, 32)


def test_standardised_images_have_mean_0_and_std_1_and_targets_in_the_unit_range():
    made = task(crop=24, standardise=True)
    for batch in (batch_of(made), next(made.eval_batches(COUNT))):
        std, mean = torch.std_mean(batch.images, dim=(1, 2, 3), correction=0)
        torch.testing.assert_close(mean, torch.zeros(COUNT), atol=1e-4, rtol=0)
        torch.testing.assert_close(std, torch.ones(COUNT), atol=1e-4, rtol=0)
        assert 0 <= batch.targets.min() <= batch.targets.max() <= 1
        assert batch.targets[1, 2].unique().tolist() == [pytest.approx(1 / 255)]


def test_contrast_acts_before_standardisation_and_leaves_the_target_alone():
    made = task(crop=24, standardise=True)
    plain, changed = batch_of(made), batch_of(made, Augmentation(contrast=0.8, brightness=0.2))
    assert torch.equal(plain.targets, changed.targets)
    assert (plain.images - changed.images).abs().amax(dim=(1, 2, 3)).median() > 1e-2


def test_crops_of_other_images():
    images = torch.arange(2 * 7 * 9.0).reshape(2, 1, 7, 9)
    assert torch.equal(central_crops(images, 4), images[:, :, 1:5, 2:6])


def test_the_papers_augmentation_follows_the_options():
    facts = CATALOGUE["cifar10"]
    assert facts.default_augmentation(CroppedOptions()) == {"shift": 4, "flip": True}
    assert facts.default_augmentation(CroppedOptions(crop=24)) == {"flip": True}
    s17 = facts.default_augmentation(CroppedOptions(crop=24, standardise=True))
    assert s17 == {"flip": True, "brightness": 63 / 255, "contrast": 0.8}
    assert facts.takes_brightness(CroppedOptions(standardise=True))
    assert not facts.takes_brightness(CroppedOptions())
