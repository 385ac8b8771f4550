"""Typed options of models and routings, read from their source without importing torch.

A model's keyword-only constructor arguments ARE its options: their annotations and defaults are the schema that a
study is checked against. So are the arguments with defaults of a routing algorithm, which join those of any model
that has an option of the type `Routing`; where an option is of the type `Opponent`, the options of that other model
stand in the mapping `opponent_options`. A dry run must not wait for torch, so files are parsed, not imported.
"""

import ast
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema, create_model

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Counts = Annotated[tuple[Count, ...], Field(min_length=1)]

MODELS_FOLDER = Path(__file__).parent / "models"
ROUTING_FOLDER = Path(__file__).parent / "routing"
_NAMES_IN_ANNOTATIONS = {
    "Literal": Literal, "Routing": str, "Opponent": str, "Mapping": Mapping, "Any": Any,
    "bool": bool, "int": int, "float": float, "str": str,
    "Count": Count, "Counts": Counts, "Seed": Seed,
    "Positive": Positive, "NonNegative": NonNegative, "Fraction": Fraction,
}  # fmt: skip
# routing imports torch alone and cannot name a type with limits
_LIMITS_IN_ROUTING = {
    "iterations": "Count", "keep": "Count", "inverse_temperature": "Positive", "variance_floor": "Positive",
    "damping": "Fraction", "annealing": "Fraction", "coupling_seed": "Seed",
    "concentration": "Positive", "mean_strength": "Positive", "inverse_scale": "Positive", "extra_degrees": "Positive",
}  # fmt: skip
Routing = str  # in a model's constructor: any routing algorithm, whose own options the model then has too
Opponent = str  # in a model's constructor: any model without an opponent of its own; its options in opponent_options
_NOT_MODELS = {"__init__", "output"}


class UnknownChoice(ValueError):
    """A routing or an opponent that is not registered; `key`: its place in the options, as opponent_options.routing."""

    def __init__(self, key: str, found: object, allowed: list[str]):
        super().__init__(f"no {key.split('.')[-1]} '{found}'; there are {', '.join(allowed)}")
        self.key = key


def model_names() -> list[str]:
    """Return the registered models: each is a file of capsbench/models named like it."""
    return sorted(p.stem for p in MODELS_FOLDER.glob("*.py") if p.stem not in _NOT_MODELS)


@functools.cache
def model_class_name(name: str) -> str:
    """Return the name of the one public class that a model file holds."""
    return _model_class(name).name


def routing_names() -> list[str]:
    """Return the registered routings: each is a file capsbench/routing/NAME.py with a function NAME_routing."""
    return sorted(p.stem for p in ROUTING_FOLDER.glob("*.py") if _routing_function(p) is not None)


def opponent_names() -> list[str]:
    """Return the models that another can be matched to: those without an opponent of their own."""
    return [name for name in model_names() if default_opponent(name) is None]


def chosen_options(name: str, given: Mapping[str, Any]) -> type[BaseModel]:
    """Return the pydantic model of a registered network's options, of the routing and the opponent in `given`.

    Raises UnknownChoice for one that is not registered, else as `model_options`.
    """
    routing = _chosen_routing(name, given)
    default = default_opponent(name)
    if default is None:
        return model_options(name, routing)
    opponent = _choice("opponent", given.get("opponent", default), opponent_names())
    its_options = given.get("opponent_options")
    its_options = its_options if isinstance(its_options, Mapping) else {}
    return model_options(name, routing, opponent, _chosen_routing(opponent, its_options, "opponent_options."))


def _chosen_routing(name: str, given: Mapping[str, Any], place: str = "") -> str | None:
    default = default_routing(name)
    return default and _choice(f"{place}routing", given.get("routing", default), routing_names())


def _choice(key: str, found: Any, allowed: list[str]) -> str:
    if found not in allowed:
        raise UnknownChoice(key, found, allowed)
    return str(found)


