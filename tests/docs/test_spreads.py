"""docs/spreads.py: networks whose seeds are far apart, on made-up runs, and its reasons on the committed ones."""

import sys
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import spreads  # noqa: E402

REFERENCE = ROOT / "results/reference"
HEAD = 2  # lines of a table above its rows
EMPTY = SimpleNamespace(right={}, clusters={})


@pytest.fixture
def listed(monkeypatch):
    """Return the rows of made-up runs of one experiment: variant -> errors in training and in the test, by seed."""

    def rows(kept=EMPTY, **variants):
        found = [
            {"experiment": "digits", "variant": variant, "seed": seed, "status": "ok", "unofficial": None,
             "key": f"digits/{variant}/seed{seed}", "train": train, "test": test}
            for variant, parts in variants.items()
            for seed, (train, test) in enumerate(zip(*parts, strict=True))
        ]  # fmt: skip
        monkeypatch.setattr(
            spreads, "errors_of", lambda reference, study: pd.DataFrame(found).sort_values("seed", ascending=False)
        )
        monkeypatch.setattr(spreads, "read_correct", lambda path: kept)
        return spreads.spreads(Path(), "tiny").splitlines()[HEAD:]

    return rows


def test_networks_whose_seeds_are_far_apart_are_listed_and_no_others(listed):
    near, far = [1.0, 2.0, 5.9, 3.0, 4.0], [1.0, 2.0, 6.0, 3.0, 4.0]
    (row,) = listed(a=(near, near), b=([2.0, 1.0, 3.0, 2.0, 1.0], far))
    assert row.startswith("| digits | `b` | 1.0, 2.0, 6.0, 3.0, 4.0 (5.0) | 2.0, 1.0, 3.0, 2.0, 1.0 | 0.497 | ")
    assert listed(a=(near, near)) == []


def test_seeds_that_err_in_the_test_as_in_training_are_told_from_others(listed, monkeypatch):
    test = [10.0, 12.0, 11.0, 17.0, 14.0]
    rows = listed(a=([5.0, 6.1, 5.6, 8.4, 7.0], test), b=([6.0, 5.0, 6.5, 5.0, 6.0], test))
    assert [row.split(" | ")[-1] for row in rows] == ["as in training |", "not explained |"]
    monkeypatch.setitem(spreads.REASONS, "tiny/*/b", "a reason")
    assert [row.split(" | ")[-1] for row in listed(b=([6.0, 5.0, 6.5, 5.0, 6.0], test))] == ["a reason |"]


