"""Results of functions that docs/generate.py calls again and again on the same committed files."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def remembered(*names: str) -> Callable[[Callable[[Path, str], T]], Callable[[Path, str], T]]:
    """Compute a function of the folder of references and of a study once, until a file that it reads is written anew.

    names: the files, in the folder of the study. Callers share what is returned, so they must not change it.
    """

    def decorate(function: Callable[[Path, str], T]) -> Callable[[Path, str], T]:
        found: dict[tuple[Any, ...], T] = {}

        @wraps(function)
        def remembering(reference: Path, study: str) -> T:
            key = (reference, study, *(_state(reference / study / name) for name in names))
            if key not in found:
                found[key] = function(reference, study)
            return found[key]

        return remembering

    return decorate


def _state(path: Path) -> tuple[int, int, int] | None:
    if not path.exists():
        return None
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
