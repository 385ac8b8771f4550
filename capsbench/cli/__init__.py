"""The command line: one command per stage."""

from capsbench.cli.commands import main

__all__ = ["main"]
