"""How much memory a process, or the GPU, has needed so far."""

import resource
import sys

import torch


def peak_bytes(device: str) -> float:
    """Return the peak of the process on `cpu`, of torch's allocations on `cuda`, in bytes."""
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024  # Linux counts in kilobytes
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
