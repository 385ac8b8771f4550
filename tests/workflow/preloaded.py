"""Snakemake in a process that has imported before what takes longest, which is nothing of the project."""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TESTS = str(Path(__file__).parents[1])
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "pandas", "pydantic", "snakemake.cli"])


def run_module(name: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], said: Path) -> int:
    """Run `python -m name arguments`; return its exit status, and write into the file `said` what it prints."""
    process = _context.Process(target=_run, args=(name, list(arguments), folder, dict(environment), said))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def _run(name: str, arguments: list[str], folder: Path, environment: dict[str, str], said: Path) -> None:
    with said.open("wb") as printed, Path(os.devnull).open("rb") as nothing:
        for stream, file in enumerate((nothing, printed, printed)):
            os.dup2(file.fileno(), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [name, *arguments]
    sys.path[:] = [str(folder), *(path for path in sys.path if path and not path.startswith(TESTS))]
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
