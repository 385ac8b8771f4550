import torch

from capsbench.randomness import stream, stream_seed


def test_streams_are_told_apart_by_seed_purpose_and_epoch():
    keys = [(s, p, e) for s in (0, 1) for p in ("order", "augmentation", "dropout", "initialisation") for e in (0, 1)]
    assert len({stream_seed(*key) for key in keys}) == len(keys)
    assert torch.equal(torch.rand(3, generator=stream(0, "order", 1)), torch.rand(3, generator=stream(0, "order", 1)))


def test_seeds_stay_what_they_are():
    # a change here changes every result that is published
    assert stream_seed(0, "order", 1) == 4489457307835839548
