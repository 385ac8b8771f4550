import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from capsbench.cli import main
from capsbench.errors import InputError
from capsbench.run.networks import check_networks
from capsbench.study import Study, load_plan, shipped
from capsbench.study.files import read_yaml
from capsbench.study.shipped import TEMPLATE, find_study, project_folder, write_project

ROOT = Path(__file__).parents[1]
ESSENTIAL = [
    "Snakefile", "workflow/rules/train.smk", "profiles/default/config.yaml", "configs/quick.yaml", "configs/study.yaml",
]  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def snakemake(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the study of the project in `there`."""
    scripts = Path(sys.executable).parent  # where the jobs find `capsbench`
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "snakemake", "--configfile", "configs/study.yaml", *arguments]
    return subprocess.run(
        command, cwd="there", env=environment, capture_output=True, text=True, check=False, timeout=600
    )


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_init_writes_a_project_and_says_how_to_run_it(capsys):
    assert main(["init", "there/my_study"]) == 0
    written = files(Path("there/my_study"))
    assert [name for name in ESSENTIAL if name not in written] == []
    shared = {name: (ROOT / name).read_bytes() for name in written if name != "configs/study.yaml"}
    assert shared == {name: content for name, content in written.items() if name in shared}
    out = capsys.readouterr().out
    assert "cd there/my_study && snakemake" in out
    assert [name for name in written if f"there/my_study/{name}\n" not in out] == []


def test_init_works_in_a_folder_that_has_other_files(capsys):
    Path("notes.txt").write_text("mine")
    assert main(["init", "."]) == 0
    assert Path("notes.txt").read_text() == "mine"
    assert Path("Snakefile").exists()
    assert "cd " not in capsys.readouterr().out


@pytest.mark.parametrize("existing", ["Snakefile", "configs/study.yaml", "workflow/rules/train.smk"])
def test_init_overwrites_nothing_and_then_writes_nothing(capsys, existing):
    path = Path("there", existing)
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    assert main(["init", "there"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert existing in err
    assert "nothing was written" in err
    assert files(Path("there")) == {existing: b"mine"}


def test_init_below_a_file_is_one_line(capsys):
    Path("there").write_text("a file")
    assert main(["init", "there"]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_the_study_of_a_new_project_loads_and_explains_every_key():
    write_project(Path("there"))
    path = Path("there/configs/study.yaml")
    plan = load_plan(path)
    assert {run.data.name for run in plan.runs} == {"digits"}
    for experiment in plan.study.experiments:
        check_networks(plan, experiment)
    assert set(read_yaml(path)) == {field.alias or name for name, field in Study.model_fields.items()}


def test_every_key_that_is_commented_out_can_be_taken_in(tmp_path):
    lines = TEMPLATE.read_text().splitlines()
    optional = [number for number, line in enumerate(lines) if re.match(r" +# [a-z_.]+: ", line)]
    assert len(optional) >= 6
    without = load_plan(TEMPLATE).runs
    for number in optional:
        changed = [line.replace("# ", "", 1) if place == number else line for place, line in enumerate(lines)]
        path = tmp_path / "study.yaml"
        path.write_text("\n".join(changed))
        assert load_plan(path).runs != without or "options: {}" in lines[number]


def test_a_dry_run_of_a_new_project_plans_every_training():
    write_project(Path("there"))
    done = snakemake("--cores", "1", "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    runs = load_plan(Path("there/configs/study.yaml")).runs
    assert f"train {len(runs)}" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_a_new_project_runs():
    write_project(Path("there"))
    done = snakemake("--cores", "all")
    assert done.returncode == 0, done.stdout + done.stderr
    study = Path("there/results/study")
    assert ",missing," not in (study / "runs.csv").read_text()
    assert (study / "report.html").exists()
    assert list((study / "tables").glob("*.md"))


def test_the_project_files_of_an_installed_package_come_first(tmp_path, monkeypatch):
    package = tmp_path / "site-packages/capsbench"
    monkeypatch.setattr(shipped, "PACKAGE", package)
    with pytest.raises(InputError, match="install capsbench again"):
        project_folder()
    for folder in (package / "project", package.parent):
        (folder / "workflow").mkdir(parents=True)
        (folder / "Snakefile").touch()
    assert project_folder() == package / "project"


def test_files_that_tools_leave_behind_are_not_part_of_a_project(tmp_path, monkeypatch):
    for name in (
        "Snakefile",
        "configs/quick.yaml",
        "workflow/a.smk",
        "workflow/.a.smk.swp",
        "workflow/__pycache__/a.pyc",
    ):
        path = tmp_path / "capsbench/project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "capsbench")
    written = {str(path.relative_to("there")) for path in write_project(Path("there"))}
    assert written == {"Snakefile", "configs/quick.yaml", "workflow/a.smk", "configs/study.yaml"}


def test_a_study_is_a_path_or_a_name_here_or_among_the_shipped_ones():
    assert find_study("there/x.yaml") == Path("there/x.yaml")
    assert find_study("quick") == ROOT / "configs/quick.yaml"
    Path("configs").mkdir()
    Path("configs/quick.yaml").touch()
    assert find_study("quick") == Path("configs/quick.yaml")
    with pytest.raises(InputError, match=r"no study 'quik'; did you mean quick\? .*configs/ \(quick\).*ships .*paper"):
        find_study("quik")
