import math

import numpy as np
import pytest
import torch
from small_data import CPU, NOWHERE, data_of

from capsbench.data import Raw, load, make_task
from capsbench.data.readers import digits
from capsbench.data.tasks.affine import DRAWS, AffineOptions, Placed, affine_images, affine_matrices
from capsbench.data.tasks.task import Plain
from capsbench.registry import Said
from capsbench.study import Augmentation

NONE = Augmentation()
ANGLE, SHEAR, WIDTH, HEIGHT, X, Y = range(6)


def raw_of(count=50) -> Raw:
    """Digits whose 28x28 is nowhere 0, so that their place in 40x40 can be seen."""
    images = np.random.default_rng(0).integers(1, 256, (count, 1, 28, 28), dtype=np.uint8)
    return Raw(images, np.arange(count) % 10)


def placed(raw=None, mode="translated", transforms=1, seed=0) -> Placed:
    return Placed(raw or raw_of(), mode, transforms, seed, CPU)


def fixed(task):
    return task.eval_images(torch.arange(len(task.labels)))[0]


def an_epoch(task, seed=0, epoch=1, augmentation=NONE):
    batches = list(task.train_batches(16, augmentation, seed, epoch))
    return [torch.cat([getattr(batch, name) for batch in batches]) for name in ("images", "labels", "targets")]


def corners(images):
    ink = images[:, 0] > 0
    return torch.stack([ink.any(dim=2).int().argmax(dim=1), ink.any(dim=1).int().argmax(dim=1)], dim=1)


def draws_of(**changes):
    """Draws of the identity, but for some: [1, 6]."""
    draws = torch.full((1, DRAWS), 0.5)
    for name, value in changes.items():
        draws[0, globals()[name.upper()]] = value
    return draws


