"""docs/drawn.py: how far drawn images are from the true ones, on made-up runs."""

import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import drawn  # noqa: E402


@pytest.fixture
def reference(tmp_path):
    def row(experiment, variant, seed, squared):
        return {"experiment": experiment, "variant": variant, "label": f"Net {variant}", "seed": seed, "status": "ok",
                "test_error": 1.0, "squared_error": squared, "data_set": "mnist", "unofficial": None}  # fmt: skip

    rows = [row("mnist", "draws", seed, 40.04 + seed) for seed in (1, 0)]
    rows += [row("mnist", "bare", 0, None), row("multimnist", "both", 0, 90.0), row("own", "draws", 0, 7.25)]
    (tmp_path / "tiny").mkdir()
    pd.DataFrame(rows).to_csv(tmp_path / "tiny/runs.csv", index=False)
    return tmp_path


def test_methods_are_rows_and_data_sets_that_were_drawn_are_columns(reference, monkeypatch):
    methods = {"first": {"mnist": "draws", "multimnist": "both"}, "none": {"mnist": "bare"}}
    monkeypatch.setitem(drawn.SUMMARY, "tiny", methods)
    lines = drawn.drawn(reference, "tiny").splitlines()
    assert lines[0] == "| squared error of an image | MNIST | MultiMNIST |"
    assert lines[2:] == ["| first | 40.0 to 41.0 | 90.0 to 90.0 |"]


def test_an_experiment_lists_its_networks(reference):
    lines = drawn.drawn(reference, "tiny", "own").splitlines()
    assert (lines[0], *lines[2:]) == ("| squared error of an image | MNIST |", "| Net draws | 7.2 to 7.2 |")
    with pytest.raises(ValueError, match="no run of tiny smallnorb has drawn"):
        drawn.drawn(reference, "tiny", "smallnorb")
