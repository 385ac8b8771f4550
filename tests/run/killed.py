"""Trains and evaluates a run in a child that is killed (SIGKILL) at the Nth time that a file gets its final name.

python killed.py STUDY KEY RESULTS: reads lines "N before", "N after" or "0 never" and answers each with how often files
got their names, or -1 for a child that was killed. The packages are imported once, and each child is forked from here.
"""

import gc
import os
import signal
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401 - which the first optimizer of a process imports, for longer than a run takes here

from capsbench.evaluation import evaluate
from capsbench.run.train import train
from capsbench.study import Run, load_plan

PROTOCOLS = ("accuracy", "confusion", "perturbation")


def killing(number: int, when: str) -> list[Path]:
    """Let the process die at the given renaming; returns the list of those that were made."""
    rename, made = Path.replace, []

    def replace(path: Path, target: Path) -> Path:
        made.append(target)
        if (len(made), when) == (number, "before"):
            os.kill(os.getpid(), signal.SIGKILL)
        renamed = rename(path, target)
        if (len(made), when) == (number, "after"):
            os.kill(os.getpid(), signal.SIGKILL)
        return renamed

    Path.replace = replace
    return made


def go(run: Run, results: Path, number: int, when: str) -> int:
    """Train and evaluate a run in a child -> how often files got their names, or -1 where it was killed."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        made = killing(number, when)
        train(run, results, Path("nowhere"), tracking=False)
        evaluate(run, results, Path("nowhere"), PROTOCOLS)
        os.write(writer, str(len(made)).encode())
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    answer = os.read(reader, 20)
    os.close(reader)
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL), status
    return int(answer) if answer else -1


if __name__ == "__main__":
    run = load_plan(Path(sys.argv[1])).cell(*sys.argv[2].split("/")[:2], int(sys.argv[2].rpartition("seed")[2]))
    gc.freeze()
    for line in sys.stdin:
        number, when, results = line.split()
        print(go(run, Path(results), int(number), when), flush=True)
