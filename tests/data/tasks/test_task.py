"""What every task must do, tested on every embedded data set of the catalogue."""

import pytest
import torch
from small_data import CASES, data_of, draws_of, every_case, task_of

from capsbench.data.catalogue import CATALOGUE
from capsbench.study import Augmentation, default_training

NONE = Augmentation()
BATCH = 64


def joined(batches):
    """Images, labels and targets of all batches."""
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def usual(name):
    """What the papers do to the training images of a data set, or a shift where that is nothing."""
    found = default_training(data_of(name)).augmentation
    return Augmentation(shift=2) if found == NONE else found


def in_a_short_epoch(task, count=150):
    task.epoch_images = min(task.epoch_images, count)
    return task


@every_case
def test_the_same_seed_and_epoch_give_the_same_batches(name, options):
    def epoch(seed, epoch):
        torch.manual_seed(seed + 7 * epoch)  # nothing is drawn from here
        return joined(in_a_short_epoch(task_of(name, "train", **options)).train_batches(40, usual(name), seed, epoch))

    first, again, next_epoch, other_seed = epoch(0, 1), epoch(0, 1), epoch(0, 2), epoch(1, 1)
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first[0], next_epoch[0])
    assert not torch.equal(first[0], other_seed[0])


@every_case
def test_every_training_image_is_shown_once_per_epoch_in_a_drawn_order(name, options):
    task = task_of(name, "train", **options)
    shown = []
    task.train_batch = lambda indices, *_: shown.append(indices)
    list(task.train_batches(BATCH, NONE, 0, 1))
    assert torch.equal(torch.cat(shown).sort().values, torch.arange(task.epoch_images))
    assert not torch.equal(torch.cat(shown), torch.arange(task.epoch_images))


@every_case
def test_the_images_of_a_batch_are_those_that_it_was_asked_for(name, options):
    task = task_of(name, "train", **options)
    if CATALOGUE[name].objects == 1:
        indices = torch.randperm(task.epoch_images, generator=torch.Generator().manual_seed(0))[:500]
        batch = task.train_batch(indices, NONE, draws_of(indices))
        assert torch.equal(batch.labels, task.labels[indices])
        assert len(batch.labels.unique()) > 1
    else:  # the first of the objects is given by the index, the others are drawn
        found = [
            torch.cat([task.train_batch(only, NONE, draws_of(only, epoch=epoch)).labels for epoch in range(1, 101)])
            for only in torch.arange(5).split(1)
        ]
        for labels in found:
            always = [value for value in labels.unique() if (labels == value).any(dim=1).all()]
            assert len(always) == 1
        assert len({tuple(labels.flatten().tolist()) for labels in found}) > 1


@every_case
def test_the_last_short_batch_is_there(name, options):
    task = task_of(name, "train", **options)
    for batches, count in (
        (task.train_batches(BATCH, NONE, 0, 1), task.epoch_images),
        (task.eval_batches(BATCH), len(task.labels)),
    ):
        sizes = [len(batch.labels) for batch in batches]
        assert count % BATCH, "this test needs a short last batch"
        assert sizes == [BATCH] * (count // BATCH) + [count % BATCH]


@every_case
def test_eval_batches_are_in_order_and_alike_in_any_size(name, options):
    task = task_of(name, "test", **options)
    task.labels = task.labels[:150]
    one, other = joined(task.eval_batches(BATCH)), joined(task.eval_batches(13))
    torch.testing.assert_close(one, other)
    assert torch.equal(one[1], task.labels)
    assert len(one[0].flatten(1).unique(dim=0)) > 100  # not one image again and again


@every_case
def test_eval_batches_are_never_augmented(name, options):
    task = task_of(name, "test", **options)
    task.labels, task.epoch_images = task.labels[:100], 100
    before = joined(task.eval_batches(BATCH))
    next(task.train_batches(BATCH, usual(name), 0, 1))
    torch.manual_seed(1)
    after = joined(task.eval_batches(BATCH))
    assert all(torch.equal(one, two) for one, two in zip(before, after, strict=True))
    whole, sources = task.eval_images(torch.arange(100))
    whole = whole if sources is None else sources
    side = before[2].shape[-1]
    margin = (whole.shape[-1] - side) // 2  # what is cropped is the middle
    middle = whole[..., margin : margin + side, margin : margin + side]
    torch.testing.assert_close(before[2], middle / 255)


@every_case
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_batches_have_the_shape_that_a_network_is_built_for(name, options, split):
    facts, task = CATALOGUE[name], task_of(name, split, **options)
    objects = () if facts.objects == 1 else (facts.objects,)
    for batch in (next(task.eval_batches(32)), next(task.train_batches(32, usual(name), 0, 1))):
        assert batch.images.shape == (32, *facts.image_shape)
        assert batch.targets.shape == (32, *objects, *facts.image_shape)
        assert batch.images.dtype == batch.targets.dtype == torch.float32
        assert batch.labels.shape == (32, *objects)
        assert batch.labels.dtype == torch.int64


@every_case
def test_targets_are_in_the_unit_range_and_labels_are_classes(name, options):
    facts, task = CATALOGUE[name], in_a_short_epoch(task_of(name, "train", **options))
    for batch in (*task.eval_batches(500), *task.train_batches(50, usual(name), 0, 1)):
        assert batch.targets.min() >= 0
        assert 0.5 < batch.targets.max() <= 1
        assert batch.labels.min() >= 0
        assert batch.labels.max() < facts.num_classes


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if CATALOGUE[case[0]].objects > 1])
def test_labels_of_several_objects_ascend(name, options):
    task = task_of(name, "train", **options)
    for batch in (*task.eval_batches(500), *task.train_batches(50, usual(name), 0, 1)):
        assert (batch.labels.diff(dim=1) > 0).all()
