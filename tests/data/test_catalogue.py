import numpy as np
import pytest
from small_data import NOWHERE, data_of, every_case

from capsbench.data import read_split
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
