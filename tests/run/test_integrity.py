"""What was changed after it was written enters no table, and no network."""

import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import run_of

from capsbench.analysis.collect import collect, learning_curves
from capsbench.analysis.correct_bits import read_predictions
from capsbench.analysis.measures import read_measures
from capsbench.analysis.plots.curves import read_curves
from capsbench.analysis.plots.reconstructions import plot_reconstructions
from capsbench.errors import InputError
from capsbench.evaluation import evaluate
from capsbench.run.checkpoint import load_tensors
from capsbench.run.folder import RunFolder
from capsbench.run.load import load_run, read_results
from capsbench.run.train import train
from capsbench.study import Plan, load_plan

PROTOCOLS = ["accuracy", "reconstruction", "confusion"]
FLIPS = 60


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    """Two seeds, trained and evaluated; the study asks for confusion too."""
    path = tmp_path_factory.mktemp("done")
    first = run_of(path, epochs=1)
    study = path / "study.yaml"
    study.write_text(study.read_text()[:-1] + ', "evaluations": ["accuracy", "reconstruction", "confusion"]}')
    for run in load_plan(study).runs:
        train(run, path / "results", Path("data"), tracking=False)
        evaluate(run, path / "results", Path("data"), PROTOCOLS)
    assert first.digest == load_plan(study).runs[0].digest
    return path


@pytest.fixture
def plan(done, tmp_path) -> Plan:
    shutil.copytree(done, tmp_path, dirs_exist_ok=True)
    return load_plan(tmp_path / "study.yaml")


@pytest.fixture
def results(tmp_path) -> Path:
    return tmp_path / "results"


def folders(plan, results) -> list[RunFolder]:
    return [RunFolder.of(results, run.study, run.key) for run in plan.runs]


def change(path: Path, pattern: str) -> None:
    """Make the first digit of what a pattern finds another one."""
    text = path.read_text()
    place = re.search(pattern, text).start(1)
    path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])


READERS = {
    "collect": collect,
    "measures": read_measures,
    "correct": read_predictions,
    "curves": learning_curves,
    "load": lambda plan, results: load_run(folders(plan, results)[0].path).predictions,
    "metrics": lambda plan, results: load_run(folders(plan, results)[0].path).metrics,
    "results": lambda plan, results: read_results(results / "study"),
    "evaluate": lambda plan, results: evaluate(plan.runs[0], results, Path("data"), PROTOCOLS),  # the last: it writes
}


def refusing(plan, results) -> set[str]:
    """Return which readers refuse the first run, in one line that names the file and what to do."""
    found = set()
    for name, reader in READERS.items():
        try:
            reader(plan, results)
        except InputError as error:
            assert str(folders(plan, results)[0].path) in str(error) and "\n" not in str(error)
            assert " again" in str(error)
            found.add(name)
    return found


def test_what_was_written_is_read(plan, results):
    assert refusing(plan, results) == set()
    (first, _) = folders(plan, results)
    record = first.read_record()
    assert set(record["files"]) == {"model.pt", "metrics.csv", "predictions.npz"}
    assert first.read_evaluation("accuracy", record)["weights"] == record["files"]["model.pt"]
    assert set(first.read_evaluations(record)) == set(PROTOCOLS)


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("evaluations/accuracy.json", r'"error": (\d)', {"collect", "results"}),
        ("evaluations/confusion.json", r'": (\d)', {"measures", "results"}),
        ("run.yaml", r"\nparameters: (\d)", set(READERS)),
        ("run.yaml", r"\nseed: (\d)", set(READERS)),
        ("metrics.csv", r"\n1,(\d)", {"curves", "metrics"}),
    ],
)
def test_one_changed_digit_is_found(plan, results, name, pattern, expected):
    change(folders(plan, results)[0].path / name, pattern)
    assert refusing(plan, results) == expected


