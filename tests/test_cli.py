import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from capsbench import cli
from capsbench.cli import main

STUDY = """\
name: small
seeds: [0, 1]
experiments:
  digits: {data: {name: digits}}
variants:
  capsnet: {model: capsnet, grid: {iterations: [1, 3]}}
"""
KEYS = [f"digits/capsnet-iterations{i}/seed{s}" for i in (1, 3) for s in (0, 1)]
COMMANDS = (
    ["config"], ["config", "show"], ["config", "schema"], ["data"], ["data", "fetch"], ["train"], ["evaluate"],
    ["track"], ["tables"], ["plots"], ["report"], ["reference"], ["bench"],
    ["models"],
)  # fmt: skip


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch) -> Path:
    """A folder with one study, configs/small.yaml, and one that is wrong, configs/bad.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    Path("configs/small.yaml").write_text(STUDY)
    Path("configs/bad.yaml").write_text(STUDY.replace("seeds", "seds"))
    return tmp_path


def capsbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "capsbench.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def exit_code(*arguments: str) -> int:
    try:
        return main(list(arguments))
    except SystemExit as ending:  # argparse
        assert isinstance(ending.code, int)
        return ending.code


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(capsys, command):
    assert exit_code(*command, "--help") == 0
    usage = capsys.readouterr().out
    assert usage.startswith(f"usage: capsbench {' '.join(command)} [")
    assert "--debug" in usage or "COMMAND" in usage


def test_help_lists_every_command(capsys):
    assert exit_code("--help") == 0
    usage = capsys.readouterr().out
    assert [command for command, *_ in COMMANDS if not re.search(rf"^    {command}\s", usage, re.MULTILINE)] == []


def test_version(capsys):
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.startswith("capsbench 0.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["COMMAND", "capsbench --help"]),
        (["tabels", "small"], ["'tabels'", "tables"]),
        (["config", "shw", "small"], ["'shw'", "show"]),
        (["tables", "small", "--reslts", "there"], ["--reslts"]),
        (["tables"], ["STUDY", "capsbench tables --help"]),
        (["bench", "--batch", "0"], ["--batch", "'0' is not a positive whole number"]),
        (["bench", "--device", "tpu"], ["'tpu'", "cpu", "cuda"]),
        (["models", "capsnte"], ["no model 'capsnte'; did you mean capsnet? there are capsnet, cnn_hinton_norb"]),
        (["models", "--image-shape", "28x28"], ["'28x28' is not channels x height x width, as 1x28x28"]),
        (["models", "--classes", "0"], ["--classes", "'0' is not a positive whole number"]),
        (["config", "show", "nosuch"], ["no study 'nosuch'", "configs/ (bad, small)"]),
        (["config", "show", "there/nosuch.yaml"], ["there/nosuch.yaml: no such study file"]),
        (["config", "show", "bad"], ["configs/bad.yaml: seds: ", "did you mean 'seeds'"]),
        (["tables", "bad"], ["configs/bad.yaml: seds: "]),
        (
            ["data", "fetch", "mnits"],
            ["no data set 'mnits'; did you mean mnist? there are digits, mnist", "cifar10, all"],
        ),
        (["train", "small", "digits/capsnet-iterations2/seed0"], ["no run", "did you mean digits/capsnet-iterations"]),
        (["train", "small", "x"], ["no run 'x'", "capsbench config show configs/small.yaml"]),
        (["evaluate", "small", "x"], ["no run 'x'"]),
        (["evaluate", "small", KEYS[0]], [f"results/small/runs/{KEYS[0]}: nothing to evaluate", "capsbench train"]),
        (["reference", "small"], ["4 runs of small are not finished", KEYS[0]]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bad_input_is_one_line_on_stderr_and_exit_code_2(capsys, arguments, words):
    assert exit_code(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("capsbench")
    assert [word for word in words if word not in err] == []


def test_a_traceback_is_shown_with_debug_alone():
    plain, debug = capsbench("config", "show", "bad"), capsbench("config", "show", "bad", "--debug")
    assert (plain.returncode, plain.stdout) == (2, "")
    assert plain.stderr.startswith("capsbench: configs/bad.yaml: ")
    assert plain.stderr.count("\n") == 1
    assert debug.returncode != 0
    assert "Traceback (most recent call last)" in debug.stderr
    assert "InputError: configs/bad.yaml: " in debug.stderr


def test_debug_does_not_change_the_exit_code():
    assert capsbench("config", "show", "bad", "--debug").returncode == 2


@pytest.mark.parametrize("option", ["--log", "--results"])
def test_a_path_that_cannot_be_written_is_one_line(capsys, option):
    assert exit_code("tables", "small", option, "configs/small.yaml/x") in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_models_counts_one_network_for_the_images_that_are_asked_for(capsys):
    assert main(["models", "resnet20", "--image-shape", "1x28x28", "--classes", "7"]) == 0
    assert re.search(r"\| 1x28x28 +\| +7 \| +269,239 \|", capsys.readouterr().out)


def test_config_show_lists_the_runs(capsys):
    assert main(["config", "show", "small"]) == 0
    assert capsys.readouterr().out.splitlines() == [*KEYS, "4 runs: 2 cells x 2 seeds"]


def test_config_show_json_holds_what_decides_each_run(capsys):
    assert main(["config", "show", "configs/small.yaml", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)
    assert [(run["options"]["iterations"], run["seed"]) for run in runs] == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert runs[0]["training"]["epochs"] == 50


def test_config_schema_is_a_json_schema(capsys):
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"name", "seeds", "experiments", "variants"} <= set(schema["required"])


def test_log_adds_all_messages_to_a_file_too(capsys):
    log = Path("new/folder/show.log")
    for study in ("small", "bad"):
        main(["config", "show", study, "--log", str(log)])
    captured = capsys.readouterr()
    assert log.read_text() == captured.out + captured.err
    assert captured.out
    assert captured.err


def test_tables_of_a_study_that_has_not_run_have_dashes(capsys):
    assert main(["tables", "small", "--results", "elsewhere"]) == 0
    written = Path("elsewhere/small/tables/sabour-table1.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written.splitlines()[:4]]
    heading, _, *cells = rows
    for row in cells:
        assert row[heading.index("ours (error %)")] == row[heading.index("95 % interval")] == "-"
        assert row[heading.index("n")] == "0 of 2"
        assert row[heading.index("verdict")] == "not run"
    assert len(cells) == 2
    assert written in capsys.readouterr().out
    assert Path("elsewhere/small/runs.csv").read_text().count(",missing,") == 4


def test_a_failed_run_is_one_line_and_exit_code_1(capsys, monkeypatch):
    def fail(name: str) -> None:
        raise cli.RunError("the disk is full")

    monkeypatch.setattr(cli, "load_study", fail)
    assert main(["config", "show", "small"]) == 1
    assert capsys.readouterr().err == "capsbench: the disk is full\n"


def test_ctrl_c_is_one_line_and_exit_code_130(capsys, monkeypatch):
    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load_study", interrupt)
    assert main(["config", "show", "small"]) == 130
    assert capsys.readouterr().err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_error():
    command = [sys.executable, "-m", "capsbench.cli", "config", "schema"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0


def test_the_command_is_installed():
    script = Path(sys.executable).with_name("capsbench")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_studies_in_configs_are_found_by_name(monkeypatch):
    root = Path(__file__).parents[1]
    monkeypatch.chdir(root)
    quick = cli.load_study("quick")
    assert quick.study.name == yaml.safe_load((root / "configs/quick.yaml").read_text())["name"]
