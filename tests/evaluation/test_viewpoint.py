"""Errors by factor: known answers on made-up predictions, sums that are accuracy's, and the signs of the factors."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from capsbench.data import make_task, read_split
from capsbench.data.catalogue import CATALOGUE
from capsbench.data.readers.raw import Raw
from capsbench.evaluation import Context
from capsbench.evaluation.accuracy import count_errors
from capsbench.evaluation.predictions import Predictions
from capsbench.evaluation.viewpoint import Factor, displacements, errors_by, errors_by_object, factors_of, viewpoint
from capsbench.study import Data

CPU = torch.device("cpu")
NOWHERE = Path("nowhere")


def norb(azimuths=(0, 8, 30), lightings=(0, 1)) -> Raw:
    """One pair of each object, elevation, azimuth and lighting."""
    seen = [
        (c, i, e, a, light) for c in range(5) for i in (0, 1) for e in (0, 4) for a in azimuths for light in lightings
    ]
    columns = np.array(seen).T
    named = dict(zip(("instance", "elevation", "azimuth", "lighting"), columns[1:], strict=True))
    return Raw(np.zeros((len(seen), 2, 48, 48), np.uint8), columns[0], named)


def context_of(name, raw=None, wrong=None, splits=("test",), **options):
    """Return a context whose network errs where `wrong` says, a function of the raw arrays of the split."""
    data = Data(name=name, options=CATALOGUE[name].options(**options))
    made = {}
    for split in splits:
        own = read_split(data, NOWHERE, split) if raw is None else data.facts.select(raw, split, data.options)
        task = make_task(data, own, split, CPU)
        errs = torch.zeros(len(task.labels), dtype=torch.bool) if wrong is None else torch.from_numpy(wrong(own, task))
        labels = task.labels
        if labels.ndim == 1:
            said = torch.where(errs, (labels + 1) % data.facts.num_classes, labels)
            scores = torch.nn.functional.one_hot(said, data.facts.num_classes).float()
        else:
            scores = torch.rand(len(labels), 10)
        images = torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
        predictions = Predictions(scores, labels, 4, None, images, images, None)
        made |= {("raw", split): own, ("task", split): task, ("predictions", split): predictions}
    return Context(SimpleNamespace(data=data), None, CPU, NOWHERE, NOWHERE, made)


def sums(groups):
    leaves = list(groups.values()) if "images" in next(iter(groups.values())) else None
    if leaves is None:
        return tuple(sum(parts) for parts in zip(*(sums(inner) for inner in groups.values()), strict=True))
    return sum(g["images"] for g in leaves), sum(g["errors"] for g in leaves)


def test_errors_by_value_by_hand():
    wrong = np.array([True, False, False, True, True])
    found = errors_by(wrong, Factor(np.array([20, 20, 0, 0, 40]), "azimuth"))
    assert found == {
        "0": {"images": 2, "errors": 1, "error": 50.0},
        "20": {"images": 2, "errors": 1, "error": 50.0},
        "40": {"images": 1, "errors": 1, "error": 100.0},
    }
    assert list(found) == ["0", "20", "40"]


def test_a_range_is_cut_into_bins_named_by_their_middles():
    found = errors_by(
        np.array([True, False, True, True]), Factor(np.array([-20.0, -0.1, 0.0, 20.0]), "r", (-20, 20, 2))
    )
    assert found == {
        "-10": {"images": 2, "errors": 1, "error": 50.0}, "10": {"images": 2, "errors": 2, "error": 100.0}
    }  # fmt: skip


def test_errors_by_object_are_nested():
    labels, instances = np.array([0, 0, 1, 1]), np.array([3, 5, 3, 3])
    found = errors_by_object(np.array([True, False, False, True]), labels, instances, ("cat", "dog"))
    assert found["cat"]["3"] == {"images": 1, "errors": 1, "error": 100.0}
    assert found["cat"]["5"]["error"] == 0.0
    assert found["dog"] == {"3": {"images": 2, "errors": 1, "error": 50.0}}


def test_a_network_that_errs_at_one_azimuth():
    context = context_of("smallnorb", norb(), lambda raw, _: raw.factors["azimuth"] == 30)
    found = viewpoint(context)
    assert [found["by"]["azimuth"][a]["error"] for a in ("-60", "0", "80")] == [100.0, 0.0, 0.0]
    assert (found["worst_azimuth"], found["worst_object"]) == (100.0, pytest.approx(100 / 3))
    assert found["worst_elevation"] == found["worst_lighting"] == pytest.approx(100 / 3)
    assert set(found["by"]["elevation"]) == {"30", "50"}  # degrees
    line = next(c for c in found["curves"] if c["name"] == "azimuth")
    assert (line["x"], line["y"], line["x_label"]) == ([-60, 0, 80], [100, 0, 0], "azimuth (degrees)")
    assert "gap" not in found
    assert set(found["by"]["object"]) == {"animal", "human", "airplane", "truck", "car"}


def test_each_factor_adds_up_to_accuracys_number():
    rng = np.random.default_rng(0)
    context = context_of("smallnorb", norb(), lambda raw, _: rng.random(len(raw.labels)) < 0.3)
    counted, found = count_errors(context.predictions()), viewpoint(context)
    assert {name: found[name] for name in ("images", "errors", "error")} == {
        name: counted[name] for name in ("images", "errors", "error")
    }
    assert found["by"].keys() == {"azimuth", "elevation", "lighting", "object"}
    for groups in found["by"].values():
        assert sums(groups) == (counted["images"], counted["errors"])


def test_what_a_copy_does_not_know_is_left_out_and_named():
    raw = norb()
    raw.factors["azimuth"][:] = -1
    found = viewpoint(context_of("smallnorb", raw))
    assert "azimuth" not in found["by"] and "worst_azimuth" not in found
    assert found["unknown"] == ["azimuth"]
    assert "elevation" in found["by"]


def test_one_lighting_is_no_factor():
    found = viewpoint(context_of("smallnorb", norb(lightings=(3,))))
    assert found["by"].keys() == {"azimuth", "elevation", "object"} and found["unknown"] == []


def test_familiar_and_novel_views_are_one_line_and_a_gap():
    raw = norb(azimuths=(30, 0, 8, 20))  # two familiar, two novel

    def wrong(own, _):
        return (own.factors["azimuth"] == 8) | ((own.factors["azimuth"] == 0) & (own.factors["lighting"] == 0))

    found = viewpoint(context_of("smallnorb", raw, wrong, ("test", "familiar"), view="azimuth"))
    assert (found["error"], found["familiar_error"], found["gap"]) == (50.0, 25.0, 25.0)
    assert found["familiar"]["by"]["azimuth"]["0"]["error"] == 50.0
    lines = {line["name"]: line for line in found["curves"]}
    assert (lines["azimuth"]["x"], lines["azimuth"]["y"]) == ([-160, -60, 0, 80], [0, 0, 50, 100])
    assert lines["elevation"]["x"] == [30, 50]  # shown in both: the test alone


def test_affine_digits_by_what_was_drawn():
    context = context_of(
        "affdigits", wrong=lambda _, task: (task.draws[:, 0] > 0.75).numpy(), splits=("test", "familiar"),
        transforms_per_image=2,
    )  # fmt: skip
    found = viewpoint(context, bins=4)
    errors = {middle: group["error"] for middle, group in found["by"]["rotation"].items()}
    assert errors == {"-15": 0.0, "-5": 0.0, "5": 0.0, "15": 100.0}
    assert found["worst_rotation"] == 100.0
    assert list(found["by"]["scale_x"]) == ["0.85", "0.95", "1.05", "1.15"]
    assert list(found["by"]["shear"]) == ["-0.15", "-0.05", "0.05", "0.15"]
    for groups in found["by"].values():
        assert sums(groups) == (1078, found["errors"])
    assert found["familiar"]["by"].keys() == {"shift_x", "shift_y"}
    assert found["gap"] == pytest.approx(found["error"] - found["familiar_error"])


def test_affine_digits_by_how_far_they_were_moved():
    def wrong(_, task):
        return (displacements(task.eval_images(torch.arange(len(task.labels)))[0]) > 8).numpy()

    found = viewpoint(context_of("affdigits", wrong=wrong, splits=("test", "familiar"), transforms_per_image=1))
    by = found["by"]["displacement"]
    assert list(by)[:6] == ["1", "3", "5", "7", "9", "11"]
    assert [by[middle]["error"] for middle in ("5", "7", "9", "11")] == [0.0, 0.0, 100.0, 100.0]
    assert found["worst_displacement"] == 100.0
    line = next(c for c in found["curves"] if c["name"] == "displacement")
    assert line["x_label"] == "displacement (pixels)"


def test_a_displacement_is_the_larger_of_the_two_of_the_centre_of_mass():
    images = torch.zeros(4, 1, 40, 40, dtype=torch.uint8)
    images[0, 0, 19:21, 19:21] = 255  # in the middle
    images[1, 0, 19:21, 26:28] = 255  # 7 to the right
    images[2, 0, 10:12, 25:27] = 255  # 9 up, 6 to the right
    assert displacements(images).tolist() == [0.0, 7.0, 9.0, 0.0]  # the last has no ink


def test_digits_in_training_places_are_moved_as_far_as_training_moves_them():
    data = Data(name="affdigits", options=CATALOGUE["affdigits"].options(transforms_per_image=1, placement="training"))
    raw = read_split(data, NOWHERE, "test")
    near = factors_of({}, make_task(data, raw, "test", CPU), 8)["displacement"].values
    before = displacements(torch.from_numpy(raw.images)).numpy()  # scikit-learn's are not quite in the middle
    assert near.max() < 6 + 1.5 * before.max() + 0.5


def test_the_shift_of_a_translated_digit_is_where_its_ink_went():
    data = Data(name="affdigits", options=CATALOGUE["affdigits"].options())
    raw = read_split(data, NOWHERE, "test")
    task = make_task(data, raw, "familiar", CPU)
    factors = factors_of({}, task, 8)

    def centre(images):  # from the middle
        ink, side = images[:, 0].astype(float), images.shape[-1]
        place = np.arange(side) - (side - 1) / 2
        total = ink.sum(axis=(1, 2))
        return (ink.sum(axis=1) @ place) / total, (ink.sum(axis=2) @ place) / total

    shown, _ = task.eval_images(torch.arange(100))
    for name, after, before in zip(
        ("shift_x", "shift_y"), centre(shown.numpy()), centre(raw.images[:100]), strict=True
    ):
        assert_allclose(after - before, factors[name].values[:100], atol=1e-6)
        assert set(factors[name].values) == set(range(-6, 7))


def test_official_affnist_has_its_rotation_and_the_displacement_of_its_images():
    raw = Raw(np.zeros((4, 1, 40, 40), np.uint8), np.arange(4), {"rotation": np.array([-20.0, 3, 4, 20])})
    raw.images[1, 0, 20, 38] = 255
    task = make_task(Data(name="affnist"), raw, "test", CPU)
    factors = factors_of(raw.factors, task, 2)
    assert factors["displacement"].values.tolist() == [0.0, 18.5, 0.0, 0.0]
    assert_array_equal([g["images"] for g in errors_by(np.zeros(4, bool), factors["rotation"]).values()], [1, 3])


@pytest.mark.parametrize("name", ["digits", "multidigits"])
def test_images_that_are_seen_one_way_have_nothing_to_measure(name):
    options = {"test_pairs": 20} if name == "multidigits" else {}
    found = viewpoint(context_of(name, **options))
    assert found["status"] == "not applicable" and name in found["reason"]
