"""The version of the code that a result rests on: a hash of what the code does.

It is taken over definitions (functions, classes, constants), not over files: those that a training or a table starts
from, and all that these name, directly or not, anywhere in the package. Into the hash of a definition goes its syntax
tree without docstrings, annotations of arguments and the words of errors and log messages, and what the names in it
stand for. So prose, moved files, and code that a run does not use leave its version as it is; a changed constant in a
loss changes the version of exactly the runs that use this loss.

Two things are not seen: what is looked up by a name that is made at run time (a run's network, routing, loss, data set
are therefore named as starting points), and what other packages do (their versions are in run.yaml).
"""

import ast
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from capsbench.registry import MODELS, PROTOCOLS, Options
from capsbench.study import Data, Run

PACKAGE = Path(__file__).parents[1]
# They carry values, messages and files, and do not bear on numbers: a run's configuration has a hash of its own.
_NOT_FOLLOWED = (
    "capsbench.errors",
    "capsbench.registry",
    "capsbench.study",
    "capsbench.run.tracking",
    "capsbench.run.provenance",
    "capsbench.run.folder",
    "capsbench.run.device",
    "capsbench.run.code_version",
    "capsbench.data.catalogue",
)
_LOGGERS = ("log", "logging", "warnings")

Definition = tuple[str, str]  # module, name


def training_version(run: Run) -> str:
    """Return the version of all code that decides the outcome of a training."""
    return code_version("capsbench.run.train:train", *_chosen(run), *_of_data(run.data))


def evaluation_version(run: Run) -> str:
    """Return the version of all code that decides the evaluations of a run."""
    protocols = [PROTOCOLS[name].factory for name in PROTOCOLS.names()]
    return code_version("capsbench.evaluation:evaluate", *protocols, *_chosen(run), *_of_data(run.data))


def data_version(data: Data) -> str:
    """Return the version of all code that checks and counts a data set."""
    return code_version("capsbench.data.prepare:prepare", *_of_data(data))


def content_version(name: str) -> str:
    """Return a hash of what stands in a file of the package: of a YAML file its values, comments aside."""
    text = (PACKAGE / name).read_text(encoding="utf-8")
    content = json.dumps(yaml.safe_load(text), sort_keys=True) if name.endswith(".yaml") else text
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def code_version(*roots: str | Callable[..., Any]) -> str:
    """Return the version of the code behind some functions and classes, each itself or as "module:name"."""
    return _version(tuple(sorted({_definition(root) for root in roots})))


@functools.cache
def _version(roots: tuple[Definition, ...]) -> str:
    hashes = sorted(_own_hash(definition) for definition in _reachable(roots))
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:16]


def _chosen(run: Run) -> list[Callable[..., Any]]:
    """Return what the options of a run name: its network, its routing, its loss, ..."""

    def within(options: Options) -> list[Callable[..., Any]]:
        inner = [value for _, value in options if isinstance(value, Options)]
        own = options.registry[options.name].factory
        return [own, *(found for group in inner for found in within(group))]

    return within(MODELS.options(run.model)(**run.options))


def _of_data(data: Data) -> list[Callable[..., Any]]:
    facts = data.facts
    parts = (facts.read, facts.read_test, facts.select, facts.task)
    return [part for part in parts if part is not None]


def _definition(root: str | Callable[..., Any]) -> Definition:
    if isinstance(root, str):
        module, _, name = root.partition(":")
        found = _meaning(module, name)  # a package may import it from the file that defines it
        assert isinstance(found, tuple), f"no definition {root}"
        return found
    root = getattr(root, "func", root)  # of a functools.partial
    return root.__module__, root.__qualname__.split(".")[0]


def _reachable(roots: Iterable[Definition]) -> set[Definition]:
    found: set[Definition] = set()
    waiting = list(roots)
    while waiting:
        definition = waiting.pop()
        if definition not in found:
            found.add(definition)
            waiting += [target for target in _names(definition).values() if isinstance(target, tuple)]
    return found