def _kept(wrong):
    """Return what was right of 5 classes of 5 objects with 4 images each; wrong [seeds, classes]: of 20 in a class."""
    right = {
        f"digits/a/seed{seed}": np.concatenate([np.arange(20) >= number for number in numbers])
        for seed, numbers in enumerate(wrong)
    }
    return SimpleNamespace(right=right, clusters={"digits": np.arange(100) // 4})


def test_the_class_is_named_that_makes_most_of_the_difference(listed):
    """Animals, humans, airplanes, trucks, cars; the best seed is the second, the worst the third."""
    wrong = np.array([[5, 5, 5, 5, 5], [0, 2, 4, 4, 4], [6, 4, 4, 4, 18], [6, 6, 6, 6, 6], [5, 5, 5, 5, 6]])
    errors = 100 * wrong.sum(axis=1) / 100
    in_training = [3.0, 3.2, 3.0, 3.1, 3.2]
    (row,) = listed(_kept(wrong), a=(in_training, errors))
    assert row.split(" | ")[-2:] == ["car: 25, 20, 90, 30, 30", f"{spreads._ONE_CLASS} |"]
    wrong[2] = [9, 11, 4, 8, 4]  # 9, 9 and 4 of a loss of 22
    (row,) = listed(_kept(wrong), a=(in_training, 100 * wrong.sum(axis=1) / 100))
    assert row.split(" | ")[-2:] == ["animal: 25, 0, 45, 30, 25", "not explained |"]
    wrong[2] = [12, 9, 0, 11, 0]  # 12, 7 and 7 of a loss of 26, though 12 of a difference of 18
    (row,) = listed(_kept(wrong), a=(in_training, 100 * wrong.sum(axis=1) / 100))
    assert row.split(" | ")[-2:] == ["animal: 25, 0, 60, 30, 25", "not explained |"]


def test_classes_count_by_their_images_where_there_is_a_confusion_matrix(listed, monkeypatch):
    """In the worst seed 25 of 100 images of the first class are wrong, and 20 of 40 of the second."""
    matrices = {
        f"digits/a/seed{seed}": {"confusion": {"classes": ["3", "5"], "matrix": [[100 - a, a], [b, 40 - b]]}}
        for seed, (a, b) in enumerate([(0, 0), (25, 20)])
    }
    monkeypatch.setattr(spreads, "load_measures", lambda path: matrices)
    (row,) = listed(a=([1.0, 2.0], [0.0, 32.1]))
    assert row.split(" | ")[-2:] == ["3: 0, 25", f"{spreads._ONE_CLASS} |"]


def test_a_class_is_named_for_the_runs_of_which_all_was_kept(listed):
    kept = _kept([[0, 0, 0, 0, 0], [9, 0, 0, 0, 0]])
    errors = ([1.0, 2.0], [0.0, 9.0])
    assert listed(kept, a=errors)[0].split(" | ")[-2].startswith("animal: 0, 45")
    kept.right.pop("digits/a/seed1")
    assert listed(kept, a=errors)[0].split(" | ")[-2] == ""


def test_how_often_one_class_makes_most_is_held_against_chance(monkeypatch):
    """One network whose classes rise together, one of whose classes alone does."""
    together, alone = np.arange(5)[:, None] * np.full(5, 4), np.outer(np.arange(5) * 5, [0, 0, 1, 0, 0])
    kept = _kept(together)
    kept.right |= {key.replace("/a/", "/b/"): right for key, right in _kept(alone).right.items()}
    runs = pd.DataFrame(
        {"experiment": "digits", "variant": variant, "seed": seed, "status": "ok", "data_set": "toynorb",
         "key": f"digits/{variant}/seed{seed}", "test": sum(numbers)}
        for variant, wrong in (("a", together), ("b", alone))
        for seed, numbers in enumerate(wrong)
    )  # fmt: skip
    monkeypatch.setattr(spreads, "errors_of", lambda reference, study: runs)
    monkeypatch.setattr(spreads, "read_correct", lambda path: kept)
    said = spreads.one_class(Path(), "tiny")
    assert "in 50 % of 2 networks. It would in 55 % if" in said
    assert f"{(5**0.5 + 1) / 2:.2f} times" in said


def test_each_reason_is_of_a_network_in_the_list():
    """A pattern that fits nothing has lost its network, or never had one."""
    far = set()
    for path in REFERENCE.glob("*/runs.csv"):
        runs = pd.read_csv(path, low_memory=False)
        for cell, errors in runs[runs["status"] == "ok"].groupby(["experiment", "variant"])["test_error"]:
            if errors.max() - errors.min() >= spreads.FAR:
                far.add("/".join([path.parent.name, *cell]))
    first = {next((what for what in spreads.REASONS if fnmatch(cell, what)), "") for cell in far}
    assert set(spreads.REASONS) <= first


def test_the_page_has_every_committed_study():
    page = (ROOT / "docs/spreads.md").read_text(encoding="utf-8")
    studies = {path.parent.name for path in REFERENCE.glob("*/runs.csv")}
    assert {study for study in studies if f"<!-- begin spreads {study} -->" in page} == studies


@pytest.fixture
def together(monkeypatch):
    """Return the cells of made-up networks: study -> [(experiment, errors in training, errors in the test), ...]."""

    def rows(**studies):
        frames = {
            study: pd.DataFrame(
                {"experiment": experiment, "variant": f"v{number}", "seed": seed, "data_set": "mnist",
                 "unofficial": None, "train": train, "test": test}
                for number, (experiment, *parts) in enumerate(networks)
                for seed, (train, test) in enumerate(zip(*parts, strict=True))
            )
            for study, networks in studies.items()
        }  # fmt: skip
        monkeypatch.setattr(spreads, "errors_of", lambda reference, study: frames[study])
        lines = spreads.alike(Path(), *studies).splitlines()[HEAD:]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    return rows


def test_correlations_are_averaged_over_the_networks_of_a_data_set(together):
    far, near = [1.0, 2.0, 9.0, 3.0, 4.0], [1.1, 1.2, 1.9, 1.3, 1.4]
    train = [2.0, 1.0, 3.0, 2.0, 1.0]  # r = 0.6525 with both, z = 0.780 ± 1.386
    again = [2.0, 3.0, 1.0, 2.0, 3.0]  # r = -0.6525
    assert together(a=[("mnist", train, far)]) == [["MNIST", "1", "0.65 [−0.54, 0.97]", "1", "0.65 [−0.54, 0.97]"]]
    ((_, listed, r, every, mean),) = together(a=[("mnist", train, far)], b=[("mnist-short", again, near)])
    assert (listed, r, every) == ("1", "0.65 [−0.54, 0.97]", "2")
    assert mean.startswith(("0.00 [−0.75", "−0.00 [−0.75"))


def test_a_network_counts_once_and_not_with_few_seeds_ten_steps_or_equal_errors(together):
    errors, train = [1.0, 2.0, 9.0, 3.0, 4.0], [2.0, 1.0, 3.0, 2.0, 1.0]
    alone = together(a=[("mnist", train, errors)])
    others = [("mnist", train[:4], errors[:4]), ("mnist-first-steps", train, errors), ("mnist", [1.0] * 5, errors)]
    assert together(a=[("mnist", train, errors), *others], b=[("mnist", train, errors)]) == alone


def test_what_goes_together_is_of_all_studies_of_networks_that_start_as_their_seed_says():
    page = (ROOT / "docs/spreads.md").read_text(encoding="utf-8")
    named = page.partition("<!-- begin alike ")[2].partition(" -->")[0].split()
    five = {
        path.parent.name
        for path in REFERENCE.glob("*/runs.csv")
        if pd.read_csv(path, low_memory=False)["seed"].nunique() >= spreads.SEEDS
    }
    assert set(named) | {"scae", "starts"} >= five