@functools.cache
def model_options(
    name: str, routing: str | None = None, opponent: str | None = None, opponent_routing: str | None = None
) -> type[BaseModel]:
    """Return the pydantic model of a network's options: types, limits and defaults from its constructor.

    routing: of a network that has a choice, the algorithm whose options join; None: its default. The same of the
    opponent and of the opponent's routing. Raises KeyError for a name that is not registered, TypeError for a
    constructor or a routing function that breaks the contract.
    """
    if name not in model_names():
        raise KeyError(name)
    where = f"models/{name}.py"
    arguments = _constructor(name).args
    if [a.arg for a in arguments.posonlyargs + arguments.args] != ["self", "image_shape", "num_classes"]:
        raise TypeError(f"{where}: arguments are (self, image_shape, num_classes, *, options)")
    fields = _fields(where, zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    default = default_routing(name)
    if default is not None:
        more = routing_options(routing or default)
        if both := fields.keys() & more.keys():
            raise TypeError(f"{where}: {', '.join(sorted(both))}: an option of the model and of routing '{routing}'")
        fields = {**fields, "routing": (Literal[tuple(routing_names())], routing or default), **more}
    default = default_opponent(name)
    if default is not None:
        its_options = model_options(opponent or default, opponent_routing)
        in_place = WithJsonSchema(its_options.model_json_schema())  # without references
        fields["opponent"] = (Literal[tuple(opponent_names())], opponent or default)
        fields["opponent_options"] = (Annotated[its_options, in_place], its_options())
    return _options_class(f"{model_class_name(name)}Options", where, fields)


@functools.cache
def default_routing(name: str) -> str | None:
    """Return the routing that a network has where a study names none; None for a network without the choice."""
    arguments = _constructor(name).args
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if argument.annotation is not None and ast.unparse(argument.annotation) == "Routing":
            if argument.arg != "routing" or default is None or arguments.kwarg is None:
                raise TypeError(f"models/{name}.py: a choice of routing is written routing: Routing = ..., **options")
            return str(ast.literal_eval(default))
    return None


@functools.cache
def default_opponent(name: str) -> str | None:
    """Return the opponent that a network has where a study names none; None for a network without one."""
    arguments = _constructor(name).args
    options = dict(zip((a.arg for a in arguments.kwonlyargs), arguments.kw_defaults, strict=True))
    for argument in arguments.kwonlyargs:
        if argument.annotation is not None and ast.unparse(argument.annotation) == "Opponent":
            default = options[argument.arg]
            if argument.arg != "opponent" or default is None or "opponent_options" not in options:
                written = "opponent: Opponent = ..., opponent_options: Mapping[str, Any] = {}"
                raise TypeError(f"models/{name}.py: a choice of opponent is written {written}")
            return str(ast.literal_eval(default))
    return None


def flat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those in a mapping beside the others, under dotted names: opponent_options.conv_channels."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        inner = {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, Mapping) else {name: value}
        flat.update(inner)
    return flat


def option_modules(name: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that a network with these options loads by name: of its routing, of its opponent."""
    modules: tuple[str, ...] = ()
    if default_routing(name) is not None:
        modules += (f"capsbench.routing.{options['routing']}",)
    if default_opponent(name) is not None:
        opponent = options["opponent"]
        modules += (f"capsbench.models.{opponent}", *option_modules(opponent, options["opponent_options"]))
    return modules


def routing_options(name: str) -> dict[str, Any]:
    """Return the options of a routing as pydantic fields: what its function takes after the tensors.

    Raises KeyError for a name that is not registered.
    """
    function = _routing_function(ROUTING_FOLDER / f"{name}.py")
    if function is None:
        raise KeyError(name)
    arguments = function.args
    defaults = [*[None] * (len(arguments.args) - len(arguments.defaults)), *arguments.defaults]
    pairs = [
        *zip(arguments.args, defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    options = [(a, d) for a, d in pairs if d is not None and "Tensor" not in ast.unparse(a.annotation or a)]
    return _fields(f"routing/{name}.py", options)


def _fields(where: str, arguments: Iterable[tuple[ast.arg, ast.expr | None]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for argument, default in arguments:
        if argument.annotation is None or default is None:
            raise TypeError(f"{where}: option '{argument.arg}' needs a type and a default")
        try:
            fields[argument.arg] = (_annotation(where, argument), ast.literal_eval(default))
        except ValueError:
            raise TypeError(f"{where}: the default of option '{argument.arg}' is not a plain value") from None
    return fields


def _options_class(name: str, where: str, fields: dict[str, Any]) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    options = create_model(name, __config__=config, **fields)
    try:
        options()
    except ValidationError as error:
        first = error.errors()[0]
        raise TypeError(f"{where}: default of option '{first['loc'][0]}': {first['msg']}") from None
    return options


def _constructor(name: str) -> ast.FunctionDef:
    for node in _model_class(name).body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return node
    raise TypeError(f"models/{name}.py: {model_class_name(name)} has no __init__")


@functools.cache
def _routing_function(path: Path) -> ast.FunctionDef | None:
    if not path.exists():
        return None
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == f"{path.stem}_routing":
            return node
    return None


def _model_class(name: str) -> ast.ClassDef:
    tree = ast.parse((MODELS_FOLDER / f"{name}.py").read_text())
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
    if len(classes) != 1:
        found = ", ".join(c.name for c in classes) or "none"
        raise TypeError(f"models/{name}.py must hold exactly one public class, the model; found: {found}")
    return classes[0]


def _annotation(where: str, argument: ast.arg) -> Any:
    assert argument.annotation is not None
    text = ast.unparse(argument.annotation)
    if where.startswith("routing/"):
        text = _LIMITS_IN_ROUTING.get(argument.arg, text)
    try:
        return eval(text, {"__builtins__": {}}, _NAMES_IN_ANNOTATIONS)  # the package's own source, no input
    except NameError as error:
        allowed = ", ".join(_NAMES_IN_ANNOTATIONS)
        raise TypeError(f"{where}: type '{text}' of option '{argument.arg}' is not made of {allowed}") from error
