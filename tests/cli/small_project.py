"""A project with two small studies, and the command line as a process."""

import subprocess
import sys

STUDY = """\
name: small
seeds: [0, 1]
experiments:
  digits: {data: {name: digits}}
variants:
  capsnet: {model: capsnet, grid: {routing.iterations: [1, 3]}}
"""
KEYS = [f"digits/capsnet-iterations{i}/seed{s}" for i in (1, 3) for s in (0, 1)]


def capsbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "capsbench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
