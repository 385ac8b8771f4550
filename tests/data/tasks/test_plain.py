import pytest
import torch

from capsbench.data import Raw
from capsbench.data.tasks.task import Plain
from capsbench.study import Augmentation

NONE = Augmentation(shift=0)
IMAGES = torch.arange(50, dtype=torch.uint8).reshape(50, 1, 1, 1).expand(50, 1, 8, 8).contiguous()
LABELS = torch.arange(50)
CHANGES = [{"shift": 2}, {"rotation": 20}, {"scale": 0.2}, {"cutout": 3}]


def task(images=IMAGES):
    return Plain(Raw(images.numpy(), LABELS.numpy()), torch.device("cpu"))


def epoch(seed=0, epoch=1, augmentation=NONE, images=IMAGES):
    batches = list(task(images).train_batches(16, augmentation, seed, epoch))
    return torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches])


def test_an_epoch_shows_every_image_once_with_its_label_in_the_unit_range():
    images, labels = epoch()
    assert torch.equal(labels.sort().values, LABELS)
    torch.testing.assert_close(images[:, 0, 0, 0], labels / 255)
    assert [len(batch.labels) for batch in task().train_batches(16, NONE, 0, 1)] == [16, 16, 16, 2]


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


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_a_decoder_should_give_back_is_the_augmented_image(change):
    images = torch.randint(0, 256, (50, 1, 8, 8), dtype=torch.uint8)
    for batch in task(images).train_batches(16, Augmentation(**change), 0, 1):
        assert torch.equal(batch.targets, batch.images)
        assert batch.targets.min() >= 0
        assert batch.targets.max() <= 1


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_each_augmentation_acts(change):
    images = torch.randint(0, 256, (50, 1, 8, 8), dtype=torch.uint8)
    changed = epoch(augmentation=Augmentation(**{"shift": 0, **change}), images=images)[0]
    assert (changed != epoch(images=images)[0]).flatten(1).any(dim=1).float().mean() > 0.8


def test_eval_batches_keep_order_and_values():
    batches = list(task().eval_batches(16))
    assert [len(batch.labels) for batch in batches] == [16, 16, 16, 2]
    assert torch.equal(torch.cat([batch.labels for batch in batches]), LABELS)
    torch.testing.assert_close(torch.cat([batch.images for batch in batches]), IMAGES / 255)
    torch.testing.assert_close(torch.cat([batch.targets for batch in batches]), IMAGES / 255)
