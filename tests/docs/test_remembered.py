"""docs/remembered.py on files that change."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

from remembered import remembered


@pytest.fixture
def sizes(tmp_path):
    """A function of a study's two files, and how often it was called."""
    calls = []

    @remembered("runs.csv", "measures.json")
    def size(reference, study):
        calls.append(study)
        return sum(path.stat().st_size for path in (reference / study).iterdir())

    for study in ("one", "two"):
        (tmp_path / study).mkdir()
        (tmp_path / study / "runs.csv").write_text("a")
    return size, calls


def test_it_is_computed_once_for_each_study(sizes, tmp_path):
    size, calls = sizes
    assert [size(tmp_path, study) for study in ("one", "two", "one", "two")] == [1] * 4
    assert calls == ["one", "two"]


def test_it_is_computed_again_where_a_file_is_written_or_added(sizes, tmp_path):
    size, calls = sizes
    assert size(tmp_path, "one") == 1
    (tmp_path / "one" / "runs.csv").write_text("ab")
    assert size(tmp_path, "one") == 2
    (tmp_path / "one" / "measures.json").write_text("{}")
    assert size(tmp_path, "one") == 4
    assert calls == ["one"] * 3
