"""Ctrl-C where it must not come between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Let a Ctrl-C that comes while this lasts come at its end.

    torch calls Python from C++ as it writes a file: a KeyboardInterrupt there ends in an abort of the process, or in a
    RuntimeError about positions in the file. Nothing is held outside the main thread, which alone gets signals, nor
    where SIGINT is ignored or not Python's.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    came: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: came.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(signal.SIGINT, came[0])
