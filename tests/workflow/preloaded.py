"""Snakemake in a process that has imported before what takes longest, which is nothing of the project."""

import atexit
import functools
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "pandas", "pydantic", "snakemake.cli"])


def run_module(name: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], said: Path) -> int:
    """Run `python -m name arguments`; return its exit status, and write into the file `said` what it prints.

    Where it differs: the seed of hashes is one for all in a test session, and there is no PYTHONPATH.
    """
    path = [str(folder), *_path_of_a_new_process()]
    process = _context.Process(target=_run, args=(name, list(arguments), folder, dict(environment), path, said))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


@functools.cache
def _path_of_a_new_process() -> list[str]:
    """Return where a process finds modules after its own folder: pytest has added folders of tests."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    found: list[str] = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    return found


def _run(
    name: str, arguments: list[str], folder: Path, environment: dict[str, str], path: list[str], said: Path
) -> None:
    with said.open("wb") as printed, Path(os.devnull).open("rb") as nothing:
        for stream, file in enumerate((nothing, printed, printed)):
            os.dup2(file.fileno(), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv, sys.path[:] = [name, *arguments], path
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
