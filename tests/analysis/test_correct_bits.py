"""What a reference keeps of each run's test, from hand-made predictions."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from capsbench.analysis.correct_bits import NAME, read_correct, read_predictions, write_correct
from capsbench.errors import InputError
from capsbench.run.folder import RunFolder
from capsbench.study import load_plan

STUDY = """
name: bits
seeds: [0, 1]
training: {epochs: 1}
experiments:
  norb: {data: {name: smallnorb}}
  pairs: {data: {name: multidigits}}
  plain: {data: {name: digits}}
variants:
  a: {model: resnet20}
  b: {model: cnn_matched}
"""
CLASSES = 10


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "study.yaml").write_text(STUDY)
    return load_plan(tmp_path / "study.yaml")


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def scores_of(classes):
    """Scores that are highest for classes [N], or [N, S]."""
    return np.eye(CLASSES, dtype=np.float32)[np.asarray(classes).reshape(len(classes), -1)].sum(axis=1)


def leave(results, run, status="ok", **arrays):
    folder = RunFolder.of(results, run.study, run.key)
    folder.write_record({"status": status, "digest": run.digest})
    with folder.predictions_path.open("wb") as file:
        np.savez(file, **arrays)


def norb_of(wrong, items="f" * 64):
    """100 pairs of 5 categories x 2 instances (0 and 3), of which `wrong` are called another category."""
    labels = np.arange(100) % 5
    said = labels.copy()
    said[list(wrong)] = (said[list(wrong)] + 1) % 5
    return {"scores": scores_of(said), "labels": labels, "factor_instance": np.repeat([0, 3], 50).astype(np.uint8),
            "fingerprint": np.array(items)}  # fmt: skip


def test_a_reference_gives_back_what_each_run_got_right(plan, results, tmp_path):
    wrong = {run.key: {3, 50 + run.seed} for run in plan.runs if run.experiment == "norb"}
    for run in plan.runs:
        if run.experiment == "norb":
            leave(results, run, **norb_of(wrong[run.key]))
    write_correct(read_predictions(plan, results), tmp_path / "target")
    found = read_correct(tmp_path / "target" / NAME)
    assert found.right.keys() == wrong.keys()
    for key, places in wrong.items():
        assert set(np.flatnonzero(~found.right[key])) == places
        assert len(found.right[key]) == 100  # not a multiple of eight
    assert found.fingerprints == {"norb": "f" * 64}
    ids = found.clusters["norb"]
    assert_array_equal(np.unique(ids), np.arange(10))  # 5 categories x 2 instances
    assert ids.dtype == np.uint8
    objects = {(label, ids[i]) for i, label in enumerate(np.arange(100) % 5)}
    assert len(objects) == 10


def test_a_pair_is_right_if_both_its_digits_are(plan, results, tmp_path):
    labels = np.array([[0, 1], [2, 7], [3, 4]])
    said = np.array([[1, 0], [2, 8], [5, 6]])
    digits = np.array([[10, 700], [5, 10], [0, 5]], np.int32)
    run = plan.run("pairs/a/seed0")
    leave(results, run, scores=scores_of(said), labels=labels, digits=digits)
    write_correct(read_predictions(plan, results), tmp_path / "target")
    found = read_correct(tmp_path / "target" / NAME)
    assert found.right[run.key].tolist() == [True, False, False]
    assert found.clusters["pairs"].tolist() == [[2, 3], [1, 2], [0, 1]]  # digits 0, 5, 10 and 700
    assert found.fingerprints == {"pairs": ""}


def test_independent_images_and_unknown_objects_have_no_clusters(plan, results, tmp_path):
    labels = np.arange(20) % 10
    leave(results, plan.run("plain/a/seed0"), scores=scores_of(labels), labels=labels)
    unknown = norb_of(()) | {"factor_instance": np.full(100, -1)}
    leave(results, plan.run("norb/a/seed0"), **unknown)
    write_correct(read_predictions(plan, results), tmp_path / "target")
    found = read_correct(tmp_path / "target" / NAME)
    assert found.clusters == {}
    assert found.right.keys() == {"plain/a/seed0", "norb/a/seed0"}


def test_runs_without_scores_are_left_out(plan, results, tmp_path):
    leave(results, plan.run("norb/a/seed0"), **norb_of(()))
    leave(results, plan.run("norb/a/seed1"))
    leave(results, plan.run("norb/b/seed0"), status="diverged")
    assert read_predictions(plan, results).right.keys() == {"norb/a/seed0"}


def test_runs_on_different_items_do_not_share_a_file(plan, results, tmp_path):
    leave(results, plan.run("norb/a/seed0"), **norb_of(()))
    leave(results, plan.run("norb/a/seed1"), **norb_of((), items="e" * 64))
    with pytest.raises(InputError, match=r"other items.*norb"):
        write_correct(read_predictions(plan, results), tmp_path / "target")


def test_a_file_is_small_and_the_same_each_time(plan, results, tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(24_300) % 5
    for run in plan.runs:
        if run.experiment == "norb":
            said = np.where(rng.random(24_300) < 0.02, 9, labels)
            instance = (np.arange(24_300) // 4860).astype(np.uint8)
            leave(results, run, scores=scores_of(said), labels=labels, factor_instance=instance)
    contents = []
    for name in ("x", "y"):
        write_correct(read_predictions(plan, results), tmp_path / name)
        contents.append((tmp_path / name / NAME).read_bytes())
    assert contents[0] == contents[1]
    assert len(contents[0]) < 4 * 3100 + 2000  # 24,300 bits a run


@pytest.mark.parametrize("content", [None, b"", b"not a zip file"])
def test_a_damaged_or_missing_file_is_named(tmp_path, content):
    path = tmp_path / NAME
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="not there" if content is None else "damaged"):
        read_correct(path)


def test_damaged_predictions_are_named(plan, results, tmp_path):
    run = plan.run("norb/a/seed0")
    leave(results, run, **norb_of(()))
    path = RunFolder.of(results, run.study, run.key).predictions_path
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match="damaged"):
        write_correct(read_predictions(plan, results), tmp_path / "target")