def test_files_of_another_seed_are_found(plan, results):
    first, second = folders(plan, results)
    for path, expected in ((first.model_path, {"evaluate", "load", "metrics"}), (first.predictions_path, {"correct"})):
        mine = path.read_bytes()
        shutil.copy(second.path / path.name, path)
        assert expected <= refusing(plan, results)
        path.write_bytes(mine)
    shutil.copy(second.evaluation_path("accuracy"), first.evaluation_path("accuracy"))
    assert collect(plan, results)["status"].tolist() == ["missing", "ok"]  # measured on other weights


def test_a_training_puts_right_what_was_changed(plan, results):
    first = folders(plan, results)[0]
    weights, metrics = first.model_path.read_bytes(), first.metrics_path.read_text().splitlines()[1].split(",")[:5]
    first.model_path.write_bytes(weights[:-200] + b"x" * 200)
    change(first.metrics_path, r"\n1,(\d)")
    train(plan.runs[0], results, Path("data"), tracking=False)
    assert first.model_path.read_bytes() == weights
    assert first.metrics_path.read_text().splitlines()[1].split(",")[:5] == metrics


@pytest.mark.parametrize("name", ["model.pt", "checkpoint.pt"])
def test_no_flipped_bit_gives_other_weights(plan, results, name):
    path = folders(plan, results)[0].path / name
    whole, rng = path.read_bytes(), random.Random(0)
    expected = torch.load(path, weights_only=True)
    outcomes = {"same": 0, "refused": 0}
    for _ in range(FLIPS):
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        try:
            found = load_tensors(path)
        except Exception:  # torch and zipfile raise many kinds
            outcomes["refused"] += 1
        else:
            assert same(found, expected)
            outcomes["same"] += 1
    assert outcomes["refused"] > FLIPS / 2, outcomes


def same(one, other) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def test_files_of_before_checksums_are_read(plan, results):
    for folder in folders(plan, results):
        for path in [folder.record_path, *folder.path.glob("evaluations/*.json")]:
            text = path.read_text()
            text = re.sub(r"\nchecksum: .*\n", "\n", re.sub(r",\n  \"checksum\": .*\n", "\n", text))
            text = re.sub(r",\n  \"weights\": \"\w+\"", "", text)
            path.write_text(re.sub(r"\nfiles:\n(  .*\n)+", "\n", text))
    first = folders(plan, results)[0]
    assert not {"files", "checksum"} & first.read_record().keys()
    assert refusing(plan, results) == set()
    assert collect(plan, results)["status"].tolist() == ["ok", "ok"]


DRAWN = {
    "predictions.npz": lambda plan, results, runs: plot_reconstructions(plan, results, runs),
    "metrics.csv": lambda plan, results, runs: read_curves(plan, results, runs),
}


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
@pytest.mark.parametrize("name", DRAWN)
def test_a_torn_file_of_before_checksums_is_named_too(plan, results, name, content):
    folder, runs = folders(plan, results)[0], collect(plan, results)
    text = re.sub(r"\nchecksum: .*\n", "\n", folder.record_path.read_text())
    folder.record_path.write_text(re.sub(r"\nfiles:\n(  .*\n)+", "\n", text))
    (folder.path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: damaged; (train|evaluate) the run again"):
        DRAWN[name](plan, results, runs)


def test_arrays_of_a_protocol_are_those_that_it_wrote(plan, results):
    folder = folders(plan, results)[0]
    evaluate(plan.runs[0], results, Path("data"), ["perturbation"])
    path, mine = folder.evaluation_path("perturbation").with_suffix(".npz"), {}
    with folder.arrays("perturbation") as arrays:
        mine = {name: arrays[name] for name in arrays.files}
    np.savez(path, **{name: array + 1 for name, array in mine.items()})
    with (
        pytest.raises(InputError, match=r"perturbation\.npz: is not the file that this run wrote; evaluate the run"),
        folder.arrays("perturbation"),
    ):
        pass
    found = folder.read_evaluation("perturbation", folder.read_record())
    folder.write_evaluation("perturbation", {name: value for name, value in found.items() if name != "arrays"})
    path.write_bytes(path.read_bytes()[:100])  # of before they had a digest, and torn
    with (
        pytest.raises(InputError, match=r"perturbation\.npz: damaged; evaluate the run again"),
        folder.arrays("perturbation"),
    ):
        pass
