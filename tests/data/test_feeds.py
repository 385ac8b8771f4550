from pathlib import Path

import numpy as np
import pytest
import torch

from capsbench.config import Augmentation
from capsbench.data import fingerprint, load, make_feed, read_raw
from capsbench.data.catalogue import CATALOGUE
from capsbench.errors import InputError
from capsbench.randomness import indexed_draws, stream

CPU = torch.device("cpu")
NOWHERE = Path("nowhere")
# the first draws of indexed_draws(0, "pairs", 2, 2): Philox4x64, keyed by sha256 of "0/pairs/0"
KNOWN = [0.6055777091097626, 0.6326169249132529, 0.5362648626651352, 0.5005188599286474]
# every data set that needs no files, small: name, options -> number of fixed items of each split
EMBEDDED = [
    ("digits", {}, {"train": 1258, "test": 539}),
    ("multidigits", {"train_pairs": 250, "test_pairs": 150}, {"train": 250, "test": 150}),
    ("affdigits", {"transforms_per_image": 2}, {"train": 1258, "familiar": 539, "test": 1078}),
    ("affdigits", {"train": "affine", "transforms_per_image": 1}, {"train": 1258, "test": 539}),
    ("toynorb", {"lightings": 1}, {"train": 4050, "test": 4050}),
    ("toynorb", {"lightings": 1, "view": "elevation"}, {"train": 1350, "familiar": 1350, "test": 2700}),
]
every_split = pytest.mark.parametrize(
    ("name", "options", "split", "count"),
    [(name, options, split, n) for name, options, splits in EMBEDDED for split, n in splits.items()],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)


def feed_of(name, split, **options):
    checked = CATALOGUE[name].options(**options)
    return make_feed(name, read_raw(name, NOWHERE, split, False, checked), split, checked, CPU)


def few(feed, count=100):
    """A feed of as many items of an epoch."""
    feed.items = min(feed.items, count)
    return feed


def augmentation_of(name):
    return Augmentation(**CATALOGUE[name].augmentation)


def test_every_embedded_data_set_is_tested_here():
    assert {name for name, *_ in EMBEDDED} == {name for name, facts in CATALOGUE.items() if not facts.needs_files}


@pytest.mark.parametrize(("name", "options", "splits"), EMBEDDED)
def test_the_catalogue_knows_what_is_read(name, options, splits):
    facts = CATALOGUE[name]
    checked = facts.options(**options)
    assert facts.has_familiar_test(checked) == ("familiar" in splits)
    raw = {split: read_raw(name, NOWHERE, split, False, checked) for split in splits}
    assert len(raw["train"].labels) == facts.training_items(checked)
    if not options:
        assert (len(raw["train"].labels), len(raw["test"].labels)) == (facts.train_items, facts.test_items)
    for found in raw.values():
        assert np.unique(found.labels).tolist() == list(range(facts.num_classes))


@every_split
def test_a_split_is_loaded_whole(name, options, split, count):
    found = load(name, NOWHERE, split, **options)
    assert len(found.images) == len(found.labels) == count
    assert found.images.dtype == torch.uint8
    assert (found.sources is not None) == (CATALOGUE[name].objects == 2)
    assert all(len(values) == count for values in found.factors.values())
    assert found.unofficial == ()


@every_split
def test_batches_have_the_shape_that_a_network_is_built_for(name, options, split, count):
    facts, feed = CATALOGUE[name], feed_of(name, split, **options)
    shape = facts.shape(facts.options(**options))
    objects = (2,) if facts.objects == 2 else ()
    assert len(feed.labels) == count
    seen = next(iter(feed.in_order(32))), next(iter(feed.epoch(32, augmentation_of(name), 0, 1)))
    for batch in seen:
        assert batch.images.shape == (32, *shape)
        assert batch.images.dtype == batch.targets.dtype == torch.float32
        assert batch.targets.shape == (32, *objects, *shape)
        assert batch.labels.shape == (32, *objects)
        assert batch.labels.dtype == torch.int64
        assert batch.targets.min() >= 0
        assert batch.targets.max() <= 1
        assert batch.labels.min() >= 0
        assert batch.labels.max() < facts.num_classes
    assert torch.equal(seen[0].labels, feed.labels[:32])


@pytest.mark.parametrize(("name", "options", "splits"), EMBEDDED)
def test_an_epoch_is_all_items_once_and_the_last_batch_may_be_short(name, options, splits):
    feed = feed_of(name, "train", **options)
    assert feed.items == splits["train"]
    chosen = []
    feed.training_batch = lambda which, *_: chosen.append(which)
    list(feed.epoch(100, Augmentation(), 0, 1))
    assert torch.equal(torch.cat(chosen).sort().values, torch.arange(feed.items))
    assert {len(which) for which in chosen[:-1]} == {100}
    assert not torch.equal(torch.cat(chosen), torch.arange(feed.items))  # shuffled


