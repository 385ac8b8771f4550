import numpy as np
import pytest
import torch
from small_data import CPU, NOWHERE, data_of

from capsbench.data import Raw, load, make_task, read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.tasks.augmentation import standardise
from capsbench.data.tasks.stereo import CROPS, Crops, NorbOptions, ToyNorbOptions, select_views
from capsbench.errors import InputError
from capsbench.study import Augmentation

NONE = Augmentation()
PAPER = Augmentation(**CATALOGUE["smallnorb"].augmentation)
SPLITS = ("train", "familiar", "test")


def raw_of(count=40) -> Raw:
    """Stereo pairs in which every 4x4 part is found at one place only."""
    images = np.random.default_rng(0).integers(0, 256, (count, 2, 48, 48), dtype=np.uint8)
    return Raw(images, np.arange(count) % 5)


def task_of(raw=None, views=1, **options) -> Crops:
    return Crops(raw or raw_of(), NorbOptions(**options), CPU, views)


def drawn(task, augmentation=NONE, seed=0):
    """One training batch of all items, in order."""
    return task.train_batch(torch.arange(task.epoch_images), augmentation, torch.Generator().manual_seed(seed))


def offsets(raw, targets):
    """Where each target was cut out of its image: row and column, found by its upper left 4x4."""
    whole = torch.from_numpy(raw.images)
    found = []
    for image, target in zip(whole, (targets * 255).round().to(torch.uint8), strict=True):
        parts = image[0].unfold(0, 4, 1).unfold(1, 4, 1)
        ((row, column),) = (parts == target[0, :4, :4]).all(dim=(2, 3)).nonzero().tolist()
        side = target.shape[-1]
        assert torch.equal(image[:, row : row + side, column : column + side], target)
        found.append((row, column))
    return torch.tensor(found)


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


