"""Memory that is kept for the next tensor.

glibc maps each block above 32 MB anew and gives it back at once, so that every step of a large network's training
faults its tensors in page by page. With three settings of `mallopt(3)` blocks come from the heap, and what is freed
stays. The process then holds its peak until it ends, and no number changes.
"""

import ctypes
import platform

# of malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_LARGEST = 2**31 - 1  # mallopt takes an int
_GROWTH = 64 * 2**20


def keep_memory() -> bool:
    """Let this process keep the memory that it frees; returns whether its C library does so.

    Only glibc does. It is safe to call again.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _LARGEST), (_TOP_PAD, _GROWTH))
    return all(mallopt(name, value) == 1 for name, value in settings)
