import numpy as np
import pytest
import torch
from small_data import CPU, NOWHERE, data_of

from capsbench.data import Raw, load, make_task, read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.tasks.augmentation import brightness_and_contrast, standardise
from capsbench.data.tasks.stereo import (
    CROPS,
    SIDES,
    Crops,
    NorbOptions,
    ToyNorbOptions,
    class_shares,
    resized,
    select_views,
)
from capsbench.errors import InputError
from capsbench.study import Augmentation

NONE = Augmentation()
PAPER = Augmentation(**CATALOGUE["smallnorb"].augmentation)
SPLITS = ("train", "familiar", "test")


def raw_of(count=40, side=48) -> Raw:
    """Stereo pairs in which every 4x4 part is found at one place only."""
    images = np.random.default_rng(0).integers(0, 256, (count, 2, side, side), dtype=np.uint8)
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


def places_of_13(**options):
    raw = raw_of()
    task = task_of(raw, views=13, **options)
    assert task.views == len(CROPS["run"]) == len(CROPS["written"]) == 13
    places = [offsets(raw, next(task.eval_batches(100, view)).targets) for view in range(13)]
    assert all(len(place.unique(dim=0)) == 1 for place in places)  # alike for every image
    return [tuple((place[0] - 8).tolist()) for place in places]


def test_thirteen_crops_go_along_both_diagonals_as_the_authors_wrote():
    found = places_of_13(crop_offsets="written")
    assert set(found) == {(0, 0)} | {(y, x) for n in (1, 2, 3) for y in (n, -n) for x in (n, -n)}


def test_thirteen_crops_are_by_default_where_tensorflow_puts_them():
    """TF1's extract_glimpse puts the upper left corner at int(48 / 2 + offset / 2 - 32 / 2); the centre is at 8."""
    found = places_of_13()
    expected = [(0, 0)]
    for n in (1, 2, 3):
        for y in (n, -n):
            expected += [(int(24 + y / 2 - 16) - 8, int(24 + x / 2 - 16) - 8) for x in (n, -n)]
    assert found == expected
    assert len(set(found)) == 10


def test_crops_that_are_nearly_whole_stay_inside():
    raw = raw_of()
    task = task_of(raw, views=13, crop=46)
    for view in range(13):
        assert offsets(raw, next(task.eval_batches(100, view)).targets).max() <= 2


@pytest.mark.parametrize(
    "options", [{"crop": 49}, {"resize": "mean", "crop": 64}, {"resize": "bilinear_64", "crop": 65}]
)
def test_a_crop_is_no_larger_than_the_image(options):
    with pytest.raises(ValueError, match="crop"):
        NorbOptions(**options)
    assert NorbOptions(resize="bilinear_64", crop=64).side == 64


def test_resized_images_have_their_sides():
    images = torch.rand(2, 3, 96, 96)
    for resize, side in SIDES.items():
        assert resized(images, resize).shape == (2, 3, side, side)
    assert torch.equal(resized(images, "every_second"), images[..., ::2, ::2])


def test_smallnorb_takes_every_second_pixel_and_toynorb_the_mean():
    assert (NorbOptions().resize, ToyNorbOptions().resize) == ("every_second", "mean")


def after(**options):
    return {"augment": "after_standardising", **options}


def test_after_standardising_whole_images_are_standardised_and_then_cropped():
    raw = raw_of()
    whole = standardise(torch.from_numpy(raw.images) / 255)
    batch = task_of(raw, **after()).eval_batch(torch.arange(40), 0)
    torch.testing.assert_close(batch.images, whole[:, :, 8:40, 8:40])
    assert (batch.images - standardise(batch.targets)).abs().max() > 0.01  # the crop's own statistics are others
    training = drawn(task_of(raw, **after()))
    for image, seen, (row, column) in zip(whole, training.images, offsets(raw, training.targets).tolist(), strict=True):
        torch.testing.assert_close(seen, image[:, row : row + 32, column : column + 32])


