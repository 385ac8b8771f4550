"""Which device a run computes on."""

import getpass
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from capsbench.errors import InputError
from capsbench.run.memory import keep_memory

if TYPE_CHECKING:
    import torch

MOST_HOLDERS = 64  # runs that share a GPU


def count_gpus() -> int:
    """Count the NVIDIA GPUs of this machine without importing torch."""
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([d for d in visible.split(",") if d.strip() not in ("", "-1")])
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def has_gpu() -> bool:
    """Tell whether torch finds a GPU where `count_gpus` does, or elsewhere."""
    if count_gpus():
        return True
    import torch  # slow to import

    return torch.cuda.is_available()


def requested_gpus(device: str, elsewhere: bool = False) -> int:
    """Return how many GPUs a job asks for: one for `cuda`, whatever machine submits it; for `auto`, if there is one.

    Args:
        device: `training.device` of a study.
        elsewhere: the job runs on another machine, of which nothing is known here: `auto` asks for a GPU too.
    """
    return int(device == "cuda" or (device == "auto" and (elsewhere or count_gpus() > 0)))


def device_for(wanted: str) -> "torch.device":
    """Return the kind of device that `cpu`, `cuda` or `auto` stands for here; of several GPUs the first."""
    import torch

    on_cpu = wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available())
    return torch.device("cpu") if on_cpu else torch.device("cuda", 0)


@contextmanager
def claimed_device(wanted: str) -> Iterator["torch.device"]:
    """Claim the device to compute on: with several GPUs, the one that the fewest other runs hold.

    File locks count who holds a GPU. A process that computes on the CPU keeps the memory that it frees.

    Args:
        wanted: `cpu`, `cuda`, or `auto`: a GPU if there is one.

    Yields:
        The device.

    Raises:
        InputError: `cuda` is wanted and there is no GPU.
    """
    import torch

    if device_for(wanted).type == "cpu":
        keep_memory()
        yield torch.device("cpu")
        return
    if not torch.cuda.is_available():
        raise InputError("training.device is cuda, but torch sees no GPU here; use auto or cpu")
    with ExitStack() as held:
        with FileLock(_lock_path("gpus")):  # one run at a time looks and chooses
            holders = [_holders(_gpu_name(index)) for index in range(torch.cuda.device_count())]
            index = min(range(len(holders)), key=lambda each: len(holders[each]))
            place = next(number for number in range(MOST_HOLDERS + 1) if number not in holders[index])
            held.enter_context(FileLock(_lock_path(f"gpu{_gpu_name(index)}-{place}")))
        yield torch.device("cuda", index)


def _gpu_name(index: int) -> str:
    """Return the number of a GPU of this process as the machine counts them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[index].strip() if index < len(visible) and visible[index].strip() else str(index)


def _holders(gpu: str) -> set[int]:
    """Return which places of a GPU are held."""
    found = set()
    for place in range(MOST_HOLDERS):
        path = _lock_path(f"gpu{gpu}-{place}")
        if not path.exists():
            continue
        try:
            FileLock(path, blocking=False).acquire().lock.release()
        except Timeout:
            found.add(place)
    return found


def _lock_path(name: str) -> Path:
    return Path(tempfile.gettempdir()) / f"capsbench-{getpass.getuser()}-{name}.lock"


def describe(device: "torch.device") -> str:
    """Return the name of the processor or GPU, for provenance."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'CPU'}, {os.cpu_count()} cores"
