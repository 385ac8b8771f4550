import hashlib

import numpy as np
import pytest
import torch
from small_data import NOWHERE

from capsbench.data.readers import toynorb
from capsbench.data.tasks.stereo import SIDES, ToyNorbOptions

ONE = ToyNorbOptions(lightings=1)
NAMES = ("instance", "elevation", "azimuth", "lighting")


@pytest.fixture(scope="module")
def splits():
    torch.set_num_threads(1)  # what is of a module comes before what is of each test
    return {split: toynorb.read(NOWHERE, split, options=ONE) for split in ("train", "test")}


@pytest.fixture(scope="module")
def views():
    """One object, a truck, under two lightings: [9 elevations, 18 azimuths, 2 lightings, 2 cameras, 48, 48]."""
    return toynorb._views(toynorb.solid(3, 4), 2).view(9, 18, 2, 2, 48, 48).float()


# mean brightness of one view of an object of each category, of both cameras under two lightings: FORMAT 2
RENDERED = {
    (0, 4): [152.917, 152.825, 154.023, 154.255],
    (1, 0): [153.643, 153.294, 151.797, 152.442],
    (2, 6): [154.04, 153.93, 155.5, 155.767],
    (3, 4): [155.197, 154.718, 154.01, 154.849],
    (4, 1): [156.265, 155.872, 154.939, 155.378],
}


def far(one, other):
    """Mean absolute difference of two images."""
    return (one - other).abs().mean().item()


@pytest.mark.parametrize("split", ["train", "test"])
def test_arrays_are_laid_out_as_smallnorbs(splits, split):
    raw = splits[split]
    assert raw.images.shape == (4050, 2, 48, 48)
    assert raw.images.dtype == np.uint8
    assert set(raw.factors) == set(NAMES)
    for array in (raw.labels, *raw.factors.values()):
        assert array.shape == (4050,)
        assert array.dtype == np.int64
    assert np.bincount(raw.labels).tolist() == [810] * 5


@pytest.mark.parametrize(("split", "instances"), [("train", [4, 6, 7, 8, 9]), ("test", [0, 1, 2, 3, 5])])
def test_each_object_is_seen_once_from_each_place(splits, split, instances):
    raw = splits[split]
    seen = np.stack([raw.labels, *(raw.factors[name] for name in NAMES)], 1)
    assert len(np.unique(seen, axis=0)) == 4050
    for name, values in zip(NAMES, (instances, range(9), range(0, 36, 2), [0]), strict=True):
        assert np.unique(raw.factors[name]).tolist() == list(values)


def test_no_image_is_in_both_splits(splits):
    train, test = ({image.tobytes() for image in splits[split].images} for split in ("train", "test"))
    assert len(train) == len(test) == 4050
    assert not train & test


def test_a_second_read_renders_nothing_and_is_equal(splits, monkeypatch):
    monkeypatch.setattr(toynorb, "render", lambda *_: pytest.fail("rendered again"))
    again = toynorb.read(NOWHERE, "train", options=ONE)
    assert (again.images == splits["train"].images).all()
    assert (again.labels == splits["train"].labels).all()
    assert all((again.factors[name] == splits["train"].factors[name]).all() for name in NAMES)


@pytest.mark.parametrize(("names", "means"), list(RENDERED.items()))
def test_other_images_need_another_format(names, means):
    """Where images are meant to change: raise FORMAT, or machines keep the old ones, and put the new means here."""
    assert toynorb.FORMAT == 2
    view = toynorb._views(toynorb.solid(*names), 2).view(9, 18, 2, 2, 48, 48)[4, 3].float()
    assert view.mean(dim=(2, 3)).flatten().tolist() == pytest.approx(means, abs=0.02)


def test_every_resize_is_of_the_same_rays():
    """The 96x96 rays of a rendering: their means are the images of always; every second one is the upper left."""
    mean, second, wide = (
        toynorb._views(toynorb.solid(3, 4), 1, resize).float() for resize in ("mean", "every_second", "bilinear_64")
    )
    assert mean.shape == second.shape == (162, 2, 48, 48)
    assert wide.shape == (162, 2, 64, 64)
    assert torch.equal(mean, toynorb._views(toynorb.solid(3, 4), 1).float())
    assert 0.1 < far(mean, second) < 3
    assert mean.mean().item() == pytest.approx(wide.mean().item(), abs=0.3)
    assert float(torch.corrcoef(torch.stack([second.flatten(), mean.flatten()]))[0, 1]) > 0.85


