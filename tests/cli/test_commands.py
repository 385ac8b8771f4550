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

COMMANDS = {
    "init", "config", "config show", "config schema", "models", "data", "data fetch", "data prepare", "data card",
    "data clean",
    "train", "evaluate", "status", "plan", "reproduce", "redo", "clean", "track",
    "tables", "plots", "report", "reference", "verify", "bundle", "bench", "bench all", "bench routing",
    "bench networks", "bench routings",
}  # fmt: skip


def found_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from found_commands(command, (*path, name))


FOUND = dict(found_commands(cli.capsbench))
ALL = {"": cli.capsbench, **FOUND}
LEAVES = [path for path, command in FOUND.items() if not isinstance(command, click.Group)]


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
