"""The command line: one command per stage."""

import sys
from collections.abc import Sequence

from capsbench.cli.worker import run_in_worker

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code: 0, 1 for a failed run, 2 for bad input, 130 for Ctrl-C.

    A command of a workflow runs in a child of its worker, see `capsbench.cli.worker`.
    """
    if arguments is None and (status := run_in_worker(sys.argv[1:])) is not None:
        return status
    from capsbench.cli.commands import main as run

    return run(arguments)