def test_each_resize_has_arrays_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSBENCH_CACHE", str(tmp_path))

    def render(split, lightings, resize):
        image = toynorb._views(toynorb.solid(3, 4), 1, resize).numpy()
        return {"images": image, "labels": np.full(len(image), 3)}

    monkeypatch.setattr(toynorb, "render", render)
    first = {r: toynorb.read(NOWHERE, "train", options=ToyNorbOptions(lightings=1, resize=r)).images for r in SIDES}
    again = {r: toynorb.read(NOWHERE, "train", options=ToyNorbOptions(lightings=1, resize=r)).images for r in SIDES}
    assert {resize: images.shape[-1] for resize, images in first.items()} == SIDES
    assert (first["mean"] != first["every_second"]).any()
    assert all((again[resize] == first[resize]).all() for resize in SIDES)
    assert (toynorb.read(NOWHERE, "train", options=ONE).images == first["mean"]).all()


def test_every_processor_gives_the_same_bytes():
    images = toynorb._views(toynorb.solid(3, 4), 1).numpy()
    expected = "4d0ee3c582a4072bf49532f504a9d0b025efb8f3c34103ab8927bab6d3644ffb"  # FORMAT 2
    assert hashlib.sha256(images.tobytes()).hexdigest() == expected


def test_rendering_again_gives_the_same_bytes(splits):
    for category, instance in ((0, 4), (4, 9)):
        of_object = (splits["train"].labels == category) & (splits["train"].factors["instance"] == instance)
        again = toynorb._views(toynorb.solid(category, instance), 1).numpy()
        assert (again == splits["train"].images[of_object]).all()


def test_images_and_factors_go_together(splits, views):
    raw = splits["train"]
    seen = (raw.labels == 3) & (raw.factors["instance"] == 4)
    seen &= (raw.factors["elevation"] == 2) & (raw.factors["azimuth"] == 10)
    assert (torch.from_numpy(raw.images[seen]) == views[2, 5, :1]).all()


def test_further_lightings_leave_the_first_as_it_is(views):
    assert (toynorb._views(toynorb.solid(3, 4), 1).view(9, 18, 2, 48, 48) == views[:, :, 0]).all()


@pytest.mark.parametrize("lightings", [0, 7])
def test_only_the_six_lightings(lightings):
    with pytest.raises(ValueError, match="or equal to"):
        ToyNorbOptions(lightings=lightings)
    assert ToyNorbOptions().lightings == len(toynorb.LIGHTS) == 6


def test_no_light_is_over_white():
    assert all(strength + ambient <= 1 for _, _, strength, ambient in toynorb.LIGHTS)


def test_every_factor_and_the_camera_change_the_image(views):
    middle = views[4, 3, 0, 0]
    for other in (views[5, 3, 0, 0], views[4, 4, 0, 0], views[4, 3, 1, 0], views[4, 3, 0, 1]):
        assert far(middle, other) > 0.5


def test_the_second_camera_is_a_little_further_round(views):
    """The eight degrees between the cameras are less than the twenty to the next azimuth, and far from the opposite."""
    one, two = views[:, :, 0, 0], views[:, :, 0, 1]
    assert far(two, one) < far(two, one.roll(-1, 1)) < far(two, one.roll(-9, 1))
    assert far(two, one.roll(-1, 1)) < far(two, one.roll(1, 1))  # 12 degrees to the next, 28 to the one before


def test_higher_cameras_see_less_of_the_height():
    """A human from 30 degrees above is taller in the image than from 70 degrees, by about cos 30 to cos 70."""
    human = toynorb._views(toynorb.solid(1, 4), 1).view(9, 18, 2, 48, 48)[:, 9, 0]  # at 180 degrees
    heights = [int((view != view[0, 0]).any(1).sum()) for view in human]
    assert heights[0] > 1.3 * heights[-1]


@pytest.mark.parametrize("split", ["train", "test"])
def test_objects_are_whole_within_the_middle(splits, split):
    images = splits[split].images
    background = round(255 * toynorb.BACKGROUND)
    drawn = (images != background).any(axis=(0, 1))
    assert not drawn[:8].any()
    assert not drawn[40:].any()
    assert not drawn[:, :8].any()
    assert not drawn[:, 40:].any()
    middle = images[:, :, 8:40, 8:40] != background  # all that is rendered: nothing is cut off at its edge either
    assert not middle[:, :, [0, -1]].any()
    assert not middle[:, :, :, [0, -1]].any()
    long = np.maximum(middle.any(2).sum(-1), middle.any(3).sum(-1))
    assert long.min() >= 12
    assert np.median(long) > 20


