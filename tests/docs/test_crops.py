"""docs/crops.py: networks of two experiments on the same images, from metrics.csv and runs.csv of a reference."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from crops import crops  # noqa: E402

HEAD = "experiment,data_set,variant,label,seed,status,key,test_error,familiar_error,unofficial,parameters,steps\n"
ERRORS = {"random": (30.0, 32.0, 34.0), "central": (20.0, 21.0, 25.0)}
TRAINED = {"random": (0.7, 0.6, 0.65), "central": (0.99, 0.99, 0.99)}


@pytest.fixture
def reference(tmp_path):
    """Network a in both experiments, b in the first alone; three seeds, out of order."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    cells = [("random", "a"), ("random", "b"), ("central", "a")]
    rows = [
        f"{e},toynorb,{v},network {v},{s},ok,{e}/{v}/seed{s},{ERRORS[e][s]},,,100,20\n"
        for s in (2, 0, 1)
        for e, v in cells
    ]
    (folder / "runs.csv").write_text(HEAD + "".join(rows))
    with tarfile.open(folder / "runs.tar.xz", "w:xz") as archive:
        for experiment, variant in cells:
            for seed in range(3):
                text = f"epoch,train_accuracy\n1,0.5\n2,{TRAINED[experiment][seed]}\n"
                member = tarfile.TarInfo(f"{experiment}/{variant}/seed{seed}/metrics.csv")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))
    return tmp_path


def test_a_row_has_the_network_of_both_experiments_by_seed(reference):
    head, _, *rows = crops(reference, "tiny", "random", "central").splitlines()
    assert head == (
        "| data | network | wrong in training %, random crops | wrong in training %, central "
        "| test error %, random crops | test error %, central | change of the test error |"
    )
    # changes of -10, -11 and -9: 4.3027 x 1 / √3 = 2.484
    assert rows == [
        "| random | network a | 30.0 to 40.0 | 1.0 | 30.0, 32.0, 34.0 | 20.0, 21.0, 25.0 | −10.00 [−12.48, −7.52] |"
    ]


def test_a_change_is_of_seeds_that_both_have_and_needs_three(reference):
    path = reference / "tiny/runs.csv"
    kept = [line for line in path.read_text().splitlines(keepends=True) if "central/a/seed1" not in line]
    path.write_text("".join(kept))
    (row,) = crops(reference, "tiny", "random", "central").splitlines()[2:]
    assert row.endswith("| 30.0, 32.0, 34.0 | 20.0, 25.0 |  |")


def test_experiments_come_in_twos_and_share_a_network(reference):
    with pytest.raises(ValueError, match="random has no second"):
        crops(reference, "tiny", "random")
    with pytest.raises(ValueError, match="random and other share no network"):
        crops(reference, "tiny", "random", "other")


def test_a_network_that_other_studies_name_otherwise_is_found_and_failed_runs_are_left_out(reference):
    path = reference / "tiny/runs.csv"
    text = path.read_text().replace("random,toynorb,a,", "random,toynorb,capsnet_em-iterations2,")
    text = text.replace("central,toynorb,a,", "central,toynorb,capsnet_em_twice,")
    path.write_text(text.replace("2,ok,central/a/seed2", "2,diverged,central/a/seed2"))
    (row,) = crops(reference, "tiny", "random", "central").splitlines()[2:]
    assert row.endswith("| 30.0, 32.0, 34.0 | 20.0, 21.0 |  |")


def test_a_network_of_another_size_or_training_is_refused(reference):
    path = reference / "tiny/runs.csv"
    path.write_text(path.read_text().replace("central/a/seed0,20.0,,,100,20", "central/a/seed0,20.0,,,100,40"))
    with pytest.raises(ValueError, match="a has not the same size or training in random and central"):
        crops(reference, "tiny", "random", "central")
