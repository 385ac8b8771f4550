"""What a number rests on: commit, versions, machine."""

import importlib.metadata
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "mlflow", "snakemake")


def commit() -> str:
    """Return the git commit of the code, with `+changes` where package files differ from it, or `unknown`."""
    root = Path(__file__).parent
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return "unknown"
    changed = _git(root, "status", "--porcelain", "--", ".")
    return head + ("+changes" if changed else "")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def system() -> dict[str, Any]:
    """Return the operating system and architecture."""
    return {"system": platform.system(), "release": platform.release(), "architecture": platform.machine()}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
