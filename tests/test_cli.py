import json
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from capsbench.cli import commands as cli
from capsbench.cli import main

STUDY = """\
name: small
seeds: [0, 1]
experiments:
  digits: {data: {name: digits}}
variants:
  capsnet: {model: capsnet, grid: {routing.iterations: [1, 3]}}
"""
KEYS = [f"digits/capsnet-iterations{i}/seed{s}" for i in (1, 3) for s in (0, 1)]
COMMANDS = {
    "init", "config", "config show", "config schema", "models", "data", "data fetch", "data prepare", "data card",
    "data clean",
    "train", "evaluate", "track", "tables", "plots", "report", "reference", "verify", "bench", "bench routing",
    "bench networks",
}  # fmt: skip


def found_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from found_commands(command, (*path, name))


FOUND = dict(found_commands(cli.capsbench))
ALL = {"": cli.capsbench, **FOUND}
LEAVES = [path for path, command in FOUND.items() if not isinstance(command, click.Group)]


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch) -> Path:
    """A folder with one study, configs/small.yaml, and one that is wrong, configs/bad.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    Path("configs/small.yaml").write_text(STUDY)
    Path("configs/bad.yaml").write_text(STUDY.replace("seeds", "seds"))
    return tmp_path


def capsbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "capsbench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_these_are_the_commands():
    assert set(FOUND) == COMMANDS


@pytest.mark.parametrize("path", ALL)
def test_every_command_explains_itself(capsys, path):
    assert main([*path.split(), "--help"]) == 0
    usage = capsys.readouterr().out
    assert usage.startswith(f"Usage: {f'capsbench {path}'.strip()} [")
    assert "COMMAND" in usage or ("--debug" in usage and "--log" in usage)


@pytest.mark.parametrize("path", ALL)
def test_every_command_has_a_line_that_describes_it_and_an_example_that_parses(path):
    command = ALL[path]
    first, *rest = [line.strip() for line in (command.help or "").splitlines() if line.strip()]
    assert 10 < len(first) < 100
    examples = [line.removeprefix("Example: ") for line in rest if line.startswith("Example: ")]
    assert len(examples) == 1
    words = shlex.split(examples[0].split(" > ")[0])
    assert words[: len(path.split()) + 1] == ["capsbench", *path.split()]
    command.make_context(path, words[len(path.split()) + 1 :])  # raises UsageError where the example is wrong


@pytest.mark.parametrize("path", LEAVES)
def test_every_argument_and_option_has_a_help_text(path):
    assert [p.name for p in FOUND[path].params if not getattr(p, "help", None)] == []


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    usage = capsys.readouterr().out
    assert [name for name in cli.capsbench.commands if not re.search(rf"^  {name}\s", usage, re.MULTILINE)] == []


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("capsbench 0.")


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
        (["report", "--runs", "configs/small.yaml"], ["configs/small.yaml", "is no runs.csv"]),
        (["verify"], ["results/reference", "no reference"]),
        (["tables", "small", "large"], ["unexpected", "large", "'capsbench tables --help'"]),
        (["bench", "--batch"], ["--batch", "argument", "'capsbench bench routing --help'"]),
        (["bench", "network", "small"], ["'network'", "did you mean networks?", "'capsbench bench --help'"]),
        (["bench", "networks"], ["STUDY", "'capsbench bench networks --help'"]),
        (["bench", "networks", "small", "--output", "configs/small.yaml"], ["configs/small.yaml", "not a file of"]),
        (["config", "show", "small", "--speeds", "nosuch.csv"], ["nosuch.csv", "capsbench bench networks"]),
        (["config", "show", "small", "--speeds", "configs/small.yaml"], ["configs/small.yaml", "not a file of"]),
        (["bench", "--batch", "0"], ["--batch", "'0' is not a positive whole number"]),
        (["bench", "--device", "tpu"], ["'tpu'", "cpu", "cuda"]),
        (["models", "capsnte"], ["no model 'capsnte'; did you mean capsnet? there are capsnet, cnn_hinton_norb"]),
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


def test_models_counts_one_network_for_the_images_that_are_asked_for(capsys):
    assert main(["models", "resnet20", "--image-shape", "1x28x28", "--classes", "7"]) == 0
    assert re.search(r"\| 1x28x28 +\| +7 \| +269,239 \|", capsys.readouterr().out)


def test_config_show_lists_the_runs_and_what_they_cost(capsys):
    assert main(["config", "show", "small"]) == 0
    *listed, blank, heading, costs, hours, _, seeds, few = capsys.readouterr().out.splitlines()
    assert ("seeds can show" in seeds, "2 seeds give no interval" in few) == (True, True)
    assert listed == [*KEYS, "4 runs: 2 cells x 2 seeds"]
    assert (blank, heading.split()) == ("", ["table", "runs", "images"])
    assert costs.split()[:2] == ["sabour-table1", "4"]
    assert "capsbench bench networks configs/small.yaml" in hours


def test_config_show_lists_the_cells_of_a_large_study(capsys):
    Path("configs/small.yaml").write_text(STUDY.replace("[0, 1]", str(list(range(51)))))
    assert main(["config", "show", "small"]) == 0
    cells = capsys.readouterr().out.splitlines()
    assert cells[:2] == ["digits/capsnet-iterations1", "digits/capsnet-iterations3"]
    assert cells[2].startswith("102 runs: 2 cells x 51 seeds (0, 1, 2, ")
    assert "--runs" in cells[2]
    assert main(["config", "show", "small", "--runs"]) == 0
    runs = capsys.readouterr().out.splitlines()
    assert runs[50] == "digits/capsnet-iterations1/seed50"
    assert runs[102].startswith("102 runs: 2 cells x 51 seeds")
    assert main(["config", "show", "small", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 102


TINY = "{model: capsnet, options: {conv_channels: 4, primary_types: 1, decoder: null}, grid"


def test_the_speeds_that_bench_measures_are_the_hours_that_config_show_names(capsys):
    Path("configs/small.yaml").write_text(STUDY.replace("{model: capsnet, grid", TINY))
    for _ in range(2):  # the second call replaces what the first one wrote
        speeds = "results/reference/speeds.csv"
        assert main(["bench", "networks", "small", "--steps", "1", "--device", "cpu", "--output", speeds]) == 0
    assert capsys.readouterr().out.count("images/s") == 4
    assert Path(speeds).read_text().count("capsnet-iterations") == 2
    assert main(["config", "show", "small"]) == 0
    *_, heading, costs, hours, _, _, _ = capsys.readouterr().out.splitlines()
    assert heading.split()[-1] == "hours"
    assert float(costs.split()[-1].replace(",", "")) > 0
    assert ("cores" in hours, "speeds.csv" in hours) == (True, True)


def test_bench_without_a_command_times_routing(capsys):
    assert main(["bench", "--batch", "1", "--inputs", "4", "--repeats", "1", "--output", "there/bench.md"]) == 0
    assert "linear_dynamic_routing" in capsys.readouterr().out
    assert "batch 1, 4 x 8 -> 10 x 16" in Path("there/bench.md").read_text()


def test_bench_alone_times_routing_at_the_size_of_the_paper(capsys, monkeypatch):
    from capsbench.benchmarks import routing

    measure = routing.routing_benchmark
    sizes = []
    monkeypatch.setattr(routing, "routing_benchmark", lambda *a: sizes.append(a) or measure(1, 2, 2, 1, 1, 1, "cpu"))
    assert main(["bench"]) == 0
    assert sizes[0][:5] == (64, 1152, 10, 3, 20)


def test_config_show_json_holds_what_decides_each_run(capsys):
    assert main(["config", "show", "configs/small.yaml", "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)
    iterations = [(run["options"]["routing"]["iterations"], run["seed"]) for run in runs]
    assert iterations == [(1, 0), (1, 1), (3, 0), (3, 1)]
    assert runs[0]["training"]["steps"] == 300_000


def test_config_schema_is_a_json_schema(capsys):
    assert main(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"name", "seeds", "experiments", "variants"} <= set(schema["required"])


def test_data_fetch_counts_and_says_where(capsys):
    assert main(["data", "fetch", "digits"]) == 0
    line = capsys.readouterr().out
    assert [
        word for word in ("digits: ", "training and ", "test images", "checked", "embedded") if word not in line
    ] == []


def test_data_prepare_writes_counts_and_fingerprints(capsys):
    assert main(["data", "prepare", "small", "digits", "--manifest", "there/digits.json"]) == 0
    counts = json.loads(Path("there/digits.json").read_text())
    assert f"{counts['train']['images']:,} training" in capsys.readouterr().out


def test_data_clean_lists_and_removes_entries_of_the_cache_and_nothing_else(capsys, project, monkeypatch):
    there = project / "cache"
    monkeypatch.setenv("CAPSBENCH_CACHE", str(there))
    entry = there / f"toynorb-train-6-{'0123456789abcdef'}"
    entry.mkdir(parents=True)
    (entry / "images.npy").write_bytes(bytes(2_500_000))
    (there / "mine").mkdir()
    for option, words in (("--dry-run", "1 entry, 2.5 MB, would be removed"), (None, "1 entry, 2.5 MB, removed")):
        assert main(["data", "clean", *filter(None, [option])]) == 0
        first, last = capsys.readouterr().out.splitlines()
        assert first == f"{entry.name}: 2.5 MB"
        assert last == f"{there}: {words}"
        assert entry.exists() == (option is not None)
    assert main(["data", "clean"]) == 0
    assert capsys.readouterr().out == f"{there}: 0 entries, 0.0 MB, removed\n"
    assert [path.name for path in there.iterdir() if path.is_dir()] == ["mine"]


def test_data_clean_says_what_may_not_be_read(capsys, project, monkeypatch):
    (project / "file").touch()
    monkeypatch.setenv("CAPSBENCH_CACHE", str(project / "file"))
    assert main(["data", "clean"]) == 2
    assert f"{project / 'file'}: Not a directory" in capsys.readouterr().err


def test_log_adds_all_messages_to_a_file_too(capsys):
    log = Path("new/folder/show.log")
    for study in ("small", "bad"):
        main(["config", "show", study, "--log", str(log)])
    captured = capsys.readouterr()
    assert log.read_text() == captured.out + captured.err
    assert captured.out
    assert captured.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_log_file_on_a_full_disk_stops_no_command(capsys):
    assert main(["config", "show", "small", "--log", "/dev/full"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:4] == KEYS
    assert err.count("\n") == 1
    assert "/dev/full" in err


def test_messages_of_library_modules_are_shown_and_errors_go_to_stderr(capsys, monkeypatch):
    def speak(study: str):
        speaker = logging.getLogger("capsbench.run.somewhere")
        speaker.debug("nobody wants to know")
        speaker.info("half of 100 %% is %d", 50)
        speaker.warning("slow")
        speaker.error("wrong")
        raise cli.InputError("the end")

    monkeypatch.setattr(cli, "load_study", speak)
    assert main(["config", "show", "small"]) == 2
    assert capsys.readouterr() == ("half of 100 % is 50\nslow\n", "wrong\ncapsbench: the end\n")


def test_nothing_of_a_call_is_left_in_logging():
    logger = logging.getLogger("capsbench")
    before = (list(logger.handlers), logger.level, logger.propagate)
    assert main(["config", "show", "bad", "--log", "a.log"]) == 2
    assert (list(logger.handlers), logger.level, logger.propagate) == before


def test_tables_of_a_study_that_has_not_run_have_dashes(capsys):
    assert main(["tables", "small", "--results", "elsewhere"]) == 0
    written = Path("elsewhere/small/tables/sabour-table1.md").read_text()
    assert written.count(" not run ") == 2
    assert written.count(" 0 of 2 ") == 2
    said = capsys.readouterr().out
    assert "sabour-table1.md" in said
    assert "0 of 4 runs have a result" in said
    assert Path("elsewhere/small/runs.csv").read_text().count(",missing,") == 4


SPEAKER = """\
import pathlib
import sys
import click
from capsbench.cli import commands as cli

def speak(study):
    cli.log.info("first")
    cli.log.info("second")
    pathlib.Path("after").touch()
    raise click.exceptions.Exit(0)

cli.load_study = speak
sys.exit(cli.main(["config", "show", "small"]))
"""


@pytest.mark.parametrize(
    "arguments", [["-m", "capsbench", "--help"], ["-c", SPEAKER]], ids=["--help", "a command that speaks"]
)
def test_a_reader_that_goes_away_is_no_error_and_stops_no_command(arguments):
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0
    assert Path("after").exists() == (SPEAKER in arguments)


def test_the_command_is_installed():
    script = Path(sys.executable).with_name("capsbench")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_waits_for_no_heavy_package():
    heavy = {"torch", "numpy", "pandas", "mlflow", "matplotlib", "pydantic", "yaml", "scipy", "sklearn"}
    code = f"""\
import sys
from capsbench.cli import main
main(["--help"])
main(["train", "--help"])
print("loaded:", *sorted({heavy!r} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1].strip() == "loaded:"
