import pytest
import torch

from capsbench.data.tasks.splits import stratified_split

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
