import numpy as np
import pytest
import torch
from small_data import CASES, NOWHERE, data_of

from capsbench.data import data_root, fingerprint, load
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.prepare import splits_of
from capsbench.errors import InputError
from capsbench.streams import indexed_draws, stream

# the first draws of indexed_draws(0, "pairs", 2, 2): Philox4x64, keyed by sha256 of "0/pairs/0"
KNOWN = [0.6055777091097626, 0.6326169249132529, 0.5362648626651352, 0.5005188599286474]
# images of each split, in the order of CASES
COUNTS = [
    {"train": 1258, "test": 539},
    {"train": 250, "test": 150},
    {"train": 1258, "familiar": 539, "test": 1078},
    {"train": 4050, "test": 4050},
    {"train": 4050, "test": 4050},
    {"train": 1258, "test": 539},
    {"train": 1350, "familiar": 1350, "test": 2700},
]
every_split = pytest.mark.parametrize(
    ("name", "options", "split", "count"),
    [(*case, split, n) for case, counts in zip(CASES, COUNTS, strict=True) for split, n in counts.items()],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)


@pytest.mark.parametrize(("case", "counts"), list(zip(CASES, COUNTS, strict=True)), ids=str)
def test_every_split_is_tested_here(case, counts):
    name, options = case
    assert splits_of(data_of(name, **options)) == list(counts)


@every_split
def test_a_split_is_loaded_whole(name, options, split, count):
    found = load(name, NOWHERE, split, **options)
    assert len(found.images) == len(found.labels) == count
    assert found.images.dtype == torch.uint8
    assert (found.sources is not None) == (CATALOGUE[name].objects == 2)
    assert all(len(values) == count for values in found.factors.values())
    assert found.unofficial == ()


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if not case[0].startswith("toynorb")], ids=str)
def test_fingerprints_are_stable_and_belong_to_the_split(name, options):
    splits = splits_of(data_of(name, **options))
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
        (("digit", "train"), {}, "no data set 'digit'; did you mean digits.*multidigits"),
        (("digits", "validation"), {}, "no split 'validation' of digits; there are train, test"),
        (("digits", "familiar"), {}, "no split 'familiar' of digits"),
        (("affdigits", "familiar"), {"train": "affine"}, "no split 'familiar' of affdigits"),
        (("toynorb", "familiar"), {}, "no split 'familiar' of toynorb"),
        (("digits", "train"), {"shift": 2}, "digits: option 'shift': Extra inputs are not permitted"),
        (("multidigits", "train"), {"shift": 9}, "multidigits: option 'shift': .* less than or equal to 8"),
        (("multidigits", "train"), {"base_shift": "image"}, "multidigits: option 'base_shift': .*'pair' or 'digit'"),
        (("affdigits", "test"), {"placement": "centre"}, "affdigits: option 'placement': .*'anywhere' or 'training'"),
        (("multidigits", "train"), {"combine": "mean"}, "multidigits: option 'combine': .*'sum' or 'maximum'"),
        (("toynorb", "train"), {"view": "top"}, "toynorb: option 'view': "),
        (("toynorb", "train"), {"test_crops": 5}, "toynorb: option 'test_crops': .* 1 or 13"),
        (("toynorb", "train"), {"lightings": 0}, "toynorb: option 'lightings': .* greater than or equal to 1"),
        (("toynorb", "train"), {"lightings": 7}, "toynorb: option 'lightings': .* less than or equal to 6"),
        (("mnist", "train"), {}, "missing"),
    ],
)
def test_what_cannot_be_loaded_is_explained_in_one_line(tmp_path, arguments, options, message):
    name, split = arguments
    with pytest.raises(InputError, match=message) as caught:
        load(name, tmp_path, split, **options)
    assert "\n" not in str(caught.value)


def test_mnist_has_no_factors(mnist_root):
    found = load("mnist", mnist_root, "test")
    assert found.factors == {}
    assert found.images.shape == (CATALOGUE["mnist"].test_items, 1, 28, 28)


def test_the_folder_of_raw_data_may_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CAPSBENCH_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("CAPSBENCH_DATA")
    assert str(data_root()) == "data"


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
    """Typed from numpy 2: test images of a published study must not change with a version."""
    assert indexed_draws(0, "pairs", 2, 2).flatten().tolist() == pytest.approx(KNOWN, abs=1e-12)


def test_streams_of_a_purpose_are_apart():
    first, again, other = (torch.rand(5, generator=stream(0, purpose, 1)) for purpose in ("order", "order", "dropout"))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
