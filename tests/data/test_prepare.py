import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_data import NOWHERE, data_of

from capsbench.data import Raw, load
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.prepare import count, fetch, is_outdated, prepare, splits_of
from capsbench.errors import InputError
from capsbench.run.folder import write_json


@pytest.fixture
def fetched(monkeypatch):
    """What was to be downloaded, as (reader, folder); nothing is."""
    asked = []

    def instead_of(download):
        reader = download and download.__module__.split(".")[-1]
        return download and (lambda folder: asked.append((reader, folder)))

    for name, facts in CATALOGUE.items():
        there = {key: instead_of(getattr(facts, key)) for key in ("download", "download_test")}
        monkeypatch.setitem(CATALOGUE, name, replace(facts, **there))
    return asked


def small(side=28, seed=0, factors=None, unofficial=()):
    images = np.random.default_rng(seed).integers(1, 256, (30, 1, side, side), dtype=np.uint8)
    return Raw(images, np.arange(30) % 10, factors or {}, unofficial)


@pytest.mark.parametrize(
    ("name", "folders"),
    [
        *((name, []) for name, facts in CATALOGUE.items() if not facts.needs_files),
        *((name, ["mnist"]) for name in ("mnist", "multimnist", "mnist-translated", "affnist-generated")),
        ("affnist", ["mnist", "affnist"]),
        *((name, ["smallnorb"]) for name in ("smallnorb", "smallnorb-centred")),
        ("cifar10", ["cifar10"]),
    ],
)
def test_what_a_data_set_is_made_from_is_fetched_and_nothing_else(fetched, tmp_path, name, folders):
    fetch(name, tmp_path)
    assert fetched == [(folder, tmp_path / folder) for folder in folders]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("digits", {}, ["train", "test"]),
        ("multidigits", {}, ["train", "test"]),
        ("affdigits", {}, ["train", "familiar", "test"]),
        ("affdigits", {"train": "affine"}, ["train", "test"]),
        ("affnist", {}, ["train", "familiar", "test"]),
        ("mnist-translated", {}, ["train", "test"]),
        ("toynorb", {}, ["train", "test"]),
        *((name, {"view": "azimuth"}, ["train", "familiar", "test"]) for name in ("smallnorb", "smallnorb-centred")),
    ],
)
def test_a_familiar_split_is_there_where_the_test_is_novel(name, options, expected):
    assert splits_of(data_of(name, **options)) == expected


def test_a_manifest_counts_the_digits():
    found = prepare(data_of("digits"), NOWHERE)
    assert list(found) == ["name", "title", "options", "unofficial", "train", "test"]
    assert (found["name"], found["options"], found["unofficial"]) == ("digits", {}, [])
    for split in ("train", "test"):
        loaded = load("digits", NOWHERE, split)
        assert found[split] == {
            "images": len(loaded.labels), "made_from": len(loaded.labels), "shape": [1, 28, 28],
            "images_by_class": loaded.labels.bincount().tolist(), "factors": {}, "fingerprint": loaded.fingerprint,
            "files": {},
        }  # fmt: skip
    assert json.loads(json.dumps(found)) == found


def test_a_manifest_of_pairs_counts_pairs_and_the_digits_behind_them():
    found = prepare(data_of("multidigits", train_pairs=300, test_pairs=200), NOWHERE)
    assert {s: (found[s]["images"], found[s]["made_from"]) for s in ("train", "test")} == {
        "train": (300, 1258), "test": (200, 539),
    }  # fmt: skip
    assert found["test"]["shape"] == [1, 36, 36]
    assert sum(found["test"]["images_by_class"]) == 400  # two a pair
    by_class = load("multidigits", NOWHERE, "test", test_pairs=200).labels.sum(dim=0)
    assert found["test"]["images_by_class"] == by_class.tolist()
    assert found["options"]["test_pairs"] == 200


def test_a_manifest_of_affine_images_counts_every_transform():
    found = prepare(data_of("affdigits", transforms_per_image=3), NOWHERE)
    images = {s: (found[s]["images"], found[s]["made_from"]) for s in ("train", "familiar", "test")}
    assert images == {"train": (1258, 1258), "familiar": (539, 539), "test": (3 * 539, 539)}
    assert found["familiar"]["fingerprint"] == found["test"]["fingerprint"] != found["train"]["fingerprint"]


