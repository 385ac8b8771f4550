"""docs/fitted.py: in which part the networks of a contrast differ, from metrics.csv and runs.csv of a reference."""

import io
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from fitted import fit, on_validation_images  # noqa: E402

HEAD = "experiment,data_set,variant,seed,status,key,test_error,familiar_error,unofficial\n"
LINE = "| a against b | MNIST |"


@pytest.fixture
def reference(tmp_path):
    """Three seeds of a and b on mnist; a's test error is lower by 0.9, 1.0 and 1.1, in training both err on 10 %."""
    folder = tmp_path / "tiny"
    (folder / "tables").mkdir(parents=True)
    (folder / "tables/contrasts.csv").write_text("family,experiment,contrast,a,b\none,mnist,a against b,a,b\n")
    errors = {"a": (2.1, 2.0, 1.9), "b": (3.0, 3.0, 3.0)}
    rows = [f"mnist,mnist,{v},{s},ok,mnist/{v}/seed{s},{errors[v][s]},,\n" for s in (2, 0, 1) for v in errors]
    (folder / "runs.csv").write_text(HEAD + "".join(rows))
    metrics(folder, ("a", "b"))
    return tmp_path


def metrics(folder, variants, **columns):
    """Write metrics.csv of each run: a first epoch with half the images right, a last with 90 %, and other columns."""
    with tarfile.open(folder / "runs.tar.xz", "w:xz") as archive:
        for variant in variants:
            for seed in range(3):
                names = "".join(f",{name}" for name in columns)
                values = "".join(f",{value(variant, seed)}" for value in columns.values())
                text = f"epoch,train_accuracy{names}\n1,0.5{names and ',0.5'}\n2,0.9{values}\n"
                member = tarfile.TarInfo(f"mnist/{variant}/seed{seed}/metrics.csv")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text.encode()))


def test_a_difference_of_the_test_alone_is_not_one_of_training(reference):
    head, _, row = fit(reference, "tiny", "one").splitlines()[:3]
    assert head == "| error of the first minus that of the second | data | in training | in the test |"
    assert row == f"{LINE} equal in every seed | −1.00 [−1.25, −0.75] |"  # 4.3027 x 0.1 / √3 = 0.2484


def test_validation_and_familiar_test_have_columns_where_they_were_measured(reference):
    folder = reference / "tiny"
    metrics(folder, ("a", "b"), validation_accuracy=lambda v, seed: 0.8 if v == "b" else 0.9 + seed / 100)
    path = folder / "runs.csv"
    path.write_text(path.read_text().replace(",,\n", ",5.0,\n"))
    head, _, row = fit(reference, "tiny", "one").splitlines()[:3]
    assert head.endswith("| in training | on validation images | in the familiar test | in the test |")
    assert row.startswith(f"{LINE} equal in every seed | −11.00 [−13.48, −8.52] | equal in every seed | −1.00 [")


def test_a_part_that_two_seeds_have_is_left_out(reference):
    path = reference / "tiny/runs.csv"
    path.write_text(path.read_text().replace("mnist/a/seed1,2.0", "mnist/a/seed1,"))
    assert fit(reference, "tiny", "one").splitlines()[:1] == [
        "| error of the first minus that of the second | data | in training |"
    ]


def test_an_unknown_family_is_refused(reference):
    with pytest.raises(ValueError, match="no family of contrasts two"):
        fit(reference, "tiny", "one", "two")


def test_contrasts_on_validation_images_are_of_those_alone_and_not_corrected(reference):
    folder = reference / "tiny"
    assert on_validation_images(reference, "tiny").empty
    metrics(folder, ("a", "b"), validation_accuracy=lambda v, seed: 0.8 if v == "b" else 0.9 + seed / 100)
    [row] = on_validation_images(reference, "tiny").to_dict("records")
    assert (row["contrast"], row["n"], round(row["mean"], 6)) == ("a against b", 3, -11.0)
    assert (round(row["low"], 2), round(row["high"], 2)) == (-13.48, -8.52)
    assert 0.002 < row["p_holm"] < 0.003  # t = 11 / (1 / √3) = 19.05 with two degrees of freedom
