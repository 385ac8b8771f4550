import numpy as np
import pytest
import torch
from small_data import CPU, NOWHERE, data_of
from stereo_pairs import SPLITS, raw_of

from capsbench.data import Raw, load, make_task, read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.tasks.stereo import (
    NorbOptions,
    ToyNorbOptions,
    select_views,
)
from capsbench.errors import InputError


@pytest.fixture(scope="module")
def views():
    """The raw arrays of each split under each view, of one lighting: a sixth of smallNORB's."""
    torch.set_num_threads(1)  # what is of a module comes before what is of each test

    def read(view, split):
        return read_split(data_of("toynorb", lightings=1, view=view), NOWHERE, split)

    return {(view, split): read(view, split) for view in ("full", "azimuth", "elevation") for split in SPLITS}


@pytest.mark.parametrize(
    ("view", "pairs"),
    [
        ("full", {"train": 4050, "test": 4050}),
        ("azimuth", {"train": 8100 // 6, "familiar": 8100 // 6, "test": 2 * 8100 // 6}),
        ("elevation", {"train": 8100 // 6, "familiar": 8100 // 6, "test": 2 * 8100 // 6}),
    ],
)
def test_a_view_keeps_the_papers_number_of_pairs(views, view, pairs):
    for split, count in pairs.items():
        raw = views[view, split]
        assert len(raw.images) == len(raw.labels) == count
        assert {len(values) for values in raw.factors.values()} == {count}
        assert np.bincount(raw.labels).tolist() == [count // 5] * 5


def test_a_third_of_all_pairs_is_8100():
    for name in ("smallnorb", "toynorb"):
        facts = CATALOGUE[name]
        assert facts.training_items(facts.options()) == 24_300
        for view in ("azimuth", "elevation"):
            assert facts.training_items(facts.options(view=view)) == 8100
            assert facts.has_familiar_test(facts.options(view=view))
        assert not facts.has_familiar_test(facts.options())
    assert CATALOGUE["toynorb"].training_items(ToyNorbOptions(view="azimuth", lightings=1)) == 1350


@pytest.mark.parametrize("split", ["train", "familiar"])
def test_familiar_views_are_six_azimuths_and_the_three_lowest_elevations(views, split):
    azimuths = {10 * int(value) for value in views["azimuth", split].factors["azimuth"]}
    assert azimuths == {300, 320, 340, 0, 20, 40}
    assert set(views["elevation", split].factors["elevation"].tolist()) == {0, 1, 2}
    assert len(set(views["azimuth", split].factors["elevation"].tolist())) == 9  # the other factor stays whole
    assert len(set(views["elevation", split].factors["azimuth"].tolist())) == 18


def test_novel_views_are_all_others(views):
    azimuths = {10 * int(value) for value in views["azimuth", "test"].factors["azimuth"]}
    assert azimuths == set(range(60, 281, 20))
    assert set(views["elevation", "test"].factors["elevation"].tolist()) == {3, 4, 5, 6, 7, 8}


@pytest.mark.parametrize("view", ["full", "azimuth", "elevation"])
def test_objects_of_training_and_test_are_others(views, view):
    objects = {
        split: set(zip(raw.labels.tolist(), raw.factors["instance"].tolist(), strict=True))
        for split in SPLITS
        for raw in [views[view, split]]
    }
    assert {split: len(found) for split, found in objects.items()} == dict.fromkeys(SPLITS, 25)
    assert not objects["train"] & objects["test"]
    assert objects["familiar"] == objects["test"]


def test_familiar_and_novel_pairs_make_up_the_test_set(views):
    whole = {image.tobytes() for image in views["full", "test"].images}
    for view in ("azimuth", "elevation"):
        familiar, novel = ({image.tobytes() for image in views[view, r].images} for r in ("familiar", "test"))
        assert familiar | novel == whole
        assert not familiar & novel


@pytest.mark.parametrize("view", ["azimuth", "elevation"])
def test_unknown_poses_stop_a_viewpoint_study_with_one_line(view):
    raw = raw_of()
    known = {"azimuth": np.arange(40) % 18 * 2, "elevation": np.arange(40) % 9}
    unknown = Raw(raw.images, raw.labels, {**known, view: np.where(np.arange(40) < 3, -1, known[view])})
    for split in SPLITS:
        with pytest.raises(InputError) as caught:
            select_views(unknown, split, NorbOptions(view=view))
        message = str(caught.value)
        assert f"a study of novel {view}s needs pose labels" in message
        assert "for 3 of 40 pairs" in message
        assert "\n" not in message
    assert select_views(unknown, "train", NorbOptions()) is unknown
    other = "elevation" if view == "azimuth" else "azimuth"
    assert len(select_views(unknown, "test", NorbOptions(view=other)).labels) > 0


def test_a_copy_without_poses_is_refused_where_a_study_reads_it(in_catalogue, tmp_path):
    raw = raw_of()
    poses = {name: np.full(40, -1) for name in ("azimuth", "elevation")}
    in_catalogue("smallnorb", read=lambda *_: Raw(raw.images, raw.labels, poses))
    with pytest.raises(InputError, match="needs pose labels"):
        load("smallnorb", tmp_path, "test", view="azimuth")
    assert load("smallnorb", tmp_path, "test").images.shape == (40, 2, 48, 48)


def test_toynorbs_statistics_are_those_of_its_training_images(views):
    """Of one lighting here, where all six are meant: the means agree to 2 %."""
    images = torch.from_numpy(views["full", "train"].images) / 255
    for camera in (0, 1):
        assert float(images[:, camera].mean()) == pytest.approx(ToyNorbOptions.camera_means[camera], rel=0.02)
        assert float(images[:, camera].std()) == pytest.approx(ToyNorbOptions.camera_stds[camera], rel=0.25)


def test_only_tests_are_shown_in_several_crops():
    for data in (data_of("smallnorb", test_crops=13), data_of("toynorb", test_crops=13)):
        views = {split: make_task(data, raw_of(), split, CPU).views for split in ("train", "validation", *SPLITS)}
        assert views == {"train": 1, "validation": 1, "familiar": 13, "test": 13}


def test_whole_images_come_from_load(views):
    found = load("toynorb", NOWHERE, "familiar", view="azimuth", lightings=1)
    assert found.images.shape == (1350, 2, 48, 48)
    np.testing.assert_array_equal(found.images.numpy(), views["azimuth", "familiar"].images)
    assert set(found.factors) == {"instance", "elevation", "azimuth", "lighting"}
