import numpy as np
import pytest
import torch

from capsbench.data import Raw
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.tasks.splits import split_indices, stratified_split
from capsbench.errors import InputError
from capsbench.study import Data

LABELS = torch.randint(0, 10, (3000,), generator=torch.Generator().manual_seed(0))


def test_splits_are_disjoint_sorted_and_of_the_sizes_asked_for():
    train, validation = stratified_split(LABELS, 200, 1000, seed=0)
    assert (len(train), len(validation)) == (1000, 200)
    assert not torch.isin(train, validation).any()
    assert torch.equal(train, train.unique())
    assert torch.equal(validation, validation.unique())


@pytest.mark.parametrize("size", [200, 507])
def test_each_class_keeps_its_share_to_within_one_image(size):
    _, validation = stratified_split(LABELS, size, None, seed=1)
    expected = LABELS.bincount() * size / len(LABELS)
    assert (LABELS[validation].bincount() - expected).abs().max() <= 1


def test_no_cut_keeps_all_that_is_left():
    train, validation = stratified_split(LABELS, 200, None, seed=0)
    assert torch.equal(torch.cat([train, validation]).sort().values, torch.arange(3000))
    everything, nothing = stratified_split(LABELS, 0, None, seed=0)
    assert (len(everything), len(nothing)) == (3000, 0)


def test_the_seed_decides_and_the_cut_leaves_the_validation_set_alone():
    first, again = stratified_split(LABELS, 200, 1000, seed=0), stratified_split(LABELS, 200, 1000, seed=0)
    other, larger = stratified_split(LABELS, 200, 1000, seed=1), stratified_split(LABELS, 200, 2000, seed=0)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], larger[1])
    assert not torch.equal(first[1], other[1])


PAIRS = 20  # of each object


def norb(categories=5, instances=(4, 6, 7, 8, 9)) -> Raw:
    """Pairs of `categories` x `instances` objects, in a mixed order."""
    objects = np.array([(c, i) for c in range(categories) for i in instances for _ in range(PAIRS)])
    objects = np.random.default_rng(0).permutation(objects)
    return Raw(np.zeros((len(objects), 1, 1, 1), np.uint8), objects[:, 0], {"instance": objects[:, 1]})


def data_of(name="smallnorb", validation_images=50, train_images=None, **options) -> Data:
    chosen = CATALOGUE[name].options(**options)
    return Data(name=name, options=chosen, validation_images=validation_images, train_images=train_images)


def objects_of(raw, indices) -> set[tuple[int, int]]:
    return set(zip(raw.labels[indices].tolist(), raw.factors["instance"][indices].tolist(), strict=True))


@pytest.mark.parametrize("name", ["smallnorb", "toynorb"])
def test_validation_shows_objects_that_training_does_not(name):
    raw = norb()
    train, validation = split_indices(data_of(name), raw, 0)
    held_out = objects_of(raw, validation)
    assert not held_out & objects_of(raw, train)
    assert sorted(category for category, _ in held_out) == [0, 1, 2, 3, 4]  # one of each category
    assert len(validation) == 50
    assert len(train) == 20 * PAIRS  # whole objects leave the training set
    assert np.bincount(raw.labels[validation]).tolist() == [10] * 5
    for indices in (train, validation):
        assert torch.equal(indices, indices.unique())


def test_validation_by_pair_shows_the_same_objects():
    raw = norb()
    train, validation = split_indices(data_of(validation_by="pair"), raw, 0)
    assert objects_of(raw, validation) & objects_of(raw, train)
    expected = stratified_split(torch.from_numpy(raw.labels), 50, None, 0)
    assert torch.equal(train, expected[0])
    assert torch.equal(validation, expected[1])


@pytest.mark.parametrize(("name", "images"), [("mnist", 50), ("smallnorb", 0)])
def test_without_objects_to_hold_out_the_split_is_by_image(name, images):
    raw = norb()
    train, validation = split_indices(data_of(name, images, 200), raw, 3)
    expected = stratified_split(torch.from_numpy(raw.labels), images, 200, 3)
    assert torch.equal(train, expected[0])
    assert torch.equal(validation, expected[1])


@pytest.mark.parametrize(("images", "objects"), [(1, 1), (100, 1), (101, 2), (200, 2), (400, 4)])
def test_as_many_objects_are_held_out_as_their_pairs_need(images, objects):
    raw = norb()
    train, validation = split_indices(data_of(validation_images=images), raw, 0)
    assert len(validation) == images
    assert len(train) == 5 * (5 - objects) * PAIRS
    assert len(objects_of(raw, train)) == 5 * (5 - objects)


def test_the_seed_draws_the_objects_and_the_cut_does_not():
    raw = norb()
    drawn = {seed: split_indices(data_of(), raw, seed) for seed in range(6)}
    assert len({frozenset(objects_of(raw, validation)) for _, validation in drawn.values()}) > 1
    assert torch.equal(split_indices(data_of(), raw, 0)[1], drawn[0][1])
    train, validation = split_indices(data_of(train_images=60), raw, 0)
    assert torch.equal(validation, drawn[0][1])
    assert np.bincount(raw.labels[train]).tolist() == [12] * 5
    assert not objects_of(raw, train) & objects_of(raw, validation)


@pytest.mark.parametrize(
    ("raw", "sizes", "words"),
    [
        (norb(), {"validation_images": 401}, "take 5 of the 5 objects.*none is left.*validation_by: pair"),
        (norb(instances=(4,)), {"validation_images": 5}, "take 1 of the 1 objects"),
        (norb(), {"train_images": 401}, "train_images is 401, but 400 are left"),
        (Raw(norb().images, norb().labels), {}, "needs the instance"),
        (Raw(norb().images, norb().labels, {"instance": np.full(500, -1)}), {}, "needs the instance"),
    ],
    ids=["too many", "one object", "cut", "no factor", "unknown"],
)
def test_what_cannot_be_held_out_is_refused_in_one_line(raw, sizes, words):
    with pytest.raises(InputError, match=words) as caught:
        split_indices(data_of(**sizes), raw, 0)
    assert "\n" not in str(caught.value)
