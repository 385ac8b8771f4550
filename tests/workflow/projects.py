"""A copy of the project in which files can be changed, the package too where it is copied with it."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from preloaded import run_module

from capsbench.cli.worker import VARIABLE

ROOT = Path(__file__).parents[2]
STUDY = """
name: tiny
seeds: [0]
training: {epochs: 1, batch_size: 32, device: cpu}
experiments:
  digits:
    data: {name: digits, train_images: 64, validation_images: 50}
variants:
  caps: {model: capsnet, options: {conv_channels: 4, primary_types: 1}}
  cnn: {model: cnn_matched, options: {matched_to: {name: resnet20, widths: [4, 16]}}}
"""
LEAN = STUDY + "plots: []\ntracking: false\n"  # for tests of something else, as both take longer than the training


class Ended(NamedTuple):
    """What a process left: its exit status, and what it printed."""

    returncode: int
    output: str


class Project:
    """A copy of the project in which files can be changed.

    It runs the installed package, whose commands run in the worker of the test session where that has one.
    `own_worker`: the workflow starts its own.
    """

    def __init__(self, path: Path, *, own_worker: bool = False):
        self.path, self._own_worker = path, own_worker

    @classmethod
    def create(cls, path: Path, study: str = STUDY, *, own_worker: bool = False) -> "Project":
        for name in ("Snakefile", "workflow", "profiles", "configs"):
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
            copy(ROOT / name, path / name)
        project = cls(path, own_worker=own_worker)
        project.write_study(study)
        return project

    def copy(self, path: Path, *, own_worker: bool = False) -> "Project":
        shutil.copytree(self.path, path, dirs_exist_ok=True)
        return Project(path, own_worker=own_worker)

    def with_package(self) -> "Project":
        """Copy the package too, so that it can be changed; the workflow runs this one then, in a worker of its own."""
        if not (self.path / "capsbench").exists():
            shutil.copytree(ROOT / "capsbench", self.path / "capsbench", ignore=shutil.ignore_patterns("*.pyc.*"))
        self._own_worker = True
        return self

    def write_study(self, text: str) -> None:
        (self.path / "study.yaml").write_text(text)

    def start(self, *arguments: str, study: str = "study.yaml", own_group: bool = False) -> subprocess.Popen:
        """Start Snakemake as a process of its own, which can be killed."""
        return subprocess.Popen(
            [sys.executable, "-m", "snakemake", *_arguments(arguments, study)], cwd=self.path, env=self._environment(),
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=own_group,
        )  # fmt: skip

    def snakemake(self, *arguments: str, study: str = "study.yaml", more: Sequence[str] = (), gpus: str = "") -> Ended:
        """Run to the end, in a process that has imported Snakemake and torch before."""
        with tempfile.TemporaryDirectory() as folder:
            said = Path(folder, "said.txt")
            given, environment = _arguments(arguments, study, more), self._environment(gpus)
            status = run_module("snakemake", given, self.path, environment, said)
            return Ended(status, said.read_text())

    def _environment(self, gpus: str = "") -> dict[str, str]:
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},  # the code beside it runs
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "CUDA_VISIBLE_DEVICES": gpus,
        }
        if self._own_worker:
            environment.pop(VARIABLE, None)
        return environment

    def capsbench(self, *arguments: str) -> str:
        """Run a command of the package to its end and return what it prints."""
        environment = {**os.environ, "PYTHONPATH": str(self.path)}  # where its package is, if it has one
        command = [sys.executable, "-m", "capsbench", *arguments]
        return subprocess.run(
            command, cwd=self.path, env=environment, text=True, capture_output=True, check=True, timeout=120
        ).stdout

    def planned(self) -> dict[str, int]:
        """Return how often each rule would run now."""
        output = self.snakemake("--dry-run", "--quiet", "host").output
        table = re.search(r"job +count\n-+ +-+\n(.*?)\ntotal", output, re.S)
        if table is None:
            assert "Nothing to be done" in output, output
            return {}
        return {name: int(count) for name, count in (line.split() for line in table[1].splitlines())}


def _arguments(given: Sequence[str], study: str, more: Sequence[str] = ()) -> list[str]:
    return ["--cores", "2", *given, "--configfile", study, *more]
