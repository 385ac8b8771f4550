"""Arguments and options that several commands have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from capsbench.cli.messages import Session
from capsbench.errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
LARGEST = 10**9  # of a count: torch takes no more than 63 bits, and no machine has the memory


class Count(click.ParamType[int]):
    """A positive whole number."""

    name = "N"

    def __init__(self, most: int | None = None):
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        digits = str(value)
        if not digits.isdecimal() or not digits.strip("0"):
            self.fail(f"'{digits[:30]}' is not a positive whole number", param, ctx)
        most = LARGEST if self.most is None else self.most
        if len(digits) > len(str(LARGEST)) or int(digits) > most:
            self.fail(f"{digits[:30]} is more than {most:,}", param, ctx)
        return int(digits)


class ImageShape(click.ParamType[tuple[int, ...]]):
    """Channels x height x width."""

    name = "CxHxW"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return (C, H, W)."""
        sizes = str(value).split("x")
        if len(sizes) != 3 or not all(size.isdecimal() and int(size) for size in sizes):
            self.fail(f"'{value}' is not channels x height x width, as 1x28x28", param, ctx)
        return tuple(map(int, sizes))


def common_options(function: Function) -> Function:
    """Give a command --log and --debug."""
    debug = click.option(
        "--debug", is_flag=True, is_eager=True, expose_value=False, callback=_set_debug, help="Show tracebacks."
    )
    log_file = click.option(
        "--log", type=click.Path(path_type=Path), metavar="FILE", is_eager=True, expose_value=False,
        callback=_set_log, help="Add all messages to FILE too; details are there alone.",
    )  # fmt: skip
    return log_file(debug(function))


def study_argument(function: Function) -> Function:
    """Give a command the argument STUDY."""
    return click.argument("study", metavar="STUDY", help="A study file, or the name of one in configs/.")(function)


def run_argument(function: Function) -> Function:
    """Give a command the argument RUN."""
    text = "EXPERIMENT/VARIANT/seedN, as 'capsbench config show' lists them."
    return click.argument("key", metavar="RUN", help=text)(function)


def run_option(function: Function) -> Function:
    """Give a command the argument RUN, which may be left out."""
    text = "EXPERIMENT/VARIANT/seedN (default: every run that is trained)."
    return click.argument("key", metavar="[RUN]", required=False, help=text)(function)


def results_option(function: Function) -> Function:
    """Give a command the option --results, and those that every command has."""
    text = "Folder of results (default: results)."
    option = click.option(
        "--results", type=PATH, default=Path("results"), metavar="DIR", callback=_check_results, help=text
    )
    return option(common_options(function))


def redrawn_options(function: Function) -> Function:
    """Give a command the argument STUDY, which --runs FILE makes optional, and the options of results."""
    text = "A study file, or the name of one in configs/ (with --runs by default study.yaml beside FILE)."
    argument = click.argument("study", metavar="[STUDY]", required=False, help=text)
    file = click.option(
        "--runs", "file", type=PATH, metavar="FILE", help="Read runs.csv of a reference; write beside it."
    )
    return argument(file(results_option(function)))


def unofficial_option(function: Function) -> Function:
    """Give a command the option --allow-unofficial."""
    return click.option("--allow-unofficial", is_flag=True, help="Accept files with another checksum.")(function)


def count_option(name: str, default: int | None, text: str, most: int | None = None) -> Callable[[Function], Function]:
    """Give a command an option whose value is a positive whole number."""
    shown = "" if default is None else f" (default: {default})"
    return click.option(name, type=Count(most), default=default, help=f"{text}{shown}.")


def _check_results(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """Refuse a folder that was named and is not there. A training makes its folder; all others only read runs."""
    named = ctx.get_parameter_source("results") is ParameterSource.COMMANDLINE
    if named and ctx.info_name != "train" and not value.is_dir():
        what = "not a folder" if value.exists() else "no such folder"
        raise InputError(f"--results {value}: {what}; it is the folder that 'capsbench train' wrote to")
    return value


def _set_debug(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.ensure_object(Session).debug = value


def _set_log(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).add_log_file(value)