def test_a_manifest_of_views_counts_each_factor():
    torch.set_num_threads(1)
    found = prepare(data_of("toynorb", view="azimuth", lightings=1), NOWHERE)
    assert {s: found[s]["images"] for s in ("train", "familiar", "test")} == {
        "train": 1350, "familiar": 1350, "test": 2700,
    }  # fmt: skip
    assert found["train"]["shape"] == [2, 32, 32]
    assert found["train"]["factors"]["azimuth"] == dict.fromkeys(["0", "2", "4", "30", "32", "34"], 225)
    assert found["test"]["factors"]["elevation"] == {str(n): 300 for n in range(9)}
    assert list(found["train"]["factors"]["instance"]) == ["4", "6", "7", "8", "9"]
    assert list(found["familiar"]["factors"]["instance"]) == ["0", "1", "2", "3", "5"]
    assert json.loads(json.dumps(found)) == found


def test_unofficial_files_are_named_once(fetched, in_catalogue, tmp_path):
    lines = {"train": ("train: another md5",), "test": ("test: another md5", "both: another md5")}

    def read(folder, split, allow_unofficial, options):
        if not allow_unofficial:
            raise InputError("not the official file")
        return small(unofficial=("both: another md5", *lines[split]))

    in_catalogue("affnist-generated", read=read)
    found = prepare(data_of("affnist-generated", allow_unofficial=True), tmp_path)
    assert found["unofficial"] == ["both: another md5", "train: another md5", "test: another md5"]
    assert "unofficial" not in found["test"]
    with pytest.raises(InputError, match="not the official file"):
        prepare(data_of("affnist-generated"), tmp_path)
    assert fetched == [("mnist", tmp_path / "mnist")] * 2


def test_a_protocol_that_a_copy_cannot_bear_is_refused_before_anything_trains(fetched, in_catalogue, tmp_path):
    factors = {"azimuth": np.full(30, -1), "elevation": np.full(30, -1)}
    images = np.zeros((30, 2, 48, 48), np.uint8)
    in_catalogue("smallnorb", read=lambda *_: Raw(images, np.arange(30) % 5, factors))
    with pytest.raises(InputError, match="needs pose labels"):
        prepare(data_of("smallnorb", view="elevation"), tmp_path)
    found = prepare(data_of("smallnorb"), tmp_path)
    assert found["test"]["factors"]["azimuth"] == {"-1": 30}


def test_the_official_affnist_is_counted_from_its_own_files(in_catalogue, tmp_path):
    images = small(side=40, seed=1).images
    official = Raw(images, np.arange(30) % 10, {"rotation": np.linspace(-20, 20, 30)}, files={"test.mat": "ab12"})
    in_catalogue("affnist", read=lambda *_: small(), read_test=lambda *_: official)
    data = data_of("affnist")
    assert count(data, tmp_path, "test")["images"] == count(data, tmp_path, "familiar")["images"] == 30
    assert count(data, tmp_path, "test")["files"] == {"test.mat": "ab12"}
    assert count(data, tmp_path, "test")["fingerprint"] != count(data, tmp_path, "familiar")["fingerprint"]


def test_a_manifest_is_outdated_where_newer_files_say_something_else(fetched, in_catalogue, tmp_path):
    seeds = {"now": 0}
    in_catalogue("affnist-generated", read=lambda *_: small(seed=seeds["now"]))
    data, manifest, file = data_of("affnist-generated"), tmp_path / "m.json", tmp_path / "data/mnist/images"
    assert not is_outdated(manifest, data, tmp_path / "data")  # nothing is prepared
    write_json(manifest, prepare(data, tmp_path / "data"))
    file.parent.mkdir(parents=True)
    file.write_text("as before")
    os.utime(manifest, (1, 1))
    assert not is_outdated(manifest, data, tmp_path / "data")  # touched, or copied
    assert manifest.stat().st_mtime > 1  # and not read again
    seeds["now"] = 1
    assert not is_outdated(manifest, data, tmp_path / "data")
    os.utime(manifest, (1, 1))
    assert is_outdated(manifest, data, tmp_path / "data")
    in_catalogue("affnist-generated", read=lambda *_: (_ for _ in ()).throw(InputError("torn")))
    assert is_outdated(manifest, data, tmp_path / "data")
    assert len(fetched) == 1  # looking at a study downloads nothing
