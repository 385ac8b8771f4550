import logging
import subprocess
import sys
from pathlib import Path

import pytest
from small_project import KEYS

from capsbench.cli import commands as cli
from capsbench.cli import main


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


def test_details_are_on_the_terminal_where_there_is_no_file(capsys, monkeypatch):
    def speak(study: str):
        cli.log.info(study, extra={"detail": True})
        raise cli.InputError("the end")

    monkeypatch.setattr(cli, "load_study", speak)
    for arguments, out in (([], "small\n"), (["--log", "a.log"], "")):
        main(["config", "show", "small", *arguments])
        assert capsys.readouterr().out == out
    assert Path("a.log").read_text() == "small\ncapsbench: the end\n"


def test_nothing_of_a_call_is_left_in_logging():
    logger = logging.getLogger("capsbench")
    before = (list(logger.handlers), logger.level, logger.propagate)
    assert main(["config", "show", "bad", "--log", "a.log"]) == 2
    assert (list(logger.handlers), logger.level, logger.propagate) == before


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
