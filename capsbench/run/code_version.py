"""The version of the code that a result rests on: a hash of what the code does.

It is taken over definitions (functions, classes, constants), not over files: those that a training or a table starts
from, and all that these name, directly or not, anywhere in the package. Into the hash of a definition goes its syntax
tree without docstrings, annotations of arguments, the words of errors and log messages, and statements that only note
something in the record (`provenance.note_...`), and what the names in it stand for. So prose, moved files, and code
that a run does not use leave its version as it is; a changed constant in a loss changes the version of exactly the runs
that use this loss.

Not seen are: what is looked up by a name that is made at run time (a run's network, routing, loss and data set are
therefore named as starting points, and the facts of the data set are added); effects of importing a package, other
than those of the file of a definition; other packages (their versions are in run.yaml). Strings that only a person
reads count as code where they are not the argument of an error or of a log message.
"""

import ast
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from capsbench.registry import DECODERS, LOSSES, MODELS, PROTOCOLS, ROUTINGS, TRANSFORMS, Options
from capsbench.run.folder import parse_yaml
from capsbench.study import Data, Plan, Run, catalogue

PACKAGE = Path(__file__).parents[1]
# They carry values, messages and files, and do not change results: a run's configuration has a hash of its own.
_NOT_FOLLOWED = (
    "capsbench.errors",
    "capsbench.registry",
    "capsbench.study",
    "capsbench.run.tracking",
    "capsbench.run.store",
    "capsbench.run.progress",
    "capsbench.run.provenance",
    "capsbench.run.folder",
    "capsbench.run.device",
    "capsbench.run.record",
    "capsbench.run.shared",
    "capsbench.run.code_version",
    "capsbench.data.catalogue",
)
_LOGGING = ("debug", "info", "warning", "error")
_NOTES = "note_"  # functions of capsbench.run.provenance that write into run.yaml and change nothing else
_ONLY_NAMES = ("title", "published_on", "counts_steps", "one_class")  # told to `register` for people and for checks

Definition = tuple[str, str]  # module, name


def training_version(run: Run) -> str:
    """Return the version of all code that decides the outcome of a training."""
    return _with_facts(run.data, code_version("capsbench.run.train:train", *_chosen(run), *run.data.facts.functions))


def training_sources(run: Run) -> dict[str, str]:
    """Return the files behind `training_version`, each with a hash of what it has of that code."""
    parts: dict[str, list[str]] = {}
    for module, name in _reachable(_roots("capsbench.run.train:train", *_chosen(run), *run.data.facts.functions)):
        file = _modules()[module].relative_to(PACKAGE).as_posix()
        parts.setdefault(file, []).append(_tree_hash((module, name)))
    return {file: hashlib.sha256("\n".join(sorted(parts[file])).encode()).hexdigest()[:8] for file in sorted(parts)}


def evaluation_version(run: Run, protocols: Sequence[Options]) -> str:
    """Return the version of all code and options that decide the evaluations of a run under some protocols."""
    measures = [PROTOCOLS[options.name].factory for options in protocols]
    code = code_version("capsbench.evaluation:evaluate", *measures, *_chosen(run), *run.data.facts.functions)
    return _with_facts(run.data, json.dumps([code, *(options.plain() for options in protocols)], sort_keys=True))


def shown_names(plan: Plan) -> str:
    """Return what tables and plots call the networks, data sets and parts of a study, and the table of each run."""
    named = {run.model: MODELS[run.model].title for run in plan.runs}
    named |= {data.name: data.facts.title for data in plan.data.values()}
    named |= {f"{r.kind} {name}": r[name].title for r in (ROUTINGS, LOSSES, TRANSFORMS) for name in r.names()}
    named |= {f"table of {run.experiment}": run.table for run in plan.runs}
    return json.dumps(named, sort_keys=True)


def data_version(data: Data) -> str:
    """Return the version of all code that checks and counts a data set."""
    return code_version("capsbench.data.prepare:prepare", *data.facts.functions)


