"""What a number rests on: commits, versions, machine, the images that were drawn, memory.

Functions named `note_...` write into a record and do nothing else: the version of the code leaves out the statements
that call them, so that what is noted never makes a finished run train again.
"""

import copy
import hashlib
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsbench.run.folder import sha256
from capsbench.run.memory import keep_memory

if TYPE_CHECKING:
    import torch

    from capsbench.study import Run

_STUDY: ContextVar[Path | None] = ContextVar("study file", default=None)
_DECIDING = ("commit", "versions", "machine")  # parts of a training that share them are one
_OF_A_SEGMENT = ("started", *_DECIDING)
PACKAGES = ("torch", "torchvision", "numpy", "scikit-learn", "mlflow", "snakemake")


def commit() -> str:
    """Return the git commit of the code, with `+changes` where package files differ from it, or `unknown`."""
    root = Path(__file__).parents[1]
    head = git(root, "rev-parse", "HEAD")
    if head is None:
        return "unknown"
    changed = git(root, "status", "--porcelain", "--", ".")
    return head + ("+changes" if changed else "")


def short(commit: object) -> str:
    """Return a commit as people name it: its first twelve letters, with `+changes` where that follows."""
    head, plus, changes = str(commit or "unknown").partition("+")
    return head[:12] + plus + changes


@contextmanager
def study_file(path: Path) -> Iterator[None]:
    """Let `study_commit` speak of this study file."""
    token = _STUDY.set(path)
    try:
        yield
    finally:
        _STUDY.reset(token)


def study_commit() -> str:
    """Return the git commit that the study file is at.

    It is the commit checked out where the file is, with `+changes` where the file differs from it or is not in it, or
    `unknown` outside git and where no study file is known (see `study_file`).
    """
    path = _STUDY.get()
    if path is None:
        return "unknown"
    path = path.resolve()
    head = git(path.parent, "rev-parse", "HEAD")
    if head is None:
        return "unknown"
    changed = git(path.parent, "status", "--porcelain", "--ignored", "--", path.name)
    return head + ("" if changed == "" else "+changes")


def note_start(record: dict[str, Any], device: "torch.device") -> None:
    """Forget what other trainings of this process held on a GPU, and note whether a CPU's memory is kept."""
    if device.type == "cpu":
        record["machine"]["memory_kept"] = keep_memory()
    else:
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def note_segment(record: dict[str, Any], segments: list[dict[str, Any]], epoch: int, over: bool) -> None:
    """Note with what a training goes on, where that is not what it went on with before an interruption.

    run.yaml then speaks of the start, and names the other parts under `segments`. What is only written again from its
    checkpoint is no part of the training.

    Args:
        record: of the run, were it to start now.
        segments: of the training so far; the one that starts now is added.
        epoch: after which it goes on.
        over: whether there is nothing left to train.
    """
    now = {name: record[name] for name in _OF_A_SEGMENT}
    known = bool(segments) or epoch == 0  # checkpoints of before this was noted say nothing
    last = segments[-1] if segments else None
    if not over and (last is None or any(last[name] != now[name] for name in _DECIDING)):
        segments.append(copy.deepcopy({"after_epoch": epoch, **now}))
    if known and segments:
        record |= copy.deepcopy({name: segments[0][name] for name in _OF_A_SEGMENT})
    if len(segments) > 1:
        record["segments"] = copy.deepcopy(segments)


def machines(record: Mapping[str, Any]) -> str:
    """Return in a line on what a run was trained, part by part: processor or GPU, versions of torch and Python."""
    parts = record.get("segments") or [record]
    return ", then ".join(dict.fromkeys(_machine(part) for part in parts))


def _machine(part: Mapping[str, Any]) -> str:
    versions = part["versions"]
    packages = (f"{name} {versions[name]}" for name in ("torch", "python") if name in versions)
    return ", ".join([str(part["machine"].get("device", "unknown")), *packages])


def note_peak_memory(record: dict[str, Any], device: "torch.device") -> None:
    """Note `peak_memory_mb` (2^20 bytes) and what it is of.

    On a GPU it is the most that tensors held at once (torch.cuda.max_memory_allocated) since `note_start`. On the CPU
    it is the most that the process had in memory since it started, Python and its libraries (about 400 MB) and the
    data included; a process that trains several runs gives each of them the highest so far.
    """
    if device.type == "cuda":
        import torch

        peak, of = torch.cuda.max_memory_allocated(device), "tensors on the GPU"
    else:
        found = _most_resident()
        if found is None:
            return
        peak, of = found, "the whole process"
    record["peak_memory_mb"], record["peak_memory_of"] = round(peak / 2**20, 1), of


def note_multiply_adds(record: dict[str, Any], run: "Run") -> None:
    """Note `multiply_adds` of the forward pass of one image at test, counted on a network of its own on the CPU."""
    import torch

    from capsbench.models import build_model
    from capsbench.run.multiply_adds import count_multiply_adds

    # drawing the weights of that network leaves the draws of the run as they are; a count that fails stops no run
    with torch.random.fork_rng(devices=[]), suppress(ValueError, RuntimeError):
        model = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)
        record["multiply_adds"] = count_multiply_adds(model, run.data.image_shape)


def note_split(
    record: dict[str, Any], run: "Run", train_indices: "torch.Tensor", validation_indices: "torch.Tensor"
) -> None:
    """Note which images a run was trained and validated on.

    `shown`: for each of the two a sha256 of the training set's fingerprint and the indices of the images in it.
    `validation_by`: whether validation shows other objects than training (`object`), or other pairs or images of the
    same ones (`pair`, `image`); None without a validation set.
    """
    found: dict[str, Any] = record["data"]
    parts = {"train": train_indices, "validation": validation_indices}
    found["shown"] = {
        name: hashlib.sha256(f"{found['fingerprint']} {indices.tolist()}".encode()).hexdigest()
        for name, indices in parts.items()
        if len(indices)
    }
    by = getattr(run.data.options, "validation_by", "image")
    found["validation_by"] = by if len(validation_indices) else None


def note_files(record: dict[str, Any], *paths: Path) -> None:
    """Note the sha256 of files of the run, by name."""
    record["files"] = {**record.get("files", {}), **{path.name: sha256(path) for path in paths if path.exists()}}


def _most_resident() -> int | None:
    """Return the most bytes that this process had in memory, or None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


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


def git(folder: Path, *arguments: str) -> str | None:
    """Return what a git command prints in a folder, or None where it fails or there is no git."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