@pytest.mark.parametrize(("name", "options", "splits"), EMBEDDED)
def test_an_epoch_depends_on_its_seed_and_number_alone(name, options, splits):
    def seen(seed, epoch):
        torch.manual_seed(seed + 7 * epoch)  # nothing is drawn from here
        batches = list(few(feed_of(name, "train", **options)).epoch(40, augmentation_of(name), seed, epoch))
        return torch.cat([batch.images for batch in batches])

    first = seen(0, 1)
    assert torch.equal(first, seen(0, 1))
    assert not torch.equal(first, seen(0, 2))
    assert not torch.equal(first, seen(1, 1))


@pytest.mark.parametrize(("name", "options", "splits"), EMBEDDED)
def test_fixed_items_are_alike_in_batches_of_any_size(name, options, splits):
    feed = feed_of(name, "test", **options)
    feed.labels = feed.labels[:90]
    one, other = ([torch.cat(parts) for parts in zip(*feed.in_order(size), strict=True)] for size in (90, 13))
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("name", "options", "splits"), EMBEDDED[:4])
def test_fingerprints_are_stable_and_belong_to_the_split(name, options, splits):
    prints = {split: load(name, NOWHERE, split, **options).fingerprint for split in splits}
    assert len(set(prints.values())) == len(splits)
    assert load(name, NOWHERE, "test", **options).fingerprint == prints["test"]
    assert all(len(value) == 64 for value in prints.values())


def test_another_draw_of_the_test_is_another_fingerprint():
    pairs = [load("multidigits", NOWHERE, "test", test_pairs=20, pair_seed=seed).fingerprint for seed in (0, 0, 1)]
    assert pairs[0] == pairs[1] != pairs[2]


def test_a_fingerprint_is_of_shapes_bytes_and_order():
    a, b = np.arange(12, dtype=np.uint8), np.arange(3)
    known = fingerprint([a, b])
    assert known == fingerprint([a.copy(), b.copy()])
    assert fingerprint([np.arange(24, dtype=np.uint8)[::2]]) == fingerprint([np.arange(0, 24, 2, dtype=np.uint8)])
    assert len({known, fingerprint([b, a]), fingerprint([a.reshape(3, 4), b]), fingerprint([a + 1, b])}) == 4


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("digit", "train"), {}, "no data set 'digit'; there are digits, mnist"),
        (("digits", "validation"), {}, "no split 'validation' of digits; there are train, test"),
        (("digits", "familiar"), {}, "no split 'familiar' of digits"),
        (("affdigits", "familiar"), {"train": "affine"}, "no split 'familiar' of affdigits"),
        (("toynorb", "familiar"), {}, "no split 'familiar' of toynorb"),
        (("digits", "train"), {"shift": 2}, "digits: option 'shift': Extra inputs are not permitted"),
        (("multidigits", "train"), {"shift": 5}, "multidigits: option 'shift': .* less than or equal to 4"),
        (("multidigits", "train"), {"combine": "mean"}, "multidigits: option 'combine': .*'sum' or 'maximum'"),
        (("toynorb", "train"), {"view": "top"}, "toynorb: option 'view': "),
        (("toynorb", "train"), {"test_crops": 5}, "toynorb: option 'test_crops': .* 1 or 13"),
        (("toynorb", "train"), {"lightings": 0}, "toynorb: option 'lightings': .* greater than or equal to 1"),
        (("mnist", "train"), {}, "missing"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(tmp_path, arguments, options, message):
    name, split = arguments
    with pytest.raises(InputError, match=message) as caught:
        load(name, tmp_path, split, **options)
    assert "\n" not in str(caught.value)


def test_mnist_has_no_factors(mnist_root):
    found = load("mnist", mnist_root, "test")
    assert found.factors == {}
    assert found.images.shape == (CATALOGUE["mnist"].test_items, 1, 28, 28)


def test_draws_by_index_depend_on_seed_purpose_and_row_alone():
    many = indexed_draws(3, "pairs", 1000, 5)
    assert many.shape == (1000, 5)
    assert many.dtype == torch.float64
    for count in (1, 17, 999):
        assert torch.equal(indexed_draws(3, "pairs", count, 5), many[:count])
    assert not torch.equal(indexed_draws(4, "pairs", 1000, 5), many)
    assert not torch.equal(indexed_draws(3, "placement", 1000, 5), many)
    assert 0 <= many.min() < 0.01
    assert 0.99 < many.max() < 1
    assert (many.mean(dim=0) - 0.5).abs().max() < 0.05
    assert len(many.flatten().unique()) == 5000


def test_draws_by_index_are_what_they_were():
    """Typed from numpy 2: test items of a published study must not change with a version."""
    assert indexed_draws(0, "pairs", 2, 2).flatten().tolist() == pytest.approx(KNOWN, abs=1e-12)


def test_streams_of_a_purpose_are_apart():
    first, again, other = (torch.rand(5, generator=stream(0, purpose, 1)) for purpose in ("order", "order", "dropout"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
