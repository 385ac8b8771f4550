from pathlib import Path

import pytest

import capsbench
from capsbench.data.catalogue import CATALOGUE
from capsbench.sources import sources

PACKAGE = Path(capsbench.__file__).parent
TRAINING = ("capsbench.training", "capsbench.models.capsnet", *CATALOGUE["digits"].modules)


def names(*modules: str) -> set[str]:
    return {str(Path(path).absolute().relative_to(PACKAGE)) for path in sources(*modules)}


@pytest.mark.parametrize(
    "name",
    [
        "training.py",
        "layers.py",
        "losses.py",
        "routing/dynamic.py",
        "routing/linear_votes.py",
        "models/__init__.py",
        "models/capsnet.py",
        "models/output.py",
        "data/__init__.py",
        "data/batches.py",
        "data/transforms.py",
        "data/digits.py",
        "data/feeds.py",
        "data/plain.py",
        "randomness.py",
    ],
)
def test_training_rests_on_what_it_computes_with(name):
    assert name in names(*TRAINING)


@pytest.mark.parametrize(
    "name",
    [
        "models/cnn_matched.py",
        "models/cnn_sabour_mnist.py",
        "data/mnist.py",
        "data/pairs.py",
        "data/norb.py",
        "data/catalogue.py",
        "tracking.py",
        "config.py",
        "cli.py",
        "run_folder.py",
    ],
)
def test_training_does_not_rest_on_other_models_nor_on_messages(name):
    assert (PACKAGE / name).exists()
    assert name not in names(*TRAINING)


def test_a_training_on_pairs_rests_on_the_pairs_and_their_digits():
    found = names("capsbench.training", *CATALOGUE["multimnist"].modules)
    assert {"data/pairs.py", "data/mnist.py", "data/batches.py"} <= found
    assert not {"data/affine.py", "data/norb.py", "data/digits.py"} & found
    assert {"data/affine.py", "data/affnist.py", "data/mnist.py"} <= names(*CATALOGUE["affnist"].modules)


def test_training_does_not_rest_on_analysis_or_evaluation():
    assert {name for name in names(*TRAINING) if name.startswith(("analysis/", "evaluation/"))} == set()


def test_tables_rest_on_analysis_alone():
    found = names("capsbench.analysis.tables")
    assert {"analysis/tables.py", "analysis/published.py", "analysis/statistics.py"} <= found
    assert {name for name in found if not name.startswith("analysis/")} == set()


def test_evaluation_rests_on_its_protocols_and_the_models_it_loads_by_name_are_asked_for():
    found = names("capsbench.evaluation")
    assert {"evaluation/accuracy.py", "evaluation/reconstruction.py", "evaluation/predictions.py"} <= found
    assert "training.py" not in found


def test_files_come_sorted_and_once():
    found = sources(*TRAINING, *TRAINING)
    assert found == sorted(set(found))
    assert all(Path(path).is_file() for path in found)


def test_files_below_the_working_folder_are_relative_so_that_a_project_can_move(monkeypatch, tmp_path):
    monkeypatch.chdir(PACKAGE.parent)
    assert sources("capsbench.losses") == ["capsbench/losses.py"]
    monkeypatch.chdir(tmp_path)
    assert sources("capsbench.losses") == [str(PACKAGE / "losses.py")]