def test_training_crops_are_drawn_for_each_image_and_reach_every_place():
    raw = Raw(np.tile(raw_of(1).images, (5000, 1, 1, 1)), np.zeros(5000, np.int64))
    targets = drawn(task_of(raw, crop=32)).targets
    corner = raw.images[0, 0].astype(int)
    # the crop's upper left pixels tell its place: one number of three neighbours
    key = torch.from_numpy(corner[:-1, :-1] * 65536 + corner[:-1, 1:] * 256 + corner[1:, :-1])[:17, :17]
    assert key.unique().numel() == 17 * 17
    shown = (targets[:, 0] * 255).round().long()
    found = shown[:, 0, 0] * 65536 + shown[:, 0, 1] * 256 + shown[:, 1, 0]
    place = (key.flatten()[None] == found[:, None]).int().argmax(dim=1)
    assert (key.flatten()[place] == found).all()  # each is at one of the 17 x 17 places
    counts = place.bincount(minlength=17 * 17)
    assert counts.min() > 0  # 17 are expected of each
    for axis in (place // 17, place % 17):
        by_place = axis.bincount(minlength=17)
        assert by_place.min() > 0.75 * 5000 / 17


@pytest.mark.parametrize("crop", [32, 28, 48])
def test_a_target_is_the_crop_as_it_is_and_the_image_is_the_crop_standardised(crop):
    raw = raw_of()
    batch = drawn(task_of(raw, crop=crop))
    assert batch.targets.shape == batch.images.shape == (40, 2, crop, crop)
    place = offsets(raw, batch.targets)  # raises unless it is a part of both cameras' images, at one place
    assert place.max() <= 48 - crop
    assert torch.equal(batch.labels, torch.from_numpy(raw.labels))
    torch.testing.assert_close(batch.images, standardise(batch.targets))


def test_a_target_knows_nothing_of_brightness_and_contrast():
    raw = raw_of()
    plain, changed = drawn(task_of(raw)), drawn(task_of(raw), PAPER)
    assert changed.targets.min() >= 0
    assert changed.targets.max() <= 1
    offsets(raw, changed.targets)
    assert not torch.equal(plain.images, changed.images)


@pytest.mark.parametrize("augmentation", [NONE, PAPER], ids=["none", "the paper's"])
def test_every_image_has_mean_0_and_std_1_by_its_own_statistics(augmentation):
    raw = raw_of()
    scaled = Raw((raw.images * np.linspace(0.6, 1, 40)[:, None, None, None]).astype(np.uint8), raw.labels)
    task = task_of(scaled)
    for batch in (drawn(task, augmentation), task.eval_batch(torch.arange(40), 0)):
        torch.testing.assert_close(batch.images.mean(dim=(1, 2, 3)), torch.zeros(40), atol=1e-4, rtol=0)
        torch.testing.assert_close(batch.images.std(dim=(1, 2, 3), correction=0), torch.ones(40))
    alone = task.eval_batch(torch.tensor([7]), 0).images
    torch.testing.assert_close(task.eval_batch(torch.arange(40), 0).images[7:8], alone)


def with_and_without(task, augmentation):
    """What a network sees of each crop without brightness and contrast, and with them."""
    batch = drawn(task, augmentation)
    return standardise(batch.targets), batch.images


def test_a_dull_image_is_standardised_too_and_only_an_even_one_is_not():
    """At contrast 0.2 real crops come down to a std of 2 of 255; the floor, 1 / sqrt(2048), is of that scale."""
    dull = 0.5 + torch.randn(4, 2, 32, 32, generator=torch.Generator().manual_seed(0)) * 10 / 255 * 0.2
    torch.testing.assert_close(standardise(dull).std(dim=(1, 2, 3), correction=0), torch.ones(4))
    assert standardise(torch.full((1, 2, 32, 32), 0.5)).abs().max() < 1e-3


def test_standardising_undoes_brightness():
    raw = raw_of()
    plain, seen = with_and_without(task_of(raw), Augmentation(brightness=63 / 255))
    torch.testing.assert_close(seen, plain, atol=1e-4, rtol=1e-4)


def test_of_contrast_the_difference_between_the_cameras_means_is_left():
    raw = raw_of()
    level = raw.images.copy()
    level[:, 1] = level[:, 0, ::-1]  # both cameras have one mean: contrast is undone altogether
    plain, seen = with_and_without(task_of(Raw(level, raw.labels)), Augmentation(contrast=0.8))
    torch.testing.assert_close(seen, plain, atol=1e-4, rtol=1e-4)
    level[:, 1] //= 2
    plain, seen = with_and_without(task_of(Raw(level, raw.labels)), Augmentation(contrast=0.8))
    apart = (seen - plain).flatten(1).abs().mean(dim=1)
    assert (apart > 0.01).float().mean() > 0.8
    # each camera's image is the same but for a linear map
    for camera in (0, 1):
        for one, other in zip(plain[:, camera].flatten(1), seen[:, camera].flatten(1), strict=True):
            assert float(torch.corrcoef(torch.stack([one, other]))[0, 1]) == pytest.approx(1, abs=1e-4)


def test_both_cameras_are_cropped_at_one_place_and_drawn_anew():
    raw = raw_of()
    task = task_of(raw)
    first, again, other = (offsets(raw, drawn(task, seed=seed).targets) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert (first != other).any(dim=1).float().mean() > 0.8
    assert len(first.unique(dim=0)) > 30  # not one for the whole batch


@pytest.mark.parametrize(("crop", "margin"), [(32, 8), (48, 0), (31, 8), (1, 23)])
def test_the_test_shows_the_centre(crop, margin):
    raw = raw_of()
    task = task_of(raw, crop=crop)
    (batch,) = task.eval_batches(100)
    middle = raw.images[:, :, margin : margin + crop, margin : margin + crop]
    torch.testing.assert_close(batch.targets, torch.from_numpy(middle) / 255)
    torch.testing.assert_close(batch.images, standardise(batch.targets))
    assert torch.equal(batch.labels, torch.from_numpy(raw.labels))


def test_thirteen_crops_go_along_both_diagonals():
    raw = raw_of()
    task = task_of(raw, views=13)
    assert task.views == len(CROPS) == 13
    places = {view: offsets(raw, next(task.eval_batches(100, view)).targets) for view in range(13)}
    assert all(len(place.unique(dim=0)) == 1 for place in places.values())  # alike for every image
    found = {tuple((place[0] - 8).tolist()) for place in places.values()}
    assert found == {(0, 0)} | {(y, x) for n in (1, 2, 3) for y in (n, -n) for x in (n, -n)}


def test_crops_that_are_nearly_whole_stay_inside():
    raw = raw_of()
    task = task_of(raw, views=13, crop=46)
    for view in range(13):
        assert offsets(raw, next(task.eval_batches(100, view)).targets).max() <= 2


def test_only_tests_are_shown_in_several_crops():
    for data in (data_of("smallnorb", test_crops=13), data_of("toynorb", test_crops=13)):
        views = {split: make_task(data, raw_of(), split, CPU).views for split in ("train", "validation", *SPLITS)}
        assert views == {"train": 1, "validation": 1, "familiar": 13, "test": 13}


def test_the_test_is_never_augmented():
    task = task_of()
    before = task.eval_batch(torch.arange(40), 0)
    drawn(task, PAPER)
    torch.manual_seed(1)
    after = task.eval_batch(torch.arange(40), 0)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_an_epoch_shows_every_pair_once_with_its_label():
    raw = raw_of()
    labelled = Raw(raw.images, np.arange(40))
    batches = list(task_of(labelled).train_batches(16, PAPER, 0, 1))
    assert [len(batch.labels) for batch in batches] == [16, 16, 8]
    labels = torch.cat([batch.labels for batch in batches])
    assert torch.equal(labels.sort().values, torch.arange(40))
    offsets(Raw(raw.images[labels.numpy()], labels.numpy()), torch.cat([batch.targets for batch in batches]))


def test_whole_images_come_from_load(views):
    found = load("toynorb", NOWHERE, "familiar", view="azimuth", lightings=1)
    assert found.images.shape == (1350, 2, 48, 48)
    np.testing.assert_array_equal(found.images.numpy(), views["azimuth", "familiar"].images)
    assert set(found.factors) == {"instance", "elevation", "azimuth", "lighting"}