def content_version(name: str) -> str:
    """Return a hash of what stands in a file of the package: of a YAML file its values, comments aside."""
    text = (PACKAGE / name).read_text(encoding="utf-8")
    content = json.dumps(parse_yaml(text), sort_keys=True) if name.endswith(".yaml") else text
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def code_version(*roots: str | Callable[..., Any]) -> str:
    """Return the version of the code behind some functions and classes, each itself or as "module:name"."""
    return _version(_roots(*roots))


def read_ahead() -> None:
    """Read the code that any training or evaluation may rest on, so that its versions are had at once afterwards."""
    registries = (MODELS, ROUTINGS, LOSSES, DECODERS, TRANSFORMS, PROTOCOLS)
    parts: list[Callable[..., Any]] = [registry[name].factory for registry in registries for name in registry.names()]
    for facts in catalogue().values():
        parts += facts.functions
    code_version("capsbench.run.train:train", "capsbench.evaluation:evaluate", *parts)


def _roots(*roots: str | Callable[..., Any]) -> tuple[Definition, ...]:
    return tuple(sorted({_definition(root) for root in roots}))


@functools.cache
def _version(roots: tuple[Definition, ...]) -> str:
    hashes = sorted(_own_hash(definition) for definition in _reachable(roots))
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:16]


def _with_facts(data: Data, version: str) -> str:
    """Add what the catalogue says of a data set and a training rests on."""
    facts = (version, data.image_shape, data.facts.num_classes, data.facts.objects, data.has_familiar_test)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _chosen(run: Run) -> list[Callable[..., Any]]:
    """Return what the options of a run name: its network, its routing, its loss, ..."""

    def within(options: Options) -> list[Callable[..., Any]]:
        inner = [value for _, value in options if isinstance(value, Options)]
        own = options.registry[options.name].factory
        return [own, *(found for group in inner for found in within(group))]

    return within(MODELS.options(run.model)(**run.options))


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
    meanings = [
        f"{used}={target if isinstance(target, str) else _tree_hash(target)}"
        for used, target in sorted(_names(definition).items())
    ]
    return hashlib.sha256("\n".join([_written(definition), *meanings]).encode()).hexdigest()


@functools.cache
def _tree_hash(definition: Definition) -> str:
    return hashlib.sha256(_written(definition).encode()).hexdigest()


def _written(definition: Definition) -> str:
    """Write the syntax trees of a definition; what acts on a whole file is in those of all its definitions."""
    module, name = definition
    return "\n".join(map(_written_tree, _module(module).definitions[name]))


@functools.cache
def _written_tree(tree: ast.stmt) -> str:
    return _dump(tree)


@functools.cache
def _names(definition: Definition) -> Mapping[str, Definition | str]:
    """Return what the names in a definition stand for: definitions of the package, or names of other packages."""
    module, name = definition
    source = _module(module)
    found: dict[str, Definition | str] = {}
    for tree in source.definitions[name]:
        for chain in _names_in(tree):
            if len(chain) > 1:
                found |= _through_modules(module, chain)
                continue
            (used,) = chain
            if (meaning := _meaning(module, used)) is not None:
                found[used] = meaning
                # try: from fast import f, except ImportError: def f(): both count
                if meaning == (module, used) and (other := _imported_meaning(module, used)) is not None:
                    found[f"{used} (imported)"] = other
    found.pop(name, None)
    return found


@functools.cache
def _names_in(tree: ast.stmt) -> frozenset[tuple[str, ...]]:
    """Return the names in a syntax tree, a as ("a",) and a.b.c as ("a", "b", "c"), ("a", "b") and ("a",)."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute))
    return frozenset(tuple(chain) for node in nodes if (chain := _chain(node)))


def _chain(node: ast.expr) -> list[str]:
    """Return the names of a.b.c, or nothing where it does not start with a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := _chain(node.value)):
        return [*before, node.attr]
    return []


def _through_modules(module: str, chain: tuple[str, ...]) -> dict[str, Definition | str]:
    """Return what `layers.transforms.FullTransform` stands for, where `layers` is an imported module of the package."""
    place = _module(module).imports.get(chain[0], "")
    for length, attribute in enumerate(chain[1:], start=2):
        if place not in _modules() or place.startswith(_NOT_FOLLOWED):
            return {}
        if f"{place}.{attribute}" in _modules():
            place = f"{place}.{attribute}"
            continue
        meaning = _meaning(place, attribute)
        return {".".join(chain[:length]): meaning} if meaning is not None else {}
    return {}


