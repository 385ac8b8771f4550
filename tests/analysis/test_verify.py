"""A tiny reference, verified as it is and with each fault that there may be."""

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from hand_made import all_but, leave_items

from capsbench.analysis.collect import collect, read_runs
from capsbench.analysis.kept_runs import NAME as KEPT
from capsbench.analysis.reference import RUNS, read_reference, redraw_tables, seal, write_reference
from capsbench.analysis.verify import references, verify
from capsbench.run.code_version import training_version

ROOT = Path(__file__).parents[2]
IN_TABLES = "contrasts.csv"


@pytest.fixture
def folder(plan, write_run, results, undrawn):
    """The reference of nine runs, one of which diverged; the others have 7, 8, ... of 700 images wrong."""
    for number, run in enumerate(plan.runs):
        left = write_run(run, "diverged" if number == 4 else "ok", error=1 + number / 7, commit="0" * 40)
        if number != 4:
            leave_items(left, all_but(7 + number, 700, first=number))
    target = results / "reference/small_study"
    write_reference(plan, results, collect(plan, results), target)
    return target


def problems(folder: Path) -> list[str]:
    found = verify([folder]).problems
    assert all("\n" not in line for line in found)
    return found


def change(path: Path, old: str, new: str, count: int = 1) -> int:
    """Replace the first place of a text in a file; returns its line."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, count), encoding="utf-8")
    return text[: text.index(old)].count("\n") + 1


def flip_difference(path: Path) -> int:
    """Make the second decimal of the first difference, of 0.43, another one; returns its line."""
    return change(path, "0.43", "0.48") if "0.43" in path.read_text() else change(path, "0.42", "0.48")


def test_a_reference_is_what_it_is_made_of(folder, results):
    assert problems(folder) == []
    assert references(results) == [folder]


def test_what_was_not_compared_is_said(folder):
    notes = verify([folder]).notes
    assert any("no git history" in note for note in notes)
    assert any("README.md and docs were not compared" in note for note in notes)


def test_runs_of_the_code_of_this_checkout_are_counted(plan, write_run, results, undrawn):
    """Nine runs: three of this code, five of another, one diverged that does not say."""
    codes = [*(training_version(run) for run in plan.runs[:3]), *["0" * 16] * 5]
    for number, run in enumerate(plan.runs):
        code = {"code": codes[number]} if number < len(codes) else {}
        write_run(run, "ok" if number < len(codes) else "diverged", commit="0" * 40, **code)
    folder = results / "reference/small_study"
    write_reference(plan, results, collect(plan, results), folder)
    (line,) = verify([folder]).code
    assert line == (
        f"{folder}: 3 of 9 runs were trained by the code that this checkout has for them; of 1 it is not on record"
    )


def test_a_flipped_digit_of_an_error_in_runs_csv_is_named_with_its_line(folder):
    line = change(folder / RUNS, ",1.1428571428571428,", ",1.1428571428571728,")  # of the second run
    (row, *tables) = problems(folder)
    assert row.startswith(f"{folder / RUNS}:{line}: test_error is 1.1428571428571728, not 1.1428571428571428")
    assert "digits/capsnet-iterations1/seed1" in row
    assert all("tables" in problem for problem in tables)


def test_a_flipped_digit_that_no_table_shows_is_named_too(folder):
    change(folder / RUNS, ",1158.0,25.7333", ",1158.0,25.7334")  # images per second of the first run
    (row,) = [line for line in problems(folder) if RUNS in line.split(": ")[0]]
    assert row.startswith(f"{folder / RUNS}:2: was changed")
    assert "digits/capsnet-iterations1/seed0" in row


def test_a_changed_option_is_named_with_what_the_study_has(folder):
    frame = read_runs(folder / RUNS)
    text = (folder / RUNS).read_text().splitlines()
    place = list(frame.columns).index("option.routing.iterations")
    cells = text[1].split(",")
    cells[place] = "2.0"
    (folder / RUNS).write_text("\n".join([text[0], ",".join(cells), *text[2:]]) + "\n")
    (row, *_) = problems(folder)
    assert row.startswith(f"{folder / RUNS}:2: option.routing.iterations is 2.0, not 1.0, which study.yaml has")


def test_a_change_that_leaves_every_value_is_named_as_a_change_of_the_file(folder):
    with (folder / RUNS).open("ab") as file:
        file.write(b"\r\n")
    text = (folder / RUNS).read_bytes().replace(b"\r\n", b"")
    (folder / RUNS).write_bytes(text.replace(b"small_study,", b'"small_study",', 1))
    assert [line.split(": ")[0] for line in problems(folder)] == [str(folder / RUNS)]


def flip_bit(folder: Path, key: str) -> None:
    """Turn one item of a run from right to wrong, or back, in correct.npz."""
    with np.load(folder / "correct.npz") as file:
        arrays = dict(file)
    arrays[f"right/{key}"][50] ^= 1
    with (folder / "correct.npz").open("wb") as file:
        np.savez_compressed(file, **arrays)


def test_a_flipped_bit_in_what_a_run_got_right_is_named(folder):
    key = "digits/cnn_matched/seed0"
    flip_bit(folder, key)
    found = problems(folder)
    assert f"{folder / 'correct.npz'}: was changed" in found[0]
    assert f"{key}: 14 of 700 test items are wrong, but its error is 1.85714 %" in found[1]
    assert all(f"{folder / 'tables/test_items'}" in line for line in found[2:])
    assert len(found) == 5
    seal(folder)  # somebody who makes the hash agree
    assert problems(folder) == found[1:]
    redraw_tables(*read_reference(folder / RUNS), folder)  # and the tables
    assert problems(folder) == [found[1]]


def test_items_of_a_run_that_is_not_there_are_named(folder):
    with np.load(folder / "correct.npz") as file:
        arrays = dict(file)
    arrays["right/digits/nosuch/seed0"] = arrays["right/digits/cnn_matched/seed0"]
    with (folder / "correct.npz").open("wb") as file:
        np.savez_compressed(file, **arrays)
    assert any("digits/nosuch/seed0: is no run of runs.csv" in line for line in problems(folder))


@pytest.mark.parametrize("ending", ["csv", "md", "tex"])
def test_a_flipped_digit_in_a_table_is_named_with_its_line(folder, ending):
    path = folder / "tables" / f"contrasts.{ending}"
    line = flip_difference(path)
    (problem,) = problems(folder)
    assert problem.startswith(f"{path}:{line}: says '")
    assert "runs.csv gives" in problem


def test_a_table_that_is_missing_or_too_many_is_named(folder):
    (folder / "tables" / IN_TABLES).rename(folder / "tables/mine.csv")
    found = problems(folder)
    assert [line.split(": ")[0] for line in found] == [str(folder / "tables" / n) for n in (IN_TABLES, "mine.csv")]
    assert "is not there" in found[0]
    assert "no table of study.yaml" in found[1]
    redraw_tables(*read_reference(folder / RUNS), folder)
    assert problems(folder) == []


def test_a_study_that_was_changed_gives_other_digests(folder):
    change(folder / "study.yaml", "epochs: 2", "epochs: 3")
    found = problems(folder)
    assert f"{folder / 'study.yaml'}: was changed" in found[0]
    assert sum("was trained with digest" in line for line in found) == 9
    seal(folder)  # somebody who makes the hash agree
    found = [line for line in problems(folder) if "tables" not in line]
    assert len(found) == 9
    assert "digits/capsnet-iterations1/seed0 was trained with digest" in found[0]


def test_digests_of_an_older_format_are_not_compared_which_is_said(folder):
    about = yaml.safe_load((folder / "provenance.yaml").read_text())
    for run in about["runs"]:
        run["digest"] = "0" * 16
    (folder / "provenance.yaml").write_text(yaml.safe_dump(about))
    assert len(problems(folder)) == 9
    (folder / "provenance.yaml").write_text(yaml.safe_dump(about | {"study_schema": 1}))
    assert problems(folder) == []
    assert any("schema 1" in note and "not compared" in note for note in verify([folder]).notes)


def test_runs_that_are_missing_or_too_many_are_named(folder):
    lines = (folder / RUNS).read_text().splitlines(keepends=True)
    (folder / RUNS).write_text("".join([*lines[:-1], lines[-1].replace("cnn_matched", "cnn_other")]))
    found = problems(folder)
    assert f"{folder / RUNS}: digits/cnn_matched/seed2 of study.yaml is not there" in found
    assert f"{folder / RUNS}: digits/cnn_other/seed2 is no run of study.yaml" in found

    (folder / RUNS).write_text("".join(lines))
    about = yaml.safe_load((folder / "provenance.yaml").read_text())
    about["runs"] = [*about["runs"][1:], about["runs"][1]]
    (folder / "provenance.yaml").write_text(yaml.safe_dump(about))
    found = problems(folder)
    assert f"{folder / 'provenance.yaml'}: digits/capsnet-iterations1/seed0 of runs.csv is not there" in found
    assert f"{folder / 'provenance.yaml'}: digits/capsnet-iterations1/seed1 of runs.csv is there twice" in found


@pytest.mark.parametrize("name", ["study.yaml", "provenance.yaml", RUNS])
def test_a_file_that_is_missing_or_damaged_is_one_line(folder, name):
    (folder / name).write_text("seeds: [")
    assert [line.split(":")[0] for line in problems(folder)] == [str(folder / name)]
    (folder / name).unlink()
    assert [line.split(":")[0] for line in problems(folder)] == [str(folder / name)]


def test_many_problems_of_a_kind_are_counted(folder):
    text = (folder / RUNS).read_text().replace(",90.0,", ",91.0,")
    (folder / RUNS).write_text(text)
    rows = [line for line in problems(folder) if "seconds is 91.0, not 90.0" in line]
    assert len(rows) == 8  # the diverged one has no numbers


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(root), *identity, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_commits_are_looked_up_in_the_history(folder, results, tmp_path):
    git(results, "init", "-q")
    git(results, "add", ".")
    git(results, "commit", "-q", "-m", "runs")
    head = git(results, "rev-parse", "HEAD")
    found = problems(folder)
    missing = [line for line in found if "is not in the git history" in line]
    assert any(f"commit {'0' * 40}" in line and "seed0 and 8 more" in line for line in missing)

    (folder / KEPT).unlink()  # which has the commits too
    (folder / RUNS).write_text((folder / RUNS).read_text().replace("0" * 40, head))
    text = (folder / "provenance.yaml").read_text().replace("0" * 40, head)
    (folder / "provenance.yaml").write_text(re.sub(r"analysis_commit: .*\n", f"analysis_commit: {head}\n", text))
    seal(folder)
    assert problems(folder) == []
    change(folder / "provenance.yaml", f"analysis_commit: {head}", "analysis_commit: deadbeef")
    (problem,) = problems(folder)
    assert "deadbeef is no commit (the analysis)" in problem

    git(results, "commit", "-q", "--allow-empty", "-m", "later")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{results}", str(shallow))
    shutil.copytree(folder, shallow / "again")
    assert any("shallow clone" in note for note in verify([shallow / "again"]).notes)


@pytest.fixture
def checkout(folder, tmp_path):
    """The same reference in a checkout whose README has one of its tables, by a small docs/generate.py."""
    root = tmp_path / "checkout"
    (root / "docs").mkdir(parents=True)
    shutil.copytree(folder.parents[1], root / "results")
    generator = (
        "import pathlib, re, sys\n"
        "root = pathlib.Path(sys.argv[2])\n"
        "page = root / 'README.md'\n"
        "def fill(m):\n"
        "    table = (root / 'results/reference' / m[2] / 'tables' / (m[3] + '.md')).read_text()\n"
        "    return m[1] + '\\n' + table + '\\n' + m[5]\n"
        "block = r'(<!-- begin table (\\S+) (\\S+) -->\\n)(.*?)(<!-- end table -->)'\n"
        "page.write_text(re.sub(block, fill, page.read_text(), flags=re.S))\n"
    )
    (root / "docs/generate.py").write_text(generator)
    (root / "README.md").write_text(
        "# Title\n\n<!-- begin table small_study contrasts -->\n<!-- end table -->\n\n1.25\n"
    )
    subprocess.run(["python", str(root / "docs/generate.py"), "--root", str(root)], check=True)
    return root


def test_a_flipped_digit_in_a_block_of_the_readme_is_named_with_its_line(checkout):
    folder = checkout / "results/reference/small_study"
    assert problems(folder) == []
    line = flip_difference(checkout / "README.md")
    (problem,) = problems(folder)
    assert problem.startswith(f"{checkout / 'README.md'}:{line}: says '")
    assert "table small_study contrasts" in problem


def test_blocks_of_other_references_are_not_this_ones_problem(checkout):
    shutil.copytree(checkout / "results/reference/small_study", checkout / "results/reference/other")
    change(checkout / "README.md", "begin table small_study", "begin table other")
    flip_difference(checkout / "README.md")
    assert problems(checkout / "results/reference/small_study") == []
    assert len(problems(checkout / "results/reference/other")) > 0


def test_a_generator_that_fails_is_named(checkout):
    (checkout / "docs/generate.py").write_text("import sys\nsys.exit('no such table')\n")
    (problem,) = problems(checkout / "results/reference/small_study")
    assert "docs/generate.py: failed: no such table" in problem


COMMITTED = references(ROOT / "results")
SMALL = [folder for folder in COMMITTED if len((folder / RUNS).read_text().splitlines()) <= 61]  # of at most 60 runs


def test_there_are_committed_references():
    assert {"cpu", "fair"} <= {folder.name for folder in COMMITTED}  # `make verify` checks them all
    assert len(SMALL) >= 3


@pytest.mark.parametrize("committed", SMALL, ids=lambda folder: folder.name)
def test_a_committed_reference_can_be_read_redrawn_and_verified(committed, tmp_path):
    folder = tmp_path / committed.name
    shutil.copytree(committed, folder)
    plan, runs = read_reference(folder / RUNS)
    assert list(runs["key"]) == [run.key for run in plan.runs]
    before = hashlib.sha256((folder / RUNS).read_bytes()).hexdigest()
    redraw_tables(plan, runs, folder)
    assert problems(folder) == []
    assert hashlib.sha256((folder / RUNS).read_bytes()).hexdigest() == before
