import numpy as np
import pytest
from small_data import CPU, NOWHERE, data_of, every_case

from capsbench.data import Raw, read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.prepare import splits_of
from capsbench.study import DataOptions, default_training


@every_case
def test_the_catalogue_knows_what_is_read(name, options):
    data = data_of(name, **options)
    facts = data.facts
    raw = {split: read_split(data, NOWHERE, split) for split in splits_of(data)}
    assert len(raw["train"].labels) == facts.training_items(data.options)
    for found in raw.values():
        assert np.unique(found.labels).tolist() == list(range(facts.num_classes))
    if facts.training_items(data.options) == facts.train_items:
        assert len(raw["test"].labels) == facts.test_items
    np.testing.assert_array_equal(read_split(data, NOWHERE, "validation").images, raw["train"].images)


@pytest.mark.parametrize("name", CATALOGUE)
def test_an_entry_is_whole(name):
    facts = CATALOGUE[name]
    assert facts.name == name
    assert issubclass(facts.options, DataOptions)
    assert data_of(name).image_shape == facts.image_shape
    assert (facts.read_test is None) == (facts.test_folder is None) == (facts.download_test is None)
    assert {facts.read, facts.task} <= set(facts.functions)
    default_training(data_of(name))  # raises where the catalogue's augmentation is none of a study's


def test_what_a_data_set_is_made_with_is_named_for_the_version_of_the_code():
    names = {name: {function.__module__.split(".")[-1] for function in CATALOGUE[name].functions} for name in CATALOGUE}
    assert names["affnist"] == {"mnist", "affnist", "affine"}
    assert names["smallnorb"] == {"smallnorb", "stereo"}
    assert names["multidigits"] == {"digits", "pairs"}
    assert "select_views" in {function.__name__ for function in CATALOGUE["toynorb"].functions}


@pytest.mark.parametrize("name", ["cifar10", "svhn", "fashion-mnist"])
def test_the_other_sets_stand_in_a_table_of_their_own_and_have_a_folder_of_their_own(name):
    facts = CATALOGUE[name]
    assert facts.table(facts.options()) == "natural-images"
    assert (facts.folder, facts.num_classes, facts.paper) == (name, 10, name)
    assert facts.needs_files
    assert facts.task(*small_split(facts)).labels.tolist() == [0, 1]


def small_split(facts):
    raw = Raw(np.zeros((2, *facts.image_shape), np.uint8), np.array([0, 1]))
    return raw, "train", facts.options(), CPU


def test_the_sizes_are_those_that_the_sets_are_known_by():
    sizes = {name: (CATALOGUE[name].train_items, CATALOGUE[name].test_items) for name in ("svhn", "fashion-mnist")}
    assert sizes == {"svhn": (73_257, 26_032), "fashion-mnist": (60_000, 10_000)}
    assert CATALOGUE["svhn"].augmentation == {}  # S17 names none
    assert CATALOGUE["fashion-mnist"].classes[:2] == ("T-shirt", "trouser")
