import typing

import torch

from capsbench.streams import Purpose, indexed_draws, stream, stream_seed

PURPOSES = typing.get_args(Purpose)


def test_streams_differ_by_seed_purpose_and_epoch():
    keys = [(seed, purpose, epoch) for seed in (0, 1) for purpose in PURPOSES for epoch in (0, 1)]
    assert len({stream_seed(*key) for key in keys}) == len(keys) > 8
    assert torch.equal(torch.rand(3, generator=stream(0, "order", 1)), torch.rand(3, generator=stream(0, "order", 1)))


def test_seeds_stay_what_they_are():
    # a change here changes every result that is published
    assert stream_seed(0, "order", 1) == 4489457307835839548
    assert indexed_draws(0, "placement", 1, 2).tolist() == [[0.01672609574769257, 0.8248610580835135]]


def test_a_row_of_indexed_draws_depends_on_its_index_alone():
    few, many = indexed_draws(3, "pairs", 4, 5), indexed_draws(3, "pairs", 900, 5)
    assert many.shape == (900, 5) and many.dtype == torch.float64
    assert torch.equal(few, many[:4])
    assert many.min() >= 0 and many.max() < 1
    assert abs(many.mean() - 0.5) < 0.02
    assert not torch.equal(indexed_draws(4, "pairs", 4, 5), few)
    assert not torch.equal(indexed_draws(3, "placement", 4, 5), few)
