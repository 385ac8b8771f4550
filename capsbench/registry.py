"""What a study can name, and the options that it can set.

A routing, loss, transform, decoder, network, data set or evaluation protocol is registered where it is defined:

    @ROUTINGS.register("em", title="EM")
    class EMRouting(nn.Module):
        def __init__(self, size: LayerSize, *, iterations: Count = 3, damping: Fraction = 0.0): ...

Its keyword-only arguments are its options: name, type, limits and default are read from the signature and nowhere
else. A group of options, such as the routing of a network, is an argument that names another registered thing:

    def __init__(self, ..., *, routing: Annotated[Chosen, ROUTINGS] = ROUTINGS.choose("dynamic")): ...

A study then writes `routing: em`, or `routing: {name: em, damping: 0.1}`.
"""

import difflib
import functools
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, create_model
from pydantic.annotated_handlers import GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from capsbench.errors import InputError

# Types of options with their limits.
LARGEST_COUNT = 10_000_000  # far above any study: what is beyond it is a slip, or would fill the memory
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
Iterations = Annotated[int, Field(ge=1, le=100)]  # of routing
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Momentum = Annotated[float, Field(gt=0, lt=1)]  # PyTorch's of batch norm; with 0 a test would see no statistics
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Counts = Annotated[tuple[Count, ...], Field(min_length=1)]

Registered = TypeVar("Registered", bound=Callable[..., Any])


@dataclass(frozen=True)
class Said:
    """What a paper and its authors' code say of an option, where they or public code disagree.

    It stands in the option's type, `Annotated[Count, Said(paper="...", code="...")]`, and docs/protocols.md lists it
    beside the option's default. note: what depends on it, or a source.
    """

    paper: str
    code: str = "none"
    note: str = ""


@dataclass(frozen=True)
class Later:
    """Marks an option that came after results were kept: where it has its default, a run's digest leaves it out.

    It stands in the option's type, `Annotated[Count, Later()]`. The default must do what was done before it came.
    """


class UnknownName(ValueError):
    """A name that is not registered; the message lists those that are."""


@dataclass(frozen=True)
class Entry:
    """One registered thing. title: how tables and plots name it. facts: the other arguments of `register`."""

    name: str
    factory: Callable[..., Any]
    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)


class Registry:
    """Registered things of one kind, by name. The modules that fill it are imported on the first look-up."""

    def __init__(self, kind: str, package: str):
        self.kind, self.package = kind, package
        self._entries: dict[str, Entry] = {}
        self._filled = False

    def register(self, name: str, *, title: str | None = None, **facts: Any) -> Callable[[Registered], Registered]:
        """Return the decorator that registers a class or function under a name."""

        def add(factory: Registered) -> Registered:
            known = self._entries.get(name)
            if known is not None and _place(known.factory) != _place(factory):
                raise TypeError(
                    f"{_place(factory)}: {self.kind} '{name}' is registered already, by {_place(known.factory)}"
                )
            self._entries[name] = Entry(name, factory, title or name.replace("_", " "), facts)
            return factory

        return add

    def names(self) -> list[str]:
        """Return all names, sorted."""
        self._fill()
        return sorted(self._entries)

    def __getitem__(self, name: str) -> Entry:
        """Return an entry. Raises UnknownName."""
        self._fill()
        if name not in self._entries:
            raise UnknownName(no_such(self.kind, name, self.names()))
        return self._entries[name]

    def choose(self, name: str, **options: Any) -> "Chosen":
        """Return a choice of an entry, with some of its options; the others keep their defaults."""
        return Chosen(self, name, options)

    def build(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Check the options of an entry and build it.

        Raises UnknownName, and ValueError in one line for an unknown option or an impossible value.
        """
        options_class = self.options(name)
        try:
            checked = options_class(**options)
        except ValidationError as error:
            raise ValueError(f"{name}: {first_problem(error, options)}") from None
        return self[name].factory(*arguments, **_arguments(checked))

    def options(self, name: str) -> type["Options"]:
        """Return the pydantic model of an entry's options. Raises UnknownName, and InputError for a wrong signature."""
        try:
            return _options_class(self, self[name].name)
        except TypeError as error:  # a mistake in the file that registers it
            raise InputError(str(error)) from None

    def only(self, *names: str) -> "Selection":
        """Return a part of the registry, for an option that takes no others."""
        return Selection(self, lambda: list(names))

    def without(self, *names: str) -> "Selection":
        """Return the registry without some names."""
        return Selection(self, lambda: [name for name in self.names() if name not in names])

    def _fill(self) -> None:
        if self._filled:
            return
        self._filled = True  # first: the modules may look names up themselves
        package = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
            if not module.ispkg:
                self._import(f"{self.package}.{module.name}")

    def _import(self, module: str) -> None:
        try:
            importlib.import_module(module)
        except Exception as error:  # a file that somebody is working on
            self._filled = False
            path = module.replace(".", "/") + ".py"
            raise InputError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Selection:
    """Some of the names of a registry."""

    registry: Registry
    list_names: Callable[[], list[str]]


@dataclass(frozen=True)
class Chosen:
    """One registered thing and those of its options that were set."""

    registry: Registry
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, *arguments: Any) -> Any:
        """Build it: what it needs to know comes first, its options after."""
        return self.registry[self.name].factory(*arguments, **self.options)