@pytest.mark.parametrize("augment", ["before_standardising", "after_standardising"])
def test_brightness_acts_after_standardising_and_is_undone_before_it(augment):
    raw = raw_of()
    bright = Augmentation(brightness=63 / 255)
    plain, seen = drawn(task_of(raw, augment=augment)), drawn(task_of(raw, augment=augment), bright)
    if augment == "after_standardising":  # the place of the crop is drawn first
        assert torch.equal(plain.targets, seen.targets)
        added = (seen.images - plain.images).flatten(1)
        torch.testing.assert_close(added, added[:, :1].expand_as(added), atol=1e-5, rtol=0)
        assert 0.9 * 63 / 255 < added[:, 0].abs().max() <= 63 / 255 + 1e-6  # its unit is the standard deviation
    else:
        assert (seen.images - standardise(seen.targets)).abs().max() < 1e-5


def test_contrast_after_standardising_is_about_the_mean_of_the_crop():
    raw = raw_of()
    plain, seen = drawn(task_of(raw, **after())), drawn(task_of(raw, **after()), Augmentation(contrast=0.8))
    torch.testing.assert_close(seen.images.mean(dim=(2, 3)), plain.images.mean(dim=(2, 3)), atol=1e-5, rtol=0)
    factor = seen.images.std(dim=(1, 2, 3)) / plain.images.std(dim=(1, 2, 3))
    assert factor.min() < 0.6
    assert factor.max() > 1.4


@pytest.mark.parametrize("options", [NorbOptions, ToyNorbOptions])
def test_the_training_set_standardises_each_camera_alike_everywhere(options):
    raw = raw_of()
    chosen = options(standardise_by="training_set")
    batch = Crops(raw, chosen, CPU).eval_batch(torch.arange(40), 0)
    for camera in (0, 1):
        expected = (batch.targets[:, camera] - chosen.camera_means[camera]) / chosen.camera_stds[camera]
        torch.testing.assert_close(batch.images[:, camera], expected)
    alone = Crops(raw.take(np.arange(3)), chosen, CPU).eval_batch(torch.arange(3), 0)
    assert torch.equal(alone.images, batch.images[:3])


def test_toynorbs_statistics_are_those_of_its_training_images(views):
    """Of one lighting here, where all six are meant: the means agree to 2 %."""
    images = torch.from_numpy(views["full", "train"].images) / 255
    for camera in (0, 1):
        assert float(images[:, camera].mean()) == pytest.approx(ToyNorbOptions.camera_means[camera], rel=0.02)
        assert float(images[:, camera].std()) == pytest.approx(ToyNorbOptions.camera_stds[camera], rel=0.25)


MAZZIA = {"resize": "bilinear_64", "crop": 48, **after(standardise_by="training_set")}


def test_efficient_capsnets_protocol_can_be_written():
    """Its code standardises, brings to 64x64, crops 48x48 at random or in the centre, adds up to 2.0, contrast 0.5."""
    data = data_of("smallnorb", **MAZZIA)
    assert data.image_shape == (2, 48, 48)
    usual = data.facts.augmentation
    assert dict(data.options.augmentation(usual)) == {"brightness": 2.0, "contrast": 0.5}
    assert NorbOptions().augmentation(usual) == usual
    raw = raw_of(side=64)
    task = make_task(data, raw, "train", CPU)
    mean, std = (torch.tensor(v)[:, None, None] for v in (NorbOptions.camera_means, NorbOptions.camera_stds))
    whole = (torch.from_numpy(raw.images) / 255 - mean) / std
    torch.testing.assert_close(task.eval_batch(torch.arange(40), 0).images, whole[:, :, 8:56, 8:56])
    augmentation = Augmentation(**data.options.augmentation(usual))
    batch = drawn(task, augmentation, seed=3)
    rng = torch.Generator().manual_seed(3)
    rows, columns = torch.randint(17, (2, 40), generator=rng).tolist()
    cut = [image[:, r : r + 48, c : c + 48] for image, r, c in zip(whole, rows, columns, strict=True)]
    torch.testing.assert_close(batch.images, brightness_and_contrast(torch.stack(cut), 2.0, 0.5, rng))


def test_shares_of_a_crop_sum_to_one():
    activations = torch.tensor([[0.9, 0.3], [0.01, 0.03], [0.0, 0.0]])
    torch.testing.assert_close(
        class_shares(torch.zeros(3, 2), activations), torch.tensor([[0.75, 0.25], [0.25, 0.75], [0.0, 0.0]])
    )
    logits = torch.tensor([[1000.0, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(class_shares(logits, None), torch.tensor([[1.0, 0.0], [0.5, 0.5]]))


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