def rectangle(height, width):
    """A centred rectangle of ink in 28x28."""
    image = torch.zeros(1, 1, 28, 28)
    image[:, :, 14 - height // 2 : 14 + height // 2, 14 - width // 2 : 14 + width // 2] = 1
    return image


def moments(images):
    """Mass, centre (x, y) and covariance of (x, y) of images [N, 1, H, W]."""
    places = torch.arange(images.shape[-1], dtype=torch.float64)
    y, x = torch.meshgrid(places, places, indexing="ij")
    points, weights = torch.stack([x, y], -1).flatten(0, 1), images.double().flatten(1)
    mass = weights.sum(dim=1)
    centre = weights @ points / mass[:, None]
    apart = points - centre[:, None]
    return mass, centre, torch.einsum("np,npi,npj->nij", weights, apart, apart) / mass[:, None, None]


@pytest.mark.parametrize("drawn", ["fixed", "training"])
def test_translated_digits_are_whole_and_stand_on_whole_pixels(drawn):
    raw, task = raw_of(), placed()
    if drawn == "fixed":
        images, labels = fixed(task), task.labels
    else:
        images, labels, targets = an_epoch(task)
        torch.testing.assert_close(targets, images)
        images = (images * 255).round().to(torch.uint8)
    assert images.shape == (50, 1, 40, 40)
    known = {image.tobytes(): int(label) for image, label in zip(raw.images, raw.labels, strict=True)}
    for image, (top, left), label in zip(images, corners(images).tolist(), labels.tolist(), strict=True):
        inside = image[:, top : top + 28, left : left + 28].contiguous()
        assert known[inside.numpy().tobytes()] == label
        assert inside.int().sum() == image.int().sum()  # nothing else is in the image


def test_every_place_is_reached_alike():
    task = placed(raw_of(10), transforms=1000)
    place = corners(fixed(task))
    assert len(place.unique(dim=0)) == 13 * 13
    for axis in (0, 1):
        counts = place[:, axis].bincount(minlength=13)
        assert len(counts) == 13
        assert counts.min() > 0.8 * 10_000 / 13
        assert counts.max() < 1.2 * 10_000 / 13
    assert abs(torch.corrcoef(place.T.float())[0, 1]) < 0.03


@pytest.mark.parametrize("mode", ["translated", "affine"])
def test_fixed_images_are_fixed_by_seed_and_index(mode):
    raw = digits.read(NOWHERE, "test")
    few, many, other = placed(raw, mode, 1), placed(raw, mode, 3), placed(raw, mode, 1, seed=1)
    count = len(raw.labels)
    assert torch.equal(fixed(few), fixed(many)[:count])
    assert (fixed(few) != fixed(other)).flatten(1).any(dim=1).float().mean() > 0.9
    assert torch.equal(many.labels, torch.from_numpy(raw.labels).repeat(3))
    assert (fixed(many)[:count] != fixed(many)[count : 2 * count]).flatten(1).any(dim=1).float().mean() > 0.9
    some = torch.tensor([700, 3])
    assert torch.equal(many.eval_images(some)[0], fixed(many)[some])


@pytest.mark.parametrize("mode", ["translated", "affine"])
def test_training_images_are_drawn_anew_in_each_epoch_and_repeat_for_its_seed(mode):
    task = placed(mode=mode)
    first, again, next_epoch, other_seed = (an_epoch(task, *which) for which in ((0, 1), (0, 1), (0, 2), (1, 1)))
    assert torch.equal(first[0], again[0])
    shown = [{image.numpy().tobytes() for image in found[0]} for found in (first, next_epoch, other_seed)]
    assert len(shown[0] | shown[1] | shown[2]) > 140  # of 150: a place is met twice by chance


def test_augmentation_acts_on_placed_digits():
    task = placed()
    plain, _, _ = an_epoch(task)
    changed, _, targets = an_epoch(task, augmentation=Augmentation(cutout=9))
    assert torch.equal(changed, targets)
    assert (changed == 0).sum() > (plain == 0).sum()


def test_the_identity_shows_the_digit_in_the_middle():
    image = rectangle(20, 12) * torch.linspace(0.2, 1, 28).view(1, 1, 1, 28)
    expected = torch.nn.functional.pad(image, (6, 6, 6, 6))
    torch.testing.assert_close(affine_images(image, draws_of()), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("x", "y", "centre"),
    [(0, 0, (6, 10)), (1, 1, (33, 29)), (0, 1, (6, 29)), (0.5, 0, (19.5, 10)), (0.5, 0.75, (19.5, 24.25))],
)
def test_translation_goes_from_edge_to_edge(x, y, centre):
    """Ink of 20 rows and 12 columns: its outermost pixels come to between the last two pixels of an edge."""
    image = rectangle(20, 12)
    mass, found, _ = moments(affine_images(image, draws_of(x=x, y=y)))
    torch.testing.assert_close(found, torch.tensor([centre], dtype=torch.float64), atol=1e-4, rtol=0)
    assert float(mass) == pytest.approx(240)  # and none is lost


@pytest.mark.parametrize(
    ("x", "y", "centre"),
    [(0, 0, (13.5, 13.5)), (1, 1, (25.5, 25.5)), (0, 1, (13.5, 25.5)), (0.5, 0.75, (19.5, 22.5))],
)
def test_translation_may_keep_the_range_of_training(x, y, centre):
    """Training moves the middle of a digit by up to 6 pixels from that of 40x40, 19.5."""
    image = rectangle(20, 12)
    mass, found, _ = moments(affine_images(image, draws_of(x=x, y=y), "training"))
    torch.testing.assert_close(found, torch.tensor([centre], dtype=torch.float64), atol=1e-4, rtol=0)
    assert float(mass) == pytest.approx(240)


def test_in_the_range_of_training_too_the_ink_stays_inside():
    image = rectangle(28, 8)  # with its last rows in the last of the frame's: 1.2 times as high it is 33.6 pixels
    mass, found, _ = moments(affine_images(image, draws_of(height=1, y=1), "training"))
    assert float(mass) == pytest.approx(28 * 8 * 1.2, rel=0.01)
    assert 21.5 < float(found[0, 1]) < 24  # not at 25.5


def test_generated_digits_keep_to_the_placement_that_is_chosen():
    raw = digits.read(NOWHERE, "test")
    reach = {}
    for placement in ("anywhere", "training"):
        data = data_of("affdigits", placement=placement, transforms_per_image=2, train="affine")
        shown = {split: make_task(data, raw, split, CPU) for split in ("train", "test", "familiar")}
        images = {"train": an_epoch(shown["train"])[0], "test": fixed(shown["test"]).float() / 255}
        images["familiar"] = fixed(shown["familiar"]).float() / 255
        reach[placement] = {split: (moments(found)[1] - 19.5).abs().amax(dim=0) for split, found in images.items()}
    for split in ("train", "test"):
        assert (reach["anywhere"][split] > 9.5).all()
        assert (reach["training"][split] < 9).all()  # 6, and how far a digit's ink is from the middle of its frame
    assert torch.equal(reach["anywhere"]["familiar"], reach["training"]["familiar"])


def test_the_placement_is_said_to_be_a_test_of_translation():
    field = AffineOptions.model_fields["placement"]
    assert field.default == "anywhere"
    assert "translation" in field.description
    (said,) = [part for part in field.metadata if isinstance(part, Said)]
    assert "fits" in said.paper


@pytest.mark.parametrize(("draw", "factor"), [(1, 1.2), (0, 0.8), (0.75, 1.1)])
def test_each_scale_sizes_its_own_axis(draw, factor):
    image = rectangle(16, 16)
    _, _, before = moments(image)
    for name, axis in (("width", 0), ("height", 1)):
        mass, centre, after = moments(affine_images(image, draws_of(**{name: draw})))
        assert float(mass / 256) == pytest.approx(factor, rel=0.01)
        assert float(after[0, axis, axis] / before[0, axis, axis]) == pytest.approx(factor**2, rel=0.02)
        assert float(after[0, 1 - axis, 1 - axis] / before[0, 1 - axis, 1 - axis]) == pytest.approx(1, rel=1e-4)
        torch.testing.assert_close(centre, torch.full((1, 2), 19.5, dtype=torch.float64))


@pytest.mark.parametrize("draw", [0, 0.25, 1])
def test_rotation_and_shear_turn_a_bar_as_far_as_they_say(draw):
    bar = rectangle(2, 16)  # lies along x
    _, _, spread = moments(affine_images(bar, draws_of(angle=draw)))
    turned = math.degrees(math.atan2(2 * spread[0, 0, 1], spread[0, 0, 0] - spread[0, 1, 1])) / 2
    assert turned == pytest.approx(20 * (2 * draw - 1), abs=0.5)
    upright = rectangle(16, 2)
    _, _, spread = moments(affine_images(upright, draws_of(shear=draw)))
    assert float(spread[0, 0, 1] / spread[0, 1, 1]) == pytest.approx(0.2 * (2 * draw - 1), abs=0.01)
    _, _, spread = moments(affine_images(bar, draws_of(shear=draw)))  # along x: a bar along x stays
    assert abs(float(spread[0, 0, 1] / spread[0, 0, 0])) < 0.01


def test_matrices_stay_within_affnists_ranges_and_fill_them():
    matrix = affine_matrices(torch.rand(20_000, 4, generator=torch.Generator().manual_seed(0))).double()
    # matrix = scaling @ shearing @ rotation: the first is found from the determinant of what is left of each row
    height = matrix[:, 1].norm(dim=1)  # the second row is the second scale times a unit vector
    angle = torch.atan2(matrix[:, 1, 0], matrix[:, 1, 1]).rad2deg()
    width = matrix.det() / height
    shear = (matrix[:, 0] / width[:, None] * matrix[:, 1] / height[:, None]).sum(dim=1)
    for values, low, high in ((angle, -20, 20), (shear, -0.2, 0.2), (width, 0.8, 1.2), (height, 0.8, 1.2)):
        room = (high - low) / 100
        assert low - 1e-4 <= values.min() < low + room
        assert high - room < values.max() <= high + 1e-4
        assert float(values.mean()) == pytest.approx((low + high) / 2, abs=room)
    independent = torch.corrcoef(torch.stack([angle, shear, width, height]))
    assert independent.fill_diagonal_(0).abs().max() < 0.03


def test_no_ink_leaves_the_image():
    """What a map would show on a larger canvas is on 40x40 too: the mass is that of the digit times the determinant."""
    raw = digits.read(NOWHERE, "test")
    images = torch.from_numpy(raw.images[:200]).float() / 255
    images = torch.where(images < 20 / 255, 0.0, images)  # fainter ink may leave
    draws = torch.rand(200, DRAWS, generator=torch.Generator().manual_seed(0))
    draws[:100, 4:] = draws[:100, 4:].round()  # half of them in a corner
    shown = affine_images(images, draws)
    assert shown.min() >= 0
    assert shown.max() <= 1
    expected = images.sum(dim=(1, 2, 3)) * affine_matrices(draws).det()
    assert (shown.sum(dim=(1, 2, 3)) / expected - 1).abs().max() < 0.03


def test_a_digit_that_fits_nowhere_is_centred():
    full = torch.ones(1, 1, 28, 28)
    found = affine_images(full, draws_of(width=1, height=1, angle=1, shear=1, x=0, y=1))
    _, centre, _ = moments(found)
    torch.testing.assert_close(centre, torch.full((1, 2), 19.5, dtype=torch.float64), atol=0.3, rtol=0)
    assert found.isfinite().all()


def test_a_blank_digit_stays_finite():
    assert (fixed(placed(Raw(np.zeros((2, 1, 28, 28), np.uint8), np.zeros(2, np.int64)), "affine")) == 0).all()


def tasks_of(data):
    splits = ("train", "validation", "familiar", "test")
    return {split: make_task(data, raw_of(), split, CPU) for split in splits}


@pytest.mark.parametrize("name", ["affdigits", "affnist-generated"])
def test_training_and_familiar_test_are_translated_and_the_test_is_affine(name):
    tasks = tasks_of(data_of(name))
    assert {split: task.mode for split, task in tasks.items()} == {
        "train": "translated", "validation": "translated", "familiar": "translated", "test": "affine",
    }  # fmt: skip
    assert {split: len(task.labels) for split, task in tasks.items()} == {
        "train": 50, "validation": 50, "familiar": 50, "test": 1600,
    }  # fmt: skip
    assert data_of(name).has_familiar_test


@pytest.mark.parametrize("name", ["affdigits", "affnist"])
def test_the_control_trains_on_affine_images(name):
    data = data_of(name, train="affine")
    tasks = tasks_of(data)
    assert (tasks["train"].mode, tasks["validation"].mode) == ("affine", "affine")
    assert not data.has_familiar_test
    seen = an_epoch(tasks["train"])[0]
    assert ((seen * 255 - (seen * 255).round()).abs() > 0.01).any()  # between pixels: not placed as they are


def test_translated_mnist_is_tested_on_translated_digits():
    tasks = tasks_of(data_of("mnist-translated"))
    assert (tasks["train"].mode, tasks["test"].mode) == ("translated", "translated")
    assert len(tasks["test"].labels) == 50
    assert not data_of("mnist-translated").has_familiar_test


def test_the_official_test_is_the_files_of_affnist(in_catalogue, tmp_path):
    asked = []
    own = np.random.default_rng(1).integers(0, 256, (30, 1, 40, 40), dtype=np.uint8)

    def read_official(folder, split, allow_unofficial, options):
        asked.append(("affnist", folder, split, allow_unofficial))
        return Raw(own, np.arange(30) % 10, {}, ("a copy",))

    def read_mnist(folder, split, allow_unofficial, options):
        asked.append(("mnist", folder, split, allow_unofficial))
        return raw_of()

    in_catalogue("affnist", read=read_mnist, read_test=read_official)
    test = load("affnist", tmp_path, "test", allow_unofficial=True)
    np.testing.assert_array_equal(test.images.numpy(), own)
    assert test.unofficial == ("a copy",)
    for split in ("train", "familiar"):
        assert load("affnist", tmp_path, split).images.shape == (50, 1, 40, 40)
    assert asked == [
        ("affnist", tmp_path / "affnist", "test", True),
        ("mnist", tmp_path / "mnist", "train", False),
        ("mnist", tmp_path / "mnist", "test", False),
    ]
    task = make_task(data_of("affnist"), Raw(own, np.arange(30) % 10), "test", CPU)
    assert isinstance(task, Plain)
    torch.testing.assert_close(next(task.eval_batches(30)).images, torch.from_numpy(own) / 255)
