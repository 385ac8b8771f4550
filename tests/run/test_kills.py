"""A process that is killed at any write, or at any moment, leaves nothing that the next one cannot go on from."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import metrics, run_of

from capsbench.run.folder import RunFolder


class Killable:
    """The process that trains and evaluates in children, see killed.py."""

    def __init__(self, tmp_path: Path):
        self.run = run_of(tmp_path, epochs=2)
        command = [sys.executable, Path(__file__).with_name("killed.py"), tmp_path / "study.yaml", self.run.key]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def go(self, results: Path, number: int = 0, when: str = "never") -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(number, when, results, file=self.process.stdin, flush=True)
        return int(next(line for line in iter(self.process.stdout.readline, "") if re.fullmatch(r"-?\d+\n", line)))


def contents(folder: RunFolder) -> dict[str, object]:
    """What a run left, without times and what says when it was made."""
    made = {path.name: path.read_bytes() for path in folder.path.rglob("*.npz")} | {"metrics": metrics(folder)}
    made["model.pt"] = folder.model_path.read_bytes()
    for path in folder.path.glob("evaluations/*.json"):
        found = json.loads(path.read_text())
        made[path.name] = {name: value for name, value in found.items() if name not in ("training_started", "checksum")}
    return made


@pytest.mark.slow
def test_a_kill_at_every_second_write_changes_nothing(tmp_path):
    series = Killable(tmp_path)
    writes = series.go(tmp_path / "whole")
    folder = RunFolder.of(tmp_path / "whole", series.run.study, series.run.key)
    whole = contents(folder)
    assert writes > 15 and len(whole) == 7, (writes, list(whole))
    for number in range(1, writes + 1, 2):  # after one is as good as before the next
        results = tmp_path / str(number)
        assert series.go(results, number, "before") == -1
        assert series.go(results) >= 0
        assert contents(RunFolder.of(results, series.run.study, series.run.key)) == whole, number
    series.process.communicate()


@pytest.mark.slow
def test_a_second_kill_on_the_way_on_from_the_first_changes_nothing(tmp_path):
    series = Killable(tmp_path)
    series.go(tmp_path / "whole")
    whole = contents(RunFolder.of(tmp_path / "whole", series.run.study, series.run.key))
    rng = random.Random(20261122)
    for number in rng.sample(range(1, 12), 4):
        results = tmp_path / str(number)
        assert series.go(results, 6, "after") == -1
        assert series.go(results, number, rng.choice(["before", "after"])) == -1
        assert series.go(results) >= 0
        assert contents(RunFolder.of(results, series.run.study, series.run.key)) == whole, number
    series.process.communicate()
