"""What the command line tells people: messages, one-line errors, exit codes.

Messages go through logging, under the logger `capsbench`: plain lines on stdout, errors on stderr.
"""

import errno
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import click

from capsbench.errors import InputError, RunError

log = logging.getLogger("capsbench")

_CLEAR_LINE = "\r\x1b[K"


class Session:
    """What --debug and --log say for one call of the command line."""

    def __init__(self) -> None:
        self.debug = False
        self.handlers: list[logging.Handler] = [_Terminal()]

    def add_log_file(self, path: Path) -> None:
        """Send all messages to a file too, after what it holds. Raises InputError where it cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_fifo():  # without a reader it would be waited for, for ever
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            handler = _LogFile(path, encoding="utf-8")
        except OSError as error:
            problem = "nobody reads from this FIFO" if error.errno == errno.ENXIO else error.strerror
            raise InputError(f"--log {path}: cannot be written: {problem}") from None
        self.handlers[0].addFilter(lambda record: not getattr(record, "detail", False))
        self.handlers.append(handler)
        log.addHandler(handler)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Show the messages of the package while this lasts."""
        level, propagate = log.level, log.propagate
        log.setLevel(logging.INFO)
        log.propagate = False  # a package that configures the root logger would print each message a second time
        log.addHandler(self.handlers[0])
        try:
            yield
        finally:
            for handler in self.handlers:
                log.removeHandler(handler)
                with suppress(OSError):  # a full disk, which a message has named
                    handler.close()
            log.setLevel(level)
            log.propagate = propagate


class _Terminal(logging.Handler):
    """Prints messages to stdout, errors to stderr, whatever these are at the time.

    A message with the attribute `passing` is one that the next replaces: on a terminal it has no line of its own. One
    with the attribute `detail` is left to the file where there is one.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message."""
        stream = sys.stderr if record.levelno >= logging.ERROR else sys.stdout
        text = self.format(record)
        start, end = "", "\n"
        if stream.isatty():
            start = _CLEAR_LINE  # what was written last may be a passing message, of this or of another process
            if getattr(record, "passing", False):
                text, end = text[: shutil.get_terminal_size().columns - 1], ""
        try:
            print(start + text, end=end, file=stream, flush=True)
        except BrokenPipeError:  # `capsbench train ... | head`: nobody reads on, which is no reason to stop training
            _discard(stream)


class _LogFile(logging.FileHandler):
    """Adds messages to a file. A file that can no longer be written stops no command."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Say in one line that the file ends here."""
        log.removeHandler(self)
        log.error(f"capsbench: --log {self.baseFilename}: cannot be written any more: {sys.exc_info()[1]}")


class Group(click.Group):
    """A group of commands whose errors name what there is."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **{"no_args_is_help": False, **options})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of use, which is that of the file."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse a call without a command."""
        if not args:
            raise click.UsageError(f"COMMAND is missing; there are {', '.join(self.list_commands(ctx))}", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by name; one that is mistyped gets a suggestion."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from capsbench.registry import no_such

            raise click.UsageError(no_such("command", args[0], self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)


class GroupWithDefault(Group):
    """A group that calls one of its commands where none is named."""

    def __init__(self, *arguments: Any, default: str, **options: Any):
        super().__init__(*arguments, **options)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default before options, and where there is nothing."""
        named = bool(args) and (not args[0].startswith("-") or args[0] in self.get_help_option_names(ctx))
        return super().parse_args(ctx, args if named else [self.default, *args])


def run_command_line(group: click.Group, arguments: Sequence[str] | None) -> int:
    """Run a command; return its exit code: 0, 1 for a failed run, 2 for bad input, 130 for Ctrl-C."""
    session = Session()
    given = sys.argv[1:] if arguments is None else list(arguments)
    with session.listening():
        try:
            with group.make_context("capsbench", given, obj=session) as ctx:
                group.invoke(ctx)
        except click.exceptions.Exit as ending:  # --help, --version
            return ending.exit_code
        except BrokenPipeError:  # `capsbench --help | head`
            _discard(sys.stdout)
        except click.UsageError as error:
            line = f"{_usage_problem(error)} see '{_command_path(group, given)} --help'"
            log.error(f"capsbench: {line}", exc_info=session.debug)
            return 2
        except (Exception, KeyboardInterrupt) as error:
            line, code = _line_and_code(error)
            log.error(f"capsbench: {' '.join(line.splitlines())}", exc_info=session.debug)
            return code
    return 0


def _line_and_code(error: BaseException) -> tuple[str, int]:
    """Return what an error is in one line, and the exit code that goes with it."""
    match error:
        case InputError():
            return str(error), 2
        case RunError():
            return str(error), 1
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return f"{place}{error.strerror or error}", 1
        case KeyboardInterrupt():
            return "interrupted; run the same command again to continue", 130
    problem = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{problem} (this is probably a bug in capsbench; --debug shows the traceback)", 1


def _usage_problem(error: click.UsageError) -> str:
    if isinstance(error, click.NoSuchOption):
        near = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
        text = f"no option '{error.option_name}'{near}"
    else:
        text = error.format_message().rstrip(".")
    text = text if text.startswith("COMMAND") else text[:1].lower() + text[1:]
    return text if text.endswith("?") else f"{text};"


def _command_path(group: click.Group, arguments: Sequence[str]) -> str:
    """Return the command that arguments call; click does not know it where its parser fails."""
    path, command = "capsbench", group
    for argument in arguments:
        if isinstance(command, GroupWithDefault) and argument.startswith("-"):
            return f"{path} {command.default}"
        if not isinstance(command, click.Group) or argument not in command.commands:
            break
        path, command = f"{path} {argument}", command.commands[argument]  # type: ignore[assignment]
    return path


def _discard(stream: Any) -> None:
    """Let what is still written to a stream that nobody reads go nowhere, the last flush of Python included."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def unknown_name(kind: str, name: str, known: Sequence[str], where: str = "") -> NoReturn:
    """Raise the InputError for a name that does not exist; where: what the line starts with."""
    from capsbench.registry import no_such

    raise InputError(f"{where}{no_such(kind, name, list(known))}")
