import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_project import KEYS, capsbench

from capsbench.cli import commands as cli
from capsbench.cli import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND", "'capsbench --help'"]),
        (["data"], ["COMMAND", "fetch, prepare, card, clean", "'capsbench data --help'"]),
        (["tabels", "small"], ["'tabels'", "did you mean tables?", "'capsbench --help'"]),
        (["config", "shw", "small"], ["'shw'", "did you mean show?", "'capsbench config --help'"]),
        (
            ["tables", "small", "--reslts", "there"],
            ["--reslts", "did you mean --results?", "'capsbench tables --help'"],
        ),
        (["tables", "small", "--result", "there"], ["--result'"]),
        (["tables"], ["STUDY", "--runs", "'capsbench tables --help'"]),
        (["plots", "--runs", "nosuch/runs.csv"], ["nosuch/runs.csv", "cannot be read"]),
        (["plots", "small", "--experiment", "digts"], ["configs/small.yaml", "'digts'", "did you mean digits?"]),
        (["report", "--runs", "configs/small.yaml"], ["configs/small.yaml", "is no runs.csv"]),
        (["verify"], ["results/reference", "no reference"]),
        (["tables", "small", "large"], ["unexpected", "large", "'capsbench tables --help'"]),
        (["bench", "routing", "--batch"], ["--batch", "argument", "'capsbench bench routing --help'"]),
        (["bench", "network", "small"], ["'network'", "did you mean networks?", "'capsbench bench --help'"]),
        (["bench", "networks"], ["STUDY", "'capsbench bench networks --help'"]),
        (["bench", "networks", "small", "--output", "configs/small.yaml"], ["configs/small.yaml", "not a file of"]),
        (["config", "show", "small", "--speeds", "nosuch.csv"], ["nosuch.csv", "capsbench bench networks"]),
        (["config", "show", "small", "--speeds", "configs/small.yaml"], ["configs/small.yaml", "not a file of"]),
        (["bench", "routing", "--batch", "0"], ["--batch", "'0' is not a positive whole number"]),
        (["bench", "--threads", "999999"], ["--threads", "999999 is more than 1,024"]),
        (["bench", "routing", "--batch", "9" * 5000], ["--batch", "9 is more than 1,000,000,000"]),
        (["bench", "--rounds"], ["--rounds", "argument", "'capsbench bench all --help'"]),
        (["bench", "--against", "nosuch.csv"], ["nosuch.csv", "no such file", "'capsbench bench all'"]),
        (["bench", "--against", "configs/small.yaml"], ["configs/small.yaml", "not a file of"]),
        (["bench", "--device", "tpu"], ["'tpu'", "cpu", "cuda"]),
        (
            ["models", "capsnte"],
            ["no model 'capsnte'; did you mean capsnet? there are capsnet, capsnet_abl"],
        ),
        (["models", "--image-shape", "28x28"], ["'28x28' is not channels x height x width, as 1x28x28"]),
        (["models", "--classes", "0"], ["--classes", "'0' is not a positive whole number"]),
        (["config", "show", "nosuch"], ["no study 'nosuch'", "configs/ (bad, small)"]),
        (["config", "show", "smal"], ["no study 'smal'; did you mean small?"]),
        (["config", "show", "there/nosuch.yaml"], ["there/nosuch.yaml: no such study file"]),
        (["config", "show", "bad"], ["configs/bad.yaml: seds: ", "did you mean 'seeds'"]),
        (["tables", "bad"], ["configs/bad.yaml: seds: "]),
        (
            ["data", "fetch", "mnits"],
            ["no data set 'mnits'; did you mean mnist? there are digits, mnist", "fashion-mnist, all"],
        ),
        (["data", "card", "all"], ["no data set 'all'"]),
        (["data", "prepare", "small", "digts"], ["configs/small.yaml", "'digts'", "did you mean digits?"]),
        (["train", "small", "digits/capsnet-iterations2/seed0"], ["no run", "did you mean digits/capsnet-iterations"]),
        (["train", "small", "x"], ["no run 'x'", "capsbench config show configs/small.yaml"]),
        (["evaluate", "small", "x"], ["no run 'x'"]),
        (["evaluate", "small", KEYS[0]], [f"results/small/runs/{KEYS[0]}: nothing to evaluate", "capsbench train"]),
        (["reference", "small"], ["small", "not finished", " 4", KEYS[0]]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2(capsys, arguments, words):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("capsbench: ")
    assert [word for word in words if word not in err] == []


def test_a_traceback_is_shown_with_debug_alone():
    plain, debug = capsbench("config", "show", "bad"), capsbench("config", "show", "bad", "--debug")
    assert (plain.returncode, plain.stdout) == (2, "")
    assert plain.stderr.startswith("capsbench: configs/bad.yaml: ")
    assert plain.stderr.count("\n") == 1
    assert debug.returncode == 2
    assert "Traceback (most recent call last)" in debug.stderr
    assert "InputError: configs/bad.yaml: " in debug.stderr


def fail(error: BaseException):
    def failing(study: str) -> None:
        raise error

    return failing


def test_an_unknown_exception_is_one_line_that_says_whose_fault_it_is(capsys, monkeypatch):
    monkeypatch.setattr(cli, "load_study", fail(ZeroDivisionError("first line\nsecond line")))
    assert main(["config", "show", "small"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert [
        w for w in ("capsbench: ZeroDivisionError: first line", "bug in capsbench", "--debug") if w not in err
    ] == []
    assert main(["config", "show", "small", "--debug"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_failed_run_is_one_line_and_exit_code_1(capsys, monkeypatch):
    monkeypatch.setattr(cli, "load_study", fail(cli.RunError("the disk is full")))
    assert main(["config", "show", "small"]) == 1
    assert capsys.readouterr().err == "capsbench: the disk is full\n"


def test_a_fault_of_the_machine_is_one_line_that_names_the_file(capsys, monkeypatch):
    monkeypatch.setattr(cli, "load_study", fail(OSError(28, "No space left on device", "results/x")))
    assert main(["config", "show", "small"]) == 1
    assert capsys.readouterr().err == "capsbench: results/x: No space left on device\n"


def test_ctrl_c_is_one_line_and_exit_code_130(capsys, monkeypatch):
    monkeypatch.setattr(cli, "load_study", fail(KeyboardInterrupt()))
    assert main(["config", "show", "small"]) == 130
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "interrupted" in err
    assert "again to continue" in err


@pytest.mark.parametrize("option", ["--log", "--results"])
def test_a_path_that_cannot_be_written_is_one_line(capsys, option):
    assert main(["tables", "small", option, "configs/small.yaml/x"]) in (1, 2)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "configs/small.yaml" in err


@pytest.mark.parametrize("command", ["tables", "plots", "report", "track", "reference"])
def test_a_folder_of_results_that_was_named_and_is_not_there_is_said_and_not_made(capsys, command):
    assert main([command, "small", "--results", "TYPO"]) == 2
    assert capsys.readouterr().err.startswith("capsbench: --results TYPO: no such folder; ")
    assert not Path("TYPO").exists()


def test_a_fifo_for_messages_that_nobody_reads_is_said_and_not_waited_for(capsys):
    os.mkfifo("messages")
    assert main(["config", "show", "small", "--log", "messages"]) == 2
    assert capsys.readouterr().err == "capsbench: --log messages: cannot be written: nobody reads from this FIFO\n"


def test_a_folder_for_messages_is_said(capsys):
    assert main(["config", "show", "small", "--log", "/"]) == 2
    assert capsys.readouterr().err == "capsbench: --log /: cannot be written: Is a directory\n"


@pytest.fixture
def full_disk(tmp_path) -> Iterator[Path]:
    """A folder on a file system of 16 kB."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip("a small file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="no mount here")
def test_a_full_disk_is_one_line_that_names_the_file(capsys, full_disk):
    assert main(["init", str(full_disk / "project")]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.startswith(f"capsbench: {full_disk}/project/") and line.endswith(": No space left on device\n")
    (full_disk / "results").mkdir()
    assert main(["tables", "small", "--results", str(full_disk / "results")]) == 1
    assert capsys.readouterr().err == f"capsbench: {full_disk}/results/small/runs.csv: No space left on device\n"
    assert main(["config", "show", "small", "--log", str(full_disk / "log")]) == 0
    assert capsys.readouterr().err.startswith(f"capsbench: --log {full_disk}/log: cannot be written any more: ")