def _meaning(module: str, name: str) -> Definition | str | None:
    """Return what a name stands for in a module; None for local names, builtins, and what is not followed."""
    return (module, name) if name in _module(module).definitions else _imported_meaning(module, name)


def _imported_meaning(module: str, name: str) -> Definition | str | None:
    """Return what an imported name stands for, as `_meaning` does."""
    source = _module(module)
    imported = source.imports.get(name)
    if imported is None:
        found = (_meaning(star, name) for star in source.stars if star in _modules())
        return next((meaning for meaning in found if meaning is not None), None)
    if imported.startswith(_NOT_FOLLOWED):
        return None
    home, _, original = imported.rpartition(".")
    if imported in _modules():
        return None  # a module of the package: its attributes are followed one by one
    if home in _modules():
        return _meaning(home, original)  # through a package's __init__ to where it is defined
    return imported


class _Module:
    """The definitions of one file, each with its syntax trees, and its imports as name -> dotted name."""

    def __init__(self, name: str, path: Path):
        self.definitions: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, str] = {}
        self.stars: list[str] = []
        self._package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        effects: list[ast.stmt] = []  # statements that define nothing act on all definitions of the file
        tree: ast.Module = _Essence().visit(ast.parse(path.read_text(encoding="utf-8")))
        for node in _statements(tree.body):
            if names := _defined(node):
                for defined in names:
                    self.definitions.setdefault(defined, []).append(node)
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                effects.append(node)
        for inner in ast.walk(tree):  # imports inside functions too
            if isinstance(inner, ast.Import | ast.ImportFrom):
                self._add_import(inner)
        for trees in self.definitions.values():
            trees.extend(effects)

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:  # `import a.b` binds a, `import a.b as c` binds a.b
                top = alias.name.split(".")[0]
                self.imports[alias.asname or top] = alias.name if alias.asname else top
            return
        parents = self._package.split(".")
        home = ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])
        home = home if node.level else str(node.module)
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(home)
            else:
                self.imports[alias.asname or alias.name] = f"{home}.{alias.name}"


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a file, those inside if, try and with included."""
    for node in body:
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.If(test=test):
                yield ast.Expr(test)
                yield from _statements([*node.body, *node.orelse])
            case ast.Try():
                inner = [statement for handler in node.handlers for statement in handler.body]
                yield from _statements([*node.body, *inner, *node.orelse, *node.finalbody])
            case ast.With():
                yield from _statements(node.body)
            case _:
                yield node


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
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                node.returns = None
            case ast.arg():
                node.annotation = None
            case ast.Raise(exc=ast.Call(func=function)):
                node.exc = function
            case ast.Assert():
                node.msg = None
            case ast.Call(func=ast.Attribute(attr="register")):  # @MODELS.register("capsnet", title="CapsNet")
                node.args = []
                node.keywords = [keyword for keyword in node.keywords if keyword.arg not in _ONLY_NAMES]
        return node


def _is_prose(statement: ast.stmt) -> bool:
    """Tell whether a statement is a docstring, another bare constant, a message to a logger, or notes provenance."""
    match statement:
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=attribute))):
            return attribute in _LOGGING
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="provenance"), attr=attribute))):
            return attribute.startswith(_NOTES)
    return False


def _dump(node: Any) -> str:
    """Write a syntax tree; unlike ast.dump the same in all versions of Python that write it with the same fields."""
    if isinstance(node, ast.AST):
        fields = []
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != [] and name != "kind":
                fields.append(f"{name}={_dump(value)}")
        return f"{type(node).__name__}({', '.join(fields)})"
    return f"[{', '.join(map(_dump, node))}]" if isinstance(node, list) else repr(node)


@functools.cache
def _module(name: str) -> _Module:
    return _Module(name, _modules()[name])


@functools.cache
def _modules() -> Mapping[str, Path]:
    """Return the files of the package by module."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("capsbench", *path.relative_to(PACKAGE).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found
