"""docs/spreads.py: networks whose seeds are far apart, on made-up runs, and its reasons on the committed ones."""

import sys
from fnmatch import fnmatch
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import spreads  # noqa: E402

REFERENCE = ROOT / "results/reference"
HEAD = 2  # lines of a table above its rows


@pytest.fixture
def listed(monkeypatch):
    """Return the rows of made-up runs of one experiment: variant -> errors in training and in the test, by seed."""

    def rows(**variants):
        found = [
            {"experiment": "digits", "variant": variant, "seed": seed, "status": "ok", "unofficial": None,
             "train": train, "test": test}
            for variant, parts in variants.items()
            for seed, (train, test) in enumerate(zip(*parts, strict=True))
        ]  # fmt: skip
        monkeypatch.setattr(
            spreads, "errors_of", lambda reference, study: pd.DataFrame(found).sort_values("seed", ascending=False)
        )
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