class Options(BaseModel):
    """Base of all pydantic models of options that are made from signatures."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    registry: ClassVar[Registry]
    name: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the options as a study would write them: numbers, words, lists and mappings."""
        return self.model_dump(mode="json")


class _Group:
    """Lets pydantic take the name of a registered thing where its options are not set, and fill in what is unset.

    Options that the default sets (weight 0.392 in `decoder=DECODERS.choose("fully_connected", weight=0.392)`) hold
    until a study sets them otherwise, as long as it names the same thing or none.
    """

    def __init__(self, names: list[str], default: Chosen | None):
        self.names, self.default = names, default

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._complete, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(schema)
        written = handler.resolve_ref_schema(written) if len(self.names) == 1 else written
        return {"anyOf": [{"enum": self.names}, *written.get("oneOf", [written])]}

    def _complete(self, given: Any) -> Any:
        if isinstance(given, str):
            given = {"name": given}
        elif isinstance(given, Chosen):
            given = {"name": given.name, **given.options}
        given = _with_tuples(given)
        if not isinstance(given, Mapping) or self.default is None:
            return given
        usual = {"name": self.default.name, **self.default.options}
        return {**usual, **given} if given.get("name", self.default.name) == self.default.name else given


def _with_tuples(value: Any) -> Any:
    """Return values of a file with tuples for lists, which is how pydantic wants sequences from Python."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(inner) for key, inner in value.items()}
    return tuple(_with_tuples(inner) for inner in value) if isinstance(value, list) else value


def no_such(kind: str, name: object, allowed: list[str]) -> str:
    """Say that a name is unknown, and which are known: no routing 'ems'; did you mean em? ..."""
    near = difflib.get_close_matches(str(name), allowed, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no {kind} '{name}'; {hint}there are {', '.join(allowed)}"


def flat_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return options under dotted names.

    {"routing": {"name": "em", "damping": 0.1}} becomes {"routing": "em", "routing.damping": 0.1}. A group that is
    switched off keeps its place: {"decoder": None}.
    """
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            inner = dict(value)
            if "name" in inner:
                flat[f"{prefix}{name}"] = inner.pop("name")
            flat |= flat_options(inner, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def without_later(options: type["Options"], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as `Options.plain` writes them, less those that are `Later` and at their default, at any depth."""
    usual, kept = options().plain(), {}
    for name, value in written.items():
        field = options.model_fields.get(name)
        if field is None:
            kept[name] = value
        elif not (any(isinstance(part, Later) for part in field.metadata) and value == usual[name]):
            named = value.get("name") if isinstance(value, Mapping) else None
            members = (member for member in _members(field.annotation) if member.model_fields["name"].default == named)
            member = next(members, None)
            kept[name] = value if member is None else without_later(member, value)
    return kept


def _members(annotation: Any) -> list[type["Options"]]:
    """Return the options of all that a group can name, from the type of the group."""
    if inspect.isclass(annotation) and issubclass(annotation, Options):
        return [annotation]
    return [member for part in typing.get_args(annotation) for member in _members(part)]


def first_problem(error: ValidationError, raw: Mapping[str, Any]) -> str:
    """Return the first problem of a failed check in one line."""
    first = next((e for e in error.errors() if e["type"] == "extra_forbidden"), error.errors()[0])
    key = ".".join(key_path(first["loc"], raw, first["type"]))
    if first["type"] == "extra_forbidden":
        return f"unknown option '{key}'"
    if (wrong := unknown_member(first, key.removesuffix(".name"))) is not None:
        return f"option '{key}': {wrong}" if "." in key else wrong
    return f"option '{key}': {first['msg']}"


def unknown_member(error: Any, key: str) -> str | None:
    """Return the line for a wrong name in a group, such as "no routing 'ems'; ..."; None for other errors."""
    context = error.get("ctx", {})
    if error["type"] == "union_tag_invalid":
        found, names = context["tag"], context["expected_tags"].replace("'", "").split(", ")
    elif error["type"] == "literal_error" and len(error["loc"]) > 1 and error["loc"][-1] == "name":
        found, names = error["input"], context["expected"].strip("'").split("' or '")
    else:
        return None
    registries = (LOSSES, ROUTINGS, TRANSFORMS, DECODERS, MODELS)
    kind = next((registry.kind for registry in registries if set(names) <= set(registry.names())), key.split(".")[-1])
    return no_such(kind, found, names)


def key_path(loc: tuple[int | str, ...], raw: Any, problem: str) -> list[str]:
    """Return where in a file a pydantic error lies; pydantic adds the name of a group's member, which no file has."""
    path: list[str] = []
    node = raw
    for place, part in enumerate(loc):
        last = place == len(loc) - 1
        if isinstance(node, Mapping) and part not in node and not (last and problem == "missing"):
            continue  # the member of a group
        if part == "[key]" or (path and not isinstance(node, Mapping | list | tuple)):
            continue  # a group that is a bare name, or one of the types that a value may have
        path.append(str(part))
        try:
            node = node[part]
        except (TypeError, KeyError, IndexError):
            node = None
    return path


@functools.cache
def _options_class(registry: Registry, name: str) -> type[Options]:
    """Make the pydantic model of an entry's options from its signature.

    Raises TypeError, naming the place, for a registered thing whose options cannot be read.
    """
    factory = registry[name].factory
    signed = factory.__init__ if inspect.isclass(factory) else factory
    types_of = typing.get_type_hints(signed, include_extras=True)
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    for parameter in inspect.signature(signed).parameters.values():
        if parameter.kind is not parameter.KEYWORD_ONLY:
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is not parameter.empty:
                raise TypeError(f"{_place(factory)}: '{parameter.name}' has a default; put options after a *")
            continue
        if hasattr(Options, parameter.name) or parameter.name.startswith("_") or parameter.name in ("name", "registry"):
            raise TypeError(f"{_place(factory)}: no option can be called '{parameter.name}'; take another name")
        if parameter.name not in types_of or parameter.default is parameter.empty:
            raise TypeError(f"{_place(factory)}: option '{parameter.name}' needs a type and a default")
        fields[parameter.name] = (_field_type(types_of[parameter.name], parameter.default), _plain(parameter.default))
    made = create_model(f"{registry.kind}:{name}", __base__=Options, **fields)
    made.registry = registry
    try:
        made()
    except ValidationError as error:
        defaults = {option: default for option, (_, default) in fields.items()}
        raise TypeError(f"{_place(factory)}: {first_problem(error, defaults)}") from None
    return made


def _field_type(annotation: Any, default: Any) -> Any:
    """Return what pydantic shall check an option with: groups become tagged unions of what they may name."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is Union:
        return Union[tuple(_field_type(part, default) for part in typing.get_args(annotation))]  # noqa: UP007
    named = [part for part in getattr(annotation, "__metadata__", ()) if isinstance(part, Registry | Selection)]
    if not named:
        return annotation
    registry = named[0] if isinstance(named[0], Registry) else named[0].registry
    names = named[0].names() if isinstance(named[0], Registry) else named[0].list_names()
    members = [registry.options(name) for name in names]
    union = members[0] if len(members) == 1 else Annotated[Union[tuple(members)], Field(discriminator="name")]  # noqa: UP007
    said = [part for part in annotation.__metadata__ if isinstance(part, Said | Later)]
    return Annotated[(union, _Group(names, default if isinstance(default, Chosen) else None), *said)]


def _plain(default: Any) -> Any:
    return {"name": default.name, **default.options} if isinstance(default, Chosen) else default


def _arguments(options: Options) -> dict[str, Any]:
    """Return checked options as keyword arguments: groups as Chosen, ready to be built."""
    arguments = {key: value for key, value in options if key != "name"}
    return {
        key: Chosen(value.registry, value.name, _arguments(value)) if isinstance(value, Options) else value
        for key, value in arguments.items()
    }


def _place(factory: Callable[..., Any]) -> str:
    return f"{factory.__module__}.{factory.__qualname__}"


# All that there is, and where it is found: a new file in one of these packages registers itself.
LOSSES = Registry("loss", "capsbench.losses")
ROUTINGS = Registry("routing", "capsbench.routing")
TRANSFORMS = Registry("transform", "capsbench.layers.transforms")
DECODERS = Registry("decoder", "capsbench.layers.decoders")
MODELS = Registry("model", "capsbench.models")
PROTOCOLS = Registry("protocol", "capsbench.evaluation")
