"""Which form routing takes: the fast one, or the plain one in which every product of votes is a matrix product.

Both give the same values. The plain form is for counting multiply-adds and for comparing speeds. Dynamic routing takes
no notice of it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PLAIN: ContextVar[bool] = ContextVar("plain", default=False)


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
