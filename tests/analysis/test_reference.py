import hashlib
import json
import logging
import subprocess

import numpy as np
import pandas as pd
import pytest
import yaml
from hand_made import all_but, leave_items

from capsbench.analysis.collect import collect, read_runs, write_runs
from capsbench.analysis.correct_bits import read_correct
from capsbench.analysis.plots import NEED_RUN_FOLDERS
from capsbench.analysis.reference import read_reference, redraw, write_reference
from capsbench.analysis.table_names import table_names
from capsbench.cli.commands import main
from capsbench.errors import InputError

EVERY_KIND = """\
name: small_study
seeds: [0, 1]
training: {epochs: 1}
plots: [error_by_variant]
experiments:
  norb: {data: {name: smallnorb}}
  moved: {data: {name: affdigits}}
  pairs: {data: {name: multidigits}}
  plain: {data: {name: digits}}
variants: {a: {model: capsnet}, b: {model: cnn_matched}}
contrasts: {both: [{a: a, b: b}]}
"""


@pytest.fixture
def analysed(plan, results):
    """The files that the stages before leave; what is in them is copied as it stands."""
    folder = results / "small_study"
    for name in ("tables/sabour-table1.csv", "plots/learning_curves.svg"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(f"this is {name}")
    write_runs(collect(plan, results), folder / "runs.csv")


@pytest.fixture
def refer(plan, results, tmp_path, analysed):
    def write():
        write_reference(plan, results, collect(plan, results), tmp_path / "reference")
        return tmp_path / "reference"

    return write


def write_all(plan, write_run, **last) -> None:
    for run in plan.runs[:-1]:
        write_run(run)
    write_run(plan.runs[-1], **last)


def test_a_finished_study_is_copied_with_its_provenance(plan, write_run, refer):
    write_all(plan, write_run, status="diverged")
    target = refer()
    # drawn anew from the run folders, whatever lies in the study's own tables
    assert "2 of 3, 1 diverged" in (target / "tables/sabour-table1.md").read_text()
    assert "<svg" in (target / "plots/learning_curves.svg").read_text()
    assert len((target / "runs.csv").read_text().splitlines()) == 10
    assert (target / "study.yaml").read_text() == plan.path.read_text()

    provenance = yaml.safe_load((target / "provenance.yaml").read_text())
    assert provenance["study"] == "small_study"
    assert provenance["summary"]["commit"] == "0123456789abcdef0123456789abcdef01234567"
    assert [(run["variant"], run["seed"], run["digest"]) for run in provenance["runs"]] == [
        (run.variant, run.seed, run.digest) for run in plan.runs
    ]
    assert [run["status"] for run in provenance["runs"]] == ["ok"] * 8 + ["diverged"]


def test_a_reference_holds_the_tables_of_its_data_sets_and_their_files(plan, write_run, refer):
    line = "train-dat.mat: md5 12, the official file's is 34"
    write_all(plan, write_run, unofficial=(line,))
    target = refer()
    assert {"contrasts", "sabour-table1"} <= set(table_names(plan))
    assert {path.name for path in (target / "tables").iterdir()} == {
        f"{name}.{ending}" for name in table_names(plan) for ending in ("csv", "md", "tex")
    }
    provenance = yaml.safe_load((target / "provenance.yaml").read_text())
    assert provenance["runs"][-1]["data"]["unofficial"] == [line]
    assert provenance["summary"]["not the official files (digits)"] == line


def test_an_older_reference_is_replaced(plan, write_run, refer, tmp_path):
    write_all(plan, write_run)
    old = tmp_path / "reference/tables/of-before.csv"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    refer()
    assert not old.exists()


@pytest.mark.parametrize(
    "last",
    [{"status": "failed"}, {"status": "running"}, {"digest": "0" * 16}, {"evaluated": False}],
    ids=["failed", "running", "other configuration", "not evaluated"],
)
def test_a_study_that_is_not_finished_is_refused(plan, write_run, refer, tmp_path, last):
    write_all(plan, write_run, **last)
    with pytest.raises(InputError, match=f"small_study: .*not finished: 1 of 9, .*{plan.runs[-1].key}"):
        refer()
    assert not (tmp_path / "reference").exists()


@pytest.mark.parametrize("commit", ["unknown", "0123456789abcdef0123456789abcdef01234567+changes", "0123456"])
def test_runs_of_code_that_is_not_committed_are_refused(plan, write_run, refer, tmp_path, commit):
    write_all(plan, write_run, commit=commit)
    with pytest.raises(InputError, match="code that is not committed: 1,") as raised:
        refer()
    assert commit in str(raised.value)
    assert not (tmp_path / "reference").exists()


def test_errors_measured_by_code_that_is_not_committed_are_refused(plan, write_run, refer, tmp_path, results):
    write_all(plan, write_run)
    path = results / "small_study/runs" / plan.runs[-1].key / "evaluations/accuracy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"commit": "2" * 40 + "+changes"}))
    with pytest.raises(InputError, match=rf"{plan.runs[-1].key}: evaluated with code .* not committed, 2+\+changes;"):
        refer()
    assert not (tmp_path / "reference").exists()


def test_provenance_names_what_measured_and_drew_the_numbers_and_what_the_files_hold(plan, write_run, refer, results):
    write_all(plan, write_run, study_commit="1" * 40, peak_memory_mb=612.5)
    for run in plan.runs:
        path = results / "small_study/runs" / run.key / "evaluations/accuracy.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"commit": "2" * 40}))
    target = refer()
    provenance = yaml.safe_load((target / "provenance.yaml").read_text())
    for name in ("runs.csv", "study.yaml"):
        assert provenance["files"][name] == hashlib.sha256((target / name).read_bytes()).hexdigest()
    assert len(provenance["analysis_commit"].removesuffix("+changes")) in (40, len("unknown"))
    last = provenance["runs"][-1]
    assert (last["study_commit"], last["peak_memory_mb"]) == ("1" * 40, 612.5)
    assert (last["test_error"], last["evaluation_commit"]) == (1.0, "2" * 40)
    assert len({run["row"] for run in provenance["runs"]}) == 9


def test_a_reference_is_redrawn_from_its_files_alone(plan, write_run, refer, tmp_path, results, caplog):
    write_all(plan, write_run)
    target = refer()
    frame = collect(plan, results)
    committed = {path.name: path.read_bytes() for path in (target / "tables").iterdir()}
    drawn = [target / "plots" / f"{name}.svg" for name in ("error_by_variant", "learning_curves", "coupling_entropy")]
    of_images = (target / "plots/reconstructions.svg").read_bytes()
    figures = {path: path.read_bytes() for path in drawn}
    page = (target / "report.html").read_bytes()
    for path in [*(target / "tables").iterdir(), *drawn, target / "report.html"]:
        path.unlink()
    (target / "tables/of-before.md").write_text("old")
    (results / "small_study").rename(tmp_path / "lost")

    read_plan, runs = read_reference(target / "runs.csv")
    pd.testing.assert_frame_equal(runs, frame)
    with caplog.at_level(logging.INFO, logger="capsbench"):
        redraw(read_plan, runs, target)
    assert {path.name: path.read_bytes() for path in (target / "tables").iterdir()} == committed
    assert {path: path.read_bytes() for path in drawn} == figures
    assert (target / "plots/reconstructions.svg").read_bytes() == of_images
    assert (target / "report.html").read_bytes() == page
    (said,) = [message for message in caplog.messages if "without run folders" in message]
    assert said.endswith("stay as they are: reconstructions")


def test_a_reference_of_before_runs_were_kept_leaves_what_is_drawn_from_them(plan, write_run, refer, caplog):
    write_all(plan, write_run)
    target = refer()
    (target / "runs.tar.xz").unlink()
    kept = {path: path.read_bytes() for name in NEED_RUN_FOLDERS for path in target.glob(f"plots/{name}.svg")}
    assert len(kept) == 3
    with caplog.at_level(logging.INFO, logger="capsbench"):
        redraw(*read_reference(target / "runs.csv"), target)
    assert {path: path.read_bytes() for path in kept} == kept
    (said,) = [message for message in caplog.messages if "without run folders" in message]
    for name in set(NEED_RUN_FOLDERS) & set(plan.study.plots):
        assert name in said


def test_intervals_over_test_items_are_the_same_without_run_folders(make_plan, write_run, tmp_path, results):
    """From the command line: from the run folders, as a reference, and from that reference alone."""
    plan = make_plan(EVERY_KIND)
    digits = np.arange(1000) // 20
    about = {
        "norb": {"factor_instance": np.arange(1000) // 200}, "moved": {"digits": digits},
        "pairs": {"digits": np.stack([digits, np.arange(1000) % 50], axis=1)}, "plain": {},
    }  # fmt: skip
    for number, run in enumerate(plan.runs):
        folder = write_run(run, error=10 + number)
        leave_items(folder, all_but(100 + 10 * number, 1000, first=7 * number), **about[run.experiment])
    target = results / "reference/small_study"
    write_reference(plan, results, collect(plan, results), target)
    names = [f"test_items.{ending}" for ending in ("csv", "md", "tex")]
    assert main(["tables", str(plan.path), "--results", str(results)]) == 0
    from_folders = {name: (results / "small_study/tables" / name).read_bytes() for name in names}
    numbers = pd.read_csv(results / "small_study/tables/test_items.csv")
    assert numbers["items_low"].notna().all()
    assert numbers["clusters"].tolist() == [25, 25, 50, 50, 50, 50, 1000, 1000, 25, 50, 50, 1000]
    assert {name: (target / "tables" / name).read_bytes() for name in names} == from_folders

    (results / "small_study").rename(tmp_path / "lost")
    for name in names:
        (target / "tables" / name).unlink()
    (target / "report.html").unlink()
    assert main(["tables", "--runs", str(target / "runs.csv")]) == 0
    assert {name: (target / "tables" / name).read_bytes() for name in names} == from_folders
    assert main(["report", "--runs", str(target / "runs.csv")]) == 0
    page = (target / "report.html").read_text(encoding="utf-8")
    assert "25 objects" in page and "50 digits" in page and "Intervals over test items" in page


def test_runs_need_their_study(plan, write_run, refer, make_plan, study_text):
    write_all(plan, write_run)
    target = refer()
    (target / "study.yaml").unlink()
    with pytest.raises(InputError, match=r"no study\.yaml beside it"):
        read_reference(target / "runs.csv")
    other = make_plan(study_text.replace("[0, 1, 2]", "[0, 1]"))
    with pytest.raises(InputError, match="seed2 is no run of"):
        read_reference(target / "runs.csv", other.path)


def test_a_reference_keeps_which_images_were_right(plan, write_run, refer):
    write_all(plan, write_run)
    target = refer()
    assert set(read_correct(target / "correct.npz").right) <= set(read_runs(target / "runs.csv")["key"])


def git(folder, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_a_study_that_is_not_committed_as_it_is_is_refused(plan, write_run, refer, tmp_path):
    write_all(plan, write_run)
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "nothing")
    with pytest.raises(InputError, match=r"study\.yaml: is not committed"):
        refer()
    git(tmp_path, "add", "study.yaml")
    git(tmp_path, "commit", "-q", "-m", "the study")
    assert len(yaml.safe_load((refer() / "provenance.yaml").read_text())["study_commit"]) == 40
    before = (tmp_path / "reference/provenance.yaml").read_text()
    plan.path.write_text(plan.path.read_text() + "# a word\n")
    with pytest.raises(InputError, match=r"study\.yaml: is not committed as it is"):
        refer()
    assert (tmp_path / "reference/provenance.yaml").read_text() == before
