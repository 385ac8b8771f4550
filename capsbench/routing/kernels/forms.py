"""Which form routing takes: the fast one, or the plain one in which every product of votes is a matrix product.

Both give the same values. The plain form is for counting multiply-adds and for comparing speeds. On a CPU dynamic
routing takes no notice of it. For counting bytes, the kernels of EM routing are named in place of run.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor

Launches = Callable[[str, list[Tensor]], None]  # is told the name and the operands of a kernel

_PLAIN: ContextVar[bool] = ContextVar("plain", default=False)
_LAUNCHES: ContextVar[Launches | None] = ContextVar("launches", default=None)


@contextmanager
def plain_forms() -> Iterator[None]:
    """Let routing take the plain form meanwhile."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def takes_plain_forms() -> bool:
    """Tell whether routing takes the plain form."""
    return _PLAIN.get()


@contextmanager
def launches_counted(count: Launches) -> Iterator[None]:
    """Let EM routing of matrix capsules take its kernels, on any device, and tell `count` of each in place of a run.

    What the kernels would have written is undefined: shapes alone are right.
    """
    token = _LAUNCHES.set(count)
    try:
        yield
    finally:
        _LAUNCHES.reset(token)


def counts_launches() -> Launches | None:
    """Return what is told of kernels in place of a run, or None where they run."""
    return _LAUNCHES.get()
