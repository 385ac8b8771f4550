"""docs/first_steps.py: lengths and gradients of the first steps, from the metrics that a reference keeps."""

import io
import sys
import tarfile
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import first_steps


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a reference of a study from the lengths and gradients of each run."""
    monkeypatch.setattr(first_steps, "ROWS", {"pairs/short": "short", "pairs/long": "long"})

    def write(runs: dict[str, tuple[list[float], list[float]]]) -> Path:
        (tmp_path / "tiny").mkdir(exist_ok=True)
        with tarfile.open(tmp_path / "tiny/runs.tar.xz", "w:xz") as archive:
            for key, (lengths, gradients) in runs.items():
                metrics = pd.DataFrame({"right_capsule_length": lengths, "gradient_norm": gradients})
                text = metrics.to_csv(index=False).encode()
                member = tarfile.TarInfo(f"{key}/metrics.csv")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
                archive.addfile(tarfile.TarInfo(f"{key}/run.yaml"), io.BytesIO())
        return tmp_path

    return write


def test_a_row_has_the_mean_length_after_each_number_of_steps(write):
    reference = write(
        {
            "pairs/long/seed0": ([0.1 + 0.01 * step for step in range(26)], [9.0, *[0.5] * 25]),
            "pairs/short/seed0": ([0.1, 0.9, 0.8, 0.7], [9.0, 0.125, 1.0, 1.0]),
            "pairs/short/seed1": ([0.2, 0.95, 0.85, 0.7], [8.0, 0.5, 1.0, 1.0]),
            "pairs/shorter/seed0": ([0.0, 0.0], [0.0, 0.0]),  # another variant
        }
    )
    text = first_steps.first_steps(reference, "tiny")
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == [
        "mean length after so many steps",
        "0",
        "1",
        "2",
        "4",
        "9",
        "24",
        "49",
        "99",
        "norm of the second gradient",
    ]
    assert rows[2:] == [
        ["short", "0.150", "0.925", "0.825", "", "", "", "", "", "0.12 to 0.5"],
        ["long", "0.100", "0.110", "0.120", "0.140", "0.190", "0.340", "", "", "0.5 to 0.5"],
    ]
    assert text.endswith("Seeds differ by at most 0.10.")


def test_a_row_without_runs_is_an_error(write):
    with pytest.raises(KeyError, match="no run of pairs/long"):
        first_steps.first_steps(write({"pairs/short/seed0": ([0.1, 0.9], [1.0, 1.0])}), "tiny")
