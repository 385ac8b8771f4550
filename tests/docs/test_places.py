"""docs/places.py: errors on affine digits by where they lie, from the bits of a reference and places that are kept."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from capsbench.analysis.correct_bits import NAME, read_correct

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import places  # noqa: E402

REFERENCE = ROOT / "results/reference"
CPU = REFERENCE / "cpu" / NAME


def test_the_places_are_those_of_the_digits(mnist_root):
    found, fingerprint = places.compute(REFERENCE, mnist_root)
    with np.load(places.FILE) as kept:
        assert str(kept["fingerprint"]) == fingerprint
        assert np.abs(kept["tenths"].astype(int) - found).max() <= 1  # another processor may round otherwise


def test_they_are_those_of_the_runs_and_others_are_refused(tmp_path, monkeypatch):
    correct = read_correct(CPU)
    assert places.kept_places(correct, "affnist-generated").shape == (10_000,)
    with pytest.raises(ValueError, match=r"of other test items; run python docs/places\.py"):
        places.kept_places(correct, "mnist")
    monkeypatch.setattr(places, "FILE", tmp_path / "places.npz")
    np.savez(places.FILE, tenths=np.zeros(10_000, np.uint8), fingerprint=np.array("another"))
    with pytest.raises(ValueError, match="of other test items"):
        places.kept_places(correct, "affnist-generated")


def test_parts_hold_all_digits_once_and_their_errors_make_the_whole():
    correct = read_correct(CPU)
    distance = places.kept_places(correct, "affnist-generated")
    inside = [(distance >= low) & (distance < high) for low, high in places.PARTS]
    assert np.sum(inside, axis=0).tolist() == [1] * len(distance)
    rows = [line.split("|")[1:-1] for line in places.places(REFERENCE, "cpu", "affnist-generated").splitlines()]
    resnet = next(row for row in rows if row[0].strip() == "ResNet-20")
    means = [float(re.match(r" ([\d.]+) ", cell)[1]) for cell in resnet[1:-1]]
    assert sum(mean * part.mean() for mean, part in zip(means, inside, strict=False)) == pytest.approx(
        means[-1], abs=0.1
    )
    wrong = [100 * (~correct.right[f"affnist-generated/resnet20/seed{seed}"][inside[0]]).mean() for seed in range(5)]
    assert resnet[1].strip() == f"{np.mean(wrong):.1f} ({min(wrong):.1f} to {max(wrong):.1f})"


def test_networks_of_another_study_are_named_and_must_have_run():
    block = places.places(REFERENCE, "diagnostics", "affine-far", "capsnet_far", "cnn_far")
    assert [line.split(" | ")[0] for line in block.splitlines()[2:]] == [
        "| CapsNet, one iteration",
        "| CNN (matched size)",
    ]
    uniform = places.places(REFERENCE, "cpu", "affnist-generated", "capsnet_uniform").splitlines()[2]
    assert block.splitlines()[2].split(" | ")[1:] == uniform.split(" | ")[1:]  # one computation on the same images
    with pytest.raises(ValueError, match="no run of nothing"):
        places.places(REFERENCE, "cpu", "affnist-generated", "nothing")


def test_the_picture_is_drawn_where_it_shows_something_else(tmp_path):
    picture = tmp_path / "places.png"
    assert places.draw_places(REFERENCE, picture, check=True) and not picture.exists()
    assert places.draw_places(REFERENCE, picture, check=False) and picture.exists()
    assert not places.draw_places(REFERENCE, picture, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["places.png"]
