"""The items of a test: what is known of each, and one fingerprint that tells two tests apart."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from capsbench.data import make_task, read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.readers import affnist
from capsbench.data.readers.raw import Raw
from capsbench.evaluation import items as module
from capsbench.evaluation.items import SHOWN, shown_items
from capsbench.study import Data

CPU = torch.device("cpu")
NOWHERE = Path("nowhere")


def data_of(name, **options) -> Data:
    return Data(name=name, options=CATALOGUE[name].options(**options))


def items_of(name, split="test", raw=None, **options):
    data = data_of(name, **options)
    raw = read_split(data, NOWHERE, split) if raw is None else data.facts.select(raw, split, data.options)
    return shown_items(data, raw, make_task(data, raw, split, CPU), NOWHERE)


def norb(pixel=0) -> Raw:
    """Two pairs of each object, azimuth and lighting."""
    factors = np.array(
        [(c, i, 0, a, light) for c in range(5) for i in range(5) for a in (0, 8, 30) for light in (0, 1)]
    )
    images = np.full((len(factors), 2, 48, 48), pixel, np.uint8)
    named = dict(zip(("instance", "elevation", "azimuth", "lighting"), factors.T[1:], strict=True))
    return Raw(images, factors[:, 0], named)


def test_pairs_name_both_their_digits_in_the_order_of_their_labels():
    data = data_of("multidigits", test_pairs=700)
    raw = read_split(data, NOWHERE, "test")
    task = make_task(data, raw, "test", CPU)
    found = shown_items(data, raw, task, NOWHERE)
    assert found.digits.shape == (700, 2)
    assert_array_equal(raw.labels[found.digits], task.labels)
    # each digit comes first once before any does again
    firsts = [set(pair) for pair in found.digits]
    assert all(index % 539 in pair for index, pair in enumerate(firsts))
    # the source of each pair is this digit, placed elsewhere
    _, sources = task.eval_images(torch.arange(20))
    for pair, drawn in zip(found.digits[:20], sources, strict=True):
        for digit, source in zip(pair, drawn, strict=True):
            assert int(source.long().sum()) == pytest.approx(int(raw.images[digit].astype(int).sum()), rel=0.02)


def test_generated_copies_name_their_digit():
    found = items_of("affdigits", transforms_per_image=3)
    assert_array_equal(found.digits, np.tile(np.arange(539), 3))
    assert_array_equal(items_of("affdigits", "familiar").digits, np.arange(539))
    assert found.factors == {}


def test_stereo_pairs_keep_their_factors():
    found = items_of("smallnorb", raw=norb(), view="azimuth")
    arrays = found.arrays()
    assert set(arrays["factor_azimuth"]) == {8}  # the novel one
    assert_array_equal(arrays["factor_instance"], np.tile(np.repeat(np.arange(5), 2), 5))
    assert arrays["factor_instance"].dtype.itemsize == 1
    assert {"factor_elevation", "factor_lighting", "fingerprint"} <= arrays.keys()
    assert found.digits is None and "digits" not in arrays


def test_unknown_factors_stay_unknown():
    raw = norb()
    raw.factors["azimuth"][:] = -1
    assert set(items_of("smallnorb", raw=raw).arrays()["factor_azimuth"]) == {-1}


@pytest.mark.parametrize(
    ("name", "changes", "same"),
    [
        ("multidigits", [{"pair_seed": 1}, {"test_pairs": 500}, {"shift": 2}, {"combine": "maximum"},
                         {"base_shift": "digit"}], [{"train_pairs": 100}]),
        ("affdigits", [{"transform_seed": 1}, {"transforms_per_image": 2}, {"placement": "training"}],
         [{"train": "affine"}]),
        ("smallnorb", [{"view": "azimuth"}, {"crop": 30}, {"test_crops": 13}, {"augment": "after_standardising"}],
         [{"validation_by": "pair"}, {"crop_offsets": "written"}]),
    ],
)  # fmt: skip
def test_a_fingerprint_is_of_what_was_shown(name, changes, same):
    usual = {"multidigits": {"test_pairs": 600}, "affdigits": {"transforms_per_image": 1},
             "smallnorb": {"resize": "mean", "crop": 32}}[name]  # fmt: skip
    raw = norb() if name == "smallnorb" else None
    first = items_of(name, raw=raw, **usual).fingerprint
    assert items_of(name, raw=raw, **usual).fingerprint == first
    others = [items_of(name, raw=raw, **(usual | change)).fingerprint for change in changes]
    assert len({first, *others}) == 1 + len(changes)
    assert {items_of(name, raw=raw, **(usual | change)).fingerprint for change in same} == {first}


def test_one_pixel_or_factor_makes_another_fingerprint():
    first = items_of("smallnorb", raw=norb()).fingerprint
    brighter = norb()
    brighter.images[7, 0, 3, 3] = 1
    turned = norb()
    turned.factors["azimuth"][7] = 4
    assert (
        len({first, items_of("smallnorb", raw=brighter).fingerprint, items_of("smallnorb", raw=turned).fingerprint})
        == 3
    )


def test_thirteen_crops_by_another_rule_are_another_test():
    run, written = (items_of("smallnorb", raw=norb(), test_crops=13, crop_offsets=o) for o in ("run", "written"))
    assert run.fingerprint != written.fingerprint


def test_each_option_of_a_data_set_is_known_to_act_on_the_test_or_not():
    """An option that is new decides how an item is shown, or is in this list with the reason."""
    in_arrays = {"resize", "view", "lightings", "pair_seed", "test_pairs", "transforms_per_image", "transform_seed"}
    of_training = {"train", "train_pairs", "validation_by"}
    for facts in CATALOGUE.values():
        assert set(facts.options.model_fields) <= {*SHOWN, *in_arrays, *of_training}, facts.name


def test_copies_of_affnist_are_found_by_the_order_of_their_labels():
    digits = np.random.default_rng(0).integers(0, 10, 500)
    assert_array_equal(affnist.originals_by_labels(np.repeat(digits, 32)), np.repeat(np.arange(500), 32))
    assert_array_equal(affnist.originals_by_labels(np.tile(digits, 32)), np.tile(np.arange(500), 32))
    assert affnist.originals_by_labels(np.random.default_rng(1).permutation(np.repeat(digits, 32))) is None
    assert affnist.originals_by_labels(np.sort(np.repeat(digits, 32))) is None  # fits both orders


@pytest.mark.parametrize("known", [True, False])
def test_official_affnist_names_the_digit_where_its_file_does(monkeypatch, tmp_path, known):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 64))
    arrays = {"images": np.zeros((640, 1, 40, 40), np.uint8), "labels": labels}
    if known:
        arrays["original"] = 1 + np.argsort(np.argsort(labels, kind="stable")) // 32  # counted from 1
    monkeypatch.setattr(affnist, "cached", lambda name, made_from, build: arrays)
    (tmp_path / "affnist").mkdir()
    (tmp_path / "affnist" / "test.mat").write_bytes(b"")
    data, raw = data_of("affnist"), Raw(arrays["images"], labels)
    found = shown_items(data, raw, make_task(data, raw, "test", CPU), tmp_path)
    if known:
        assert_array_equal(np.bincount(found.digits), [32] * 20)
        assert_array_equal(found.digits // 2, labels)
    else:
        assert found.digits is None
    familiar = Raw(np.zeros((30, 1, 28, 28), np.uint8), np.arange(30) % 10)
    task = make_task(data, familiar, "familiar", CPU)
    assert_array_equal(module.shown_items(data, familiar, task, tmp_path).digits, np.arange(30))