@functools.cache
def _own_hash(definition: Definition) -> str:
    """Hash one definition: its syntax tree, and what its names stand for."""
    module, name = definition
    trees = [ast.dump(tree) for tree in _module(module).definitions[name]]
    meanings = [
        f"{used}={target if isinstance(target, str) else _tree_hash(target)}"
        for used, target in sorted(_names(definition).items())
    ]
    return hashlib.sha256("\n".join([*trees, *meanings]).encode()).hexdigest()


def _tree_hash(definition: Definition) -> str:
    module, name = definition
    return hashlib.sha256("\n".join(ast.dump(t) for t in _module(module).definitions[name]).encode()).hexdigest()


@functools.cache
def _names(definition: Definition) -> Mapping[str, Definition | str]:
    """Return what the names in a definition stand for: definitions of the package, or names of other packages."""
    module, name = definition
    source = _module(module)
    found: dict[str, Definition | str] = {}
    for tree in source.definitions[name]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):  # module.name
                target = source.imports.get(node.value.id)
                if target is not None and target in _modules() and node.attr in _module(target).definitions:
                    found[f"{node.value.id}.{node.attr}"] = (target, node.attr)
            if isinstance(node, ast.Name) and (meaning := _meaning(module, node.id)) is not None:
                found[node.id] = meaning
    found.pop(name, None)
    return found


def _meaning(module: str, name: str) -> Definition | str | None:
    """Return what a name stands for in a module; None for local names, builtins, and what is not followed."""
    source = _module(module)
    if name in source.definitions:
        return module, name
    imported = source.imports.get(name)
    if imported is None or imported.startswith(_NOT_FOLLOWED):
        return None
    home, _, original = imported.rpartition(".")
    if imported in _modules():
        return None  # a module of the package: its attributes are followed one by one
    if home in _modules():
        return _meaning(home, original)  # through a package's __init__ to where it is defined
    return imported


class _Module:
    """The definitions of one file, each with its syntax trees, and its imports as name -> dotted name."""

    def __init__(self, path: Path):
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, str] = {}
        effects: list[ast.stmt] = []  # statements that define nothing act on all definitions of the file
        for node in _Essence().visit(ast.parse(path.read_text(encoding="utf-8"))).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add_import(node)
            elif names := _defined(node):
                for name in names:
                    self.definitions.setdefault(name, []).append(node)
            else:
                effects.append(node)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):  # imports inside functions
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add_import(node)
        for trees in self.definitions.values():
            trees.extend(effects)

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                self.imports[alias.asname or alias.name.split(".")[0]] = alias.name
            elif node.module:
                self.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign():
            return [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        case ast.AnnAssign() | ast.AugAssign():
            return [node.target.id] if isinstance(node.target, ast.Name) else []
    return []


class _Essence(ast.NodeTransformer):
    """Takes out of a syntax tree what does nothing: docstrings, annotations of arguments, words of messages."""

    def visit(self, node: ast.AST) -> Any:
        node = super().generic_visit(node)
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, block, None), list):
                setattr(node, block, [s for s in statements if not _is_prose(s)])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.decorator_list = [d for d in node.decorator_list if not _registers(d)]
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                node.returns = None
            case ast.arg():
                node.annotation = None
            case ast.Raise(exc=ast.Call(func=function)):
                node.exc = function
        return node


def _registers(decorator: ast.expr) -> bool:
    """Tell whether a decorator gives a name and a title, as @MODELS.register("capsnet", title="CapsNet") does."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(function, ast.Attribute) and function.attr == "register"


def _is_prose(statement: ast.stmt) -> bool:
    """Tell whether a statement is a docstring, another bare constant, or a message to a logger."""
    match statement:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in _LOGGERS
    return False


@functools.cache
def _module(name: str) -> _Module:
    return _Module(_modules()[name])


@functools.cache
def _modules() -> Mapping[str, Path]:
    """Return the files of the package by module."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("capsbench", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found
