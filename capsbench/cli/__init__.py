"""The command line: one command per stage."""

from capsbench.cli.main import main

__all__ = ["main"]
