import torch

from capsbench.data import load
from capsbench.data.catalogue import CATALOGUE


def test_splits_have_the_stated_sizes_and_shapes():
    for split, count in (("train", CATALOGUE["digits"].train_items), ("test", CATALOGUE["digits"].test_items)):
        found = load("digits", "nowhere", split)
        assert found.images.shape == (count, 1, 28, 28)
        assert found.images.dtype == torch.uint8
        assert found.labels.dtype == torch.int64
        assert found.factors == {}


def test_splits_are_stratified_and_share_no_image():
    train, test = load("digits", "nowhere", "train"), load("digits", "nowhere", "test")
    share = test.labels.bincount() / (train.labels.bincount() + test.labels.bincount())
    assert (share - 0.3).abs().max() < 0.01
    rows = {bytes(image.numpy().tobytes()) for image in train.images}
    assert not any(image.numpy().tobytes() in rows for image in test.images)


def test_digits_leave_the_border_of_mnist_empty():
    images = load("digits", "nowhere", "train").images
    assert images[:, :, 4:24, 4:24].max() == 255
    border = images.clone()
    border[:, :, 4:24, 4:24] = 0
    assert border.max() == 0


def test_fingerprint_belongs_to_the_content():
    first, again, other = (load("digits", "nowhere", s) for s in ("train", "train", "test"))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert len(first.fingerprint) == 64