def test_all_fifty_objects_have_the_same_size():
    for category in range(5):
        for instance in range(10):
            box, centre, half, _ = toynorb.solid(category, instance)
            reach = centre.norm(dim=1) + torch.where(box, half.norm(dim=1), half.amax(1))
            assert toynorb.RADIUS * 0.95 < reach.max() < toynorb.RADIUS * 1.3


def test_ray_meets_ellipsoid():
    origins = torch.tensor([[4.0, 0, 0], [4.0, 0.6, 0], [4.0, 2, 0], [0, 0, 5.0]])
    directions = torch.tensor([[-1.0, 0, 0], [-1.0, 0, 0], [-1.0, 0, 0], [0, 0, -2.0]])
    distances, normals = toynorb.ray_ellipsoid(origins, directions)
    torch.testing.assert_close(distances, torch.tensor([3.0, 3.2, torch.inf, 2.0]))
    hit = [0, 1, 3]
    torch.testing.assert_close(normals[hit], torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [0, 0, 1.0]]))


def test_ray_meets_box():
    origins = torch.tensor([[4.0, 0.5, -0.5], [4.0, 1.5, 0], [0.2, 0.3, 5.0], [3.0, 2.0, 0], [0, -3.0, 0]])
    directions = torch.tensor([[-1.0, 0, 0], [-1.0, 0, 0], [0, 0, -2.0], [-1.0, -1.0, 0], [0, 1.0, 0]])
    distances, normals = toynorb.ray_box(origins, directions)
    torch.testing.assert_close(distances, torch.tensor([3.0, torch.inf, 2.0, 2.0, 2.0]))
    hit = [0, 2, 3, 4]
    expected = torch.tensor([[1.0, 0, 0], [0, 0, 1.0], [1.0, 0, 0], [0, -1.0, 0]])
    torch.testing.assert_close(normals[hit], expected)


def test_nearer_part_hides_the_further_and_faces_are_lit_by_their_slope(monkeypatch):
    """A flat box seen from above is lit by the sine of the light's elevation; a ball far below it is not seen."""
    monkeypatch.setattr(toynorb, "LIGHTS", ((0, 30, 0.6, 0.2),))
    box = torch.tensor([True, False])
    centre = torch.tensor([[0, 0, 0], [0, 0, -0.5]], dtype=torch.float64)
    half = torch.tensor([[0.5, 0.5, 0.01], [0.1, 0.1, 0.1]], dtype=torch.float64)
    axes = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    for order in ([0, 1], [1, 0]):
        parts = tuple(values[order] for values in (box, centre, half, axes))
        steepest = toynorb._views(parts, 1).view(9, 18, 2, 48, 48)[-1]
        assert (steepest[:, :, 22:26, 22:26] == round(255 * (0.2 + 0.6 * 0.5))).all()


def test_frame_of_a_viewer():
    toward, right, up = toynorb._frame(torch.tensor([0.0, 90.0]), torch.tensor([0.0, 30.0]))
    half, root = 0.5, 3**0.5 / 2
    torch.testing.assert_close(toward, torch.tensor([[1, 0, 0], [0, root, half]]))
    torch.testing.assert_close(right, torch.tensor([[0, 1.0, 0], [-1.0, 0, 0]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(up, torch.tensor([[0, 0, 1.0], [0, -half, root]]), atol=1e-6, rtol=0)


def test_rotation_turns_about_x_then_y_then_z():
    quarter = torch.pi / 2
    x, y, z = torch.eye(3, dtype=torch.float64)
    for turn, before, after in (((1, 0, 0), y, z), ((0, 1, 0), z, x), ((0, 0, 1), x, y), ((1, 1, 0), y, x)):
        torch.testing.assert_close(toynorb._rotation(torch.tensor(turn) * quarter) @ before, after, atol=1e-6, rtol=0)


def test_a_pair_is_a_mirror_image():
    left, right = toynorb._pair(toynorb.BOX((0.1, 0.2, 0.3), (1.0, 2.0, 3.0), (10.0, 20.0, 30.0), (0.0, 1.0, 0.5)))
    sign = torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    mirror = torch.diag(sign)

    def corner(part, sign):
        joint, half, turn, grip = (torch.tensor(x, dtype=torch.float64) for x in part[1:])
        return joint + toynorb._rotation(turn.deg2rad()) @ ((grip + sign) * half)

    torch.testing.assert_close(corner(right, sign), mirror @ corner(left, mirror @ sign))
