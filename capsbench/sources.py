"""Which files of the package a stage rests on, for Snakemake's inputs: an edit of one reruns the stage.

Found by following imports, so that training rests on the one model that it trains and not on the plots.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parent
# they carry values and messages, and do not bear on results: a run's configuration is a parameter of its own
_NOT_FOLLOWED = {
    f"capsbench.{m}"
    for m in (
        "cli",
        "config",
        "study_file",
        "options",
        "data.catalogue",
        "errors",
        "tracking",
        "provenance",
        "device",
        "run_folder",
        "sources",
    )
}


def sources(*modules: str) -> list[str]:
    """Return the files of the named modules (capsbench.training, ...) and of all they import, sorted.

    Relative to the working folder where they are below it, so that a project that moves reruns nothing.
    """
    found: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in found and module not in _NOT_FOLLOWED and _file(module) is not None:
            found.add(module)
            waiting.extend(_imports(module))
    return sorted(source_path(path) for module in found if (path := _file(module)))


def training_sources(model: str, modules: Iterable[str]) -> list[str]:
    """Return the files that a training of a network rests on; modules: those that it loads by name."""
    return sources("capsbench.training", f"capsbench.models.{model}", *modules)


def content_hash(paths: list[str]) -> str:
    """Hash the contents of files: the same hash, the same code."""
    return hashlib.sha256(b"\0".join(Path(path).read_bytes() for path in paths)).hexdigest()[:16]


def source_path(path: Path) -> str:
    """Name a file of the package as Snakemake should know it: relative where it is below the working folder."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    path = _file(module)
    assert path is not None
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            # `from package import module` names a module, `from module import name` does not
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(n for n in names if n.startswith("capsbench."))


def _file(module: str) -> Path | None:
    base = PACKAGE.parent.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.exists():
            return path
    return None
