import pytest
import torch
from small_data import CPU, draws_of, every_case, task_of
from torch.utils._python_dispatch import TorchDispatchMode
from waiting import WAITING

from capsbench.data.tasks import draws as draws_module
from capsbench.data.tasks.augmentation import augment
from capsbench.data.tasks.draws import EpochDraws
from capsbench.study import Augmentation

EVERYTHING = Augmentation(shift=2, flip=True, rotation=20, scale=0.1, cutout=3, brightness=0.2, contrast=0.5)


def shown(task, batch_size, augmentation=EVERYTHING, count=300):
    """Images, labels and targets of one epoch in the order of the epoch."""
    task.epoch_images = count
    batches = list(task.train_batches(batch_size, augmentation, seed=3, epoch=2))
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


@every_case
def test_the_same_images_are_shown_in_batches_of_any_size(name, options):
    first, *others = (shown(task_of(name, "train", **options), size, count=250) for size in (32, 100, 128))
    for other in others:
        torch.testing.assert_close(other, first, atol=5e-6, rtol=0)
    assert len(first[0].flatten(1).unique(dim=0)) > 200


class Unwanted(TorchDispatchMode):
    """Notes operations that draw random numbers or read a generator, and those for which a GPU is waited for."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Note the operation where torch says that its result is random, or where it waits."""
        if torch.Tag.nondeterministic_seeded in function.tags or function.overloadpacket in WAITING:
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))


def test_what_is_unwanted_is_seen_by_this_test():
    with Unwanted() as seen:
        torch.tensor([1.0])
        torch.linalg.inv(torch.eye(2))
        torch.eye(2).nonzero()
        torch.rand(3)
        torch.randint(4, (2,), generator=torch.Generator())
        torch.randperm(4)
        torch.nn.functional.dropout(torch.ones(3))
    assert len(seen.found) >= 7


@every_case
def test_making_a_batch_draws_nothing_makes_no_table_and_waits_for_nothing(name, options, monkeypatch):
    task = task_of(name, "train", **options)
    batches = task.train_batches(32, EVERYTHING, seed=0, epoch=1)
    next(batches)  # tables are made for the first batch of an epoch
    monkeypatch.setattr(draws_module, "indexed_draws", None)
    with Unwanted() as seen:
        next(batches)
    assert seen.found == []


@pytest.mark.parametrize("change", [{"flip": True}, {"rotation": 20}], ids=str)
def test_adding_one_change_leaves_the_draws_of_another(change):
    """Digits are shifted alike whether they are also flipped (rotated) or not."""
    spot = torch.zeros(20, 1, 9, 9)
    spot[:, :, 4, 4] = 1  # the middle, which no flip and no rotation moves
    shifted = augment(spot, Augmentation(shift=2), draws_of(torch.arange(20)))
    both = augment(spot, Augmentation(shift=2, **change), draws_of(torch.arange(20)))
    assert torch.equal(both.flatten(1).argmax(dim=1), shifted.flatten(1).argmax(dim=1))
    assert len(shifted.flatten(1).argmax(dim=1).unique()) > 5


def test_an_image_keeps_its_draws_wherever_it_stands():
    epoch = EpochDraws(seed=0, epoch=1, images=1000, device=CPU)
    one, other = epoch.of(torch.tensor([5, 900, 7])), epoch.of(torch.tensor([7, 5]))
    assert torch.equal(one("shift", 2)[[2, 0]], other("shift", 2))
    assert one("shift", 2).dtype == torch.float64
    more = EpochDraws(seed=0, epoch=1, images=5000, device=CPU).of(torch.tensor([5, 900, 7]))
    assert torch.equal(more("shift", 2), one("shift", 2))
    for seed, number, purpose in ((1, 1, "shift"), (0, 2, "shift"), (0, 1, "crop")):
        changed = EpochDraws(seed, number, 1000, CPU).of(torch.tensor([5, 900, 7]))
        assert not torch.equal(changed(purpose, 2), one("shift", 2))


def test_objects_of_an_image_have_draws_of_their_own():
    pair = EpochDraws(0, 1, 50, CPU).of(torch.tensor([4, 9])).for_each(2)
    rows = pair("shift", 2)
    assert rows.shape == (4, 2)
    assert len(rows.unique(dim=0)) == 4
    swapped = EpochDraws(0, 1, 50, CPU).of(torch.tensor([9, 4])).for_each(2)
    assert torch.equal(swapped("shift", 2), rows[[2, 3, 0, 1]])  # the two objects of an image stand together


def test_draws_are_uniform():
    table = EpochDraws(0, 1, 20_000, CPU).of(torch.arange(20_000))("crop", 2)
    assert 0 <= table.min() < 0.001
    assert 0.999 < table.max() < 1
    for column in table.T:
        counts = (column * 17).long().bincount(minlength=17).double()
        assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 40  # 16 degrees of freedom: p < 0.001 beyond it
    assert abs(float(torch.corrcoef(table.T)[0, 1])) < 0.03
