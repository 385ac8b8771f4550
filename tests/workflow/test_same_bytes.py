"""What changes no byte of a result: the order of runs, the number of cores, the folder, the clone."""

import hashlib
import json

import pytest
from projects import LEAN, STUDY, Project

RUNS = ("digits/caps/seed0", "digits/cnn/seed0")
OF_THIS_CALL = ("training_started", "commit", "checksum")


def results_of(project: Project) -> dict[str, object]:
    """The weights and numbers of the runs of the study, times aside."""
    found: dict[str, object] = {}
    for run in RUNS:
        folder = project.path / "results/tiny/runs" / run
        found[f"{run} weights"] = hashlib.sha256((folder / "model.pt").read_bytes()).hexdigest()
        head, *rows = (folder / "metrics.csv").read_text().splitlines()
        timed = [place for place, name in enumerate(head.split(",")) if name in ("seconds", "images_per_second")]
        found[f"{run} metrics"] = [
            [value for place, value in enumerate(row.split(",")) if place not in timed] for row in rows
        ]
        for path in sorted(folder.glob("evaluations/*.json")):
            result = json.loads(path.read_text())
            found[f"{run} {path.name}"] = {name: v for name, v in result.items() if name not in OF_THIS_CALL}
    return found


def tables_of(project: Project) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((project.path / "results/tiny/tables").iterdir())}


@pytest.mark.slow
def test_another_clone_on_one_core_in_another_order(finished, tmp_path):
    caps, cnn = STUDY.split("variants:\n")[1].strip("\n").split("\n")
    reversed_study = LEAN.replace(f"{caps}\n{cnn}", f"{cnn}\n{caps}")
    assert reversed_study != LEAN
    other = Project.create(tmp_path, study=reversed_study)
    process = other.start("--cores", "1")
    output = process.communicate()[0]
    assert process.returncode == 0, output
    expected = results_of(finished)
    assert len(expected) >= 8
    assert results_of(other) == expected


@pytest.mark.slow
def test_a_moved_folder_is_finished_as_it_was(finished, tmp_path):
    moved = finished.copy(tmp_path / "elsewhere")
    assert moved.planned() == {}
    before = tables_of(moved)
    for path in (moved.path / "results/tiny/tables").iterdir():
        path.unlink()
    done = moved.snakemake()
    assert done.returncode == 0, done.output
    assert tables_of(moved) == before
