"""Reading YAML strictly, and turning a failed check into the one line that a person needs."""

import difflib
import inspect
import json
import re
import stat
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from capsbench.errors import InputError
from capsbench.registry import Options, key_path, unknown_member

Model = TypeVar("Model", bound=BaseModel)

# Limits far above any study: what is beyond them is another file, or was made to exhaust the memory.
LARGEST_FILE = 1 << 20  # bytes
DEEPEST = 40  # lists and mappings in one another
MOST_VALUES = 50_000  # values of a file, with every alias (*name) written out

SCHEMA = 2  # the format of study files; in 1 options of routings, losses and decoders had no groups
_READ_BY = {1: "capsbench 0.1"}  # schema -> the last version that reads it
# What files of older versions have, by the last words of the key -> what took its place.
_REMOVED = {
    "training.stop_at_familiar_accuracy": "'match: VARIANT' took its place: stop at the familiar error of that "
    "variant's run",
    "loss.scale": "'schedule' took its place: linear (H18) or authors, the schedule that scale 50,000 gave",
    "loss.start": "'schedule' took its place: linear (H18) or authors, the schedule that start 0.2 gave",
    "loss.growth": "'schedule' took its place: linear (H18) or authors, the schedule that growth 0.79 gave",
    "loss.centre": "'schedule' took its place: linear (H18) or authors, the schedule that centre -4 gave",
}
# Options of schema 1, now in groups.
_GROUPED = {
    "iterations": "routing.iterations", "detach": "routing.detach", "damping": "routing.damping",
    "inverse_temperature": "routing.inverse_temperature", "variance_floor": "routing.variance_floor",
    "capsule_bias": "routing.bias", "reconstruction": "decoder, null for none",
    "decoder_hidden": "decoder.hidden", "decoder_input": "decoder.input", "decoder_dropout": "decoder.dropout",
    "decoder_channels": "decoder.width", "reconstruction_weight": "decoder.weight",
    "margin_loss_weight": "loss.weight", "positive_margin": "loss.positive_margin",
    "negative_margin": "loss.negative_margin", "negative_weight": "loss.negative_weight", "parameters": "matched_to",
    "spread_margin_scale": "loss.schedule",
}  # fmt: skip


class _Loader(yaml.SafeLoader):
    """YAML 1.2 as people expect it: 1e-3 is a number, 010 is ten, yes and no are words, a key given twice is an error.

    A file that is nested too deeply, or holds too many values once its aliases are written out, is an error too.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        letter: [(tag, regex) for tag, regex in rules if tag not in _REPLACED]
        for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
        for _REPLACED in [
            tuple(f"tag:yaml.org,2002:{kind}" for kind in ("float", "int", "bool", "timestamp")),
        ]
    }

    depth = 0
    composed = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        self.composed += 1
        if self.depth > DEEPEST:
            mark = self.get_mark()
            raise yaml.MarkedYAMLError(problem=f"nested more than {DEEPEST} deep", problem_mark=mark)
        if self.composed > MOST_VALUES:
            raise yaml.MarkedYAMLError(problem=f"more than {MOST_VALUES:,} values", problem_mark=self.get_mark())
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:  # before mappings are merged into it, whose keys it may replace
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                found = key.value[:30] if isinstance(key, yaml.ScalarNode) else "that is a list or a mapping"
                problem = f"key {found} is not a word; put it in quotes"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            if key.value in seen:
                problem = f"key '{key.value[:60]}' is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return node

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _values(node, {}) > MOST_VALUES:
            problem = f"more than {MOST_VALUES:,} values once its aliases (*name) are written out"
            raise yaml.MarkedYAMLError(problem=problem)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):  # !!int x, a number of 5,000 digits
            problem = f"{str(node.value)[:30]!r} is no value of the type {node.tag.split(':')[-1]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*([eE][-+]?\d+)|\d+\.\d*|\.\d+([eE][-+]?\d+)?|\.(inf|nan))$"),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?\d[\d_]*$"), list("-+0123456789"))


def _whole_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)).replace("_", ""))


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|True|false|False)$"), list("tTfF"))


def _values(node: yaml.Node, counted: dict[int, int]) -> int:
    """Count the values of a node as if every alias were written out; `counted` holds those of the nodes so far.

    Raises:
        MarkedYAMLError: the node holds an alias of itself.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in counted:
        counted[id(node)] = -1  # not finished
        inner = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        counted[id(node)] = 1 + sum(_values(part, counted) for part in inner)
    if counted[id(node)] < 0:
        raise yaml.MarkedYAMLError(problem="an alias (*name) within what it names", problem_mark=node.start_mark)
    return counted[id(node)]


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a study file into plain values.

    Raises:
        InputError: the file is missing, is not a text file of reasonable size, or does not hold a YAML mapping.
    """
    text = _text(path)
    try:
        raw = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise InputError(f"{path}: {line}not valid YAML: {_shortened(error.problem or error.context or '')}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise InputError(f"{path}: a study is a mapping of keys (name, seeds, experiments, variants, ...)")
    _check_schema(raw, path)
    return raw


def _check_schema(raw: Mapping[str, Any], path: Path) -> None:
    """Refuse a file of another format. One that does not say is taken as one of today's."""
    found = raw.get("schema", SCHEMA)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise InputError(f"{path}: schema: {str(found)[:30]!r} is no number of a format; today's is {SCHEMA}")
    if found > SCHEMA:
        raise InputError(
            f"{path}: schema {found} is of a newer capsbench; this is {_version()}, which reads schema {SCHEMA}: "
            "install the version that wrote the study"
        )
    if found < SCHEMA:
        raise InputError(
            f"{path}: schema {found} is read by {_READ_BY[found]}; this is {_version()}, which reads schema {SCHEMA}"
        )


def _version() -> str:
    import importlib.metadata

    try:
        return f"capsbench {importlib.metadata.version('capsbench')}"
    except importlib.metadata.PackageNotFoundError:  # a folder on the path, not installed
        return "this capsbench"


def _text(path: Path) -> str:
    """Read a whole study file. A pipe is refused unopened: opening one waits for somebody to write into it."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a folder" if stat.S_ISDIR(mode) else "no regular file"
            raise InputError(f"{path}: is {what}; a study is a YAML file")
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        raise InputError(f"{path}: no such study file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(content) > LARGEST_FILE:
        raise InputError(f"{path}: is larger than {LARGEST_FILE >> 20} MiB, so it is no study; a study is a YAML file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no UTF-8 text (byte {error.start}); a study is a YAML file") from None


def check(
    model: type[Model], raw: Any, path: Path, where: str = "", elsewhere: Mapping[str, str] = MappingProxyType({})
) -> Model:
    """Check raw values against a pydantic model; InputError names the file, the key and what is allowed.

    `where` is the place of `raw` in the file; `elsewhere` holds the dotted keys that come from another place.
    """
    try:
        # through JSON, where strict means: lists are sequences, 1 is a fine 1.0, "3" is no number
        return model.model_validate_json(json.dumps(raw, default=str), strict=True)
    except ValidationError as error:
        raise InputError(f"{path}: {_shortened(_one_line(error.errors(), model, raw, where, elsewhere))}") from None


def refuse(path: Path, where: str, problem: str) -> NoReturn:
    """Raise the InputError for a problem that only several values together show."""
    raise InputError(f"{path}: {_shortened(f'{where}: {problem}')}")


def _shortened(line: str) -> str:
    """Cut words down that are longer than any name and key may be."""
    return re.sub(r"\S{300,}", lambda word: f"{word[0][:60]}...", line)


def _one_line(errors: list[Any], model: type[BaseModel], raw: Any, where: str, elsewhere: Mapping[str, str]) -> str:
    # an unknown key is most often a misspelt one: it explains the errors that follow from it
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    path = key_path(first["loc"], raw, first["type"])
    leading = [".".join(path[:length]) for length in range(1, len(path) + 1)]
    place = next((elsewhere[part] for part in leading if part in elsewhere), where)
    key = ".".join(filter(None, [place, *path]))
    if (wrong := unknown_member(first, key.removesuffix(".name"))) is not None:
        return f"{key.removesuffix('.name')}: {wrong}"
    match first["type"]:
        case "extra_forbidden" if (instead := _took_its_place(key)) is not None:
            text = f"is no key any more: {instead}"
        case "extra_forbidden":
            allowed = _keys_beside(model, first["loc"])
            near = difflib.get_close_matches(path[-1], allowed, n=1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            text = f"unknown key{hint}; allowed: {', '.join(allowed) or 'none'}"
        case "missing":
            text = "is missing"
        case "value_error":
            text = str(first["ctx"]["error"])
        case "string_pattern_mismatch":
            text = f"{first['input']!r} is not a name: letters, digits, '.', '_' and '-', no spaces"
        case _:
            found = json.dumps(first["input"], default=str)
            rule = re.sub(r"^\w+ should", "it should", first["msg"]).replace(" after validation", "")
            rule = rule.replace("an object", "a mapping").replace("a valid array", "a list")
            text = f"{found[:60]} is not allowed: {rule}"
    return f"{key}: {text}" if key else text


def _took_its_place(key: str) -> str | None:
    """Say what took the place of a key that older versions had; None for any other."""
    last = ".".join(key.split(".")[-2:])
    if last in _REMOVED:
        return _REMOVED[last]
    group, _, option = last.partition(".")
    return f"it is now {_GROUPED[option]}" if group in ("options", "grid") and option in _GROUPED else None


def _keys_beside(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """List the keys that are allowed where an unknown one was found."""
    place: Any = model
    for part in loc[:-1]:
        place = _step(place, part)
    fields = place.model_fields if inspect.isclass(place) and issubclass(place, BaseModel) else {}
    keys = [field.alias or name for name, field in fields.items()]
    return [key for key in keys if not (key == "name" and place is model and issubclass(model, Options))]


def _step(place: Any, part: int | str) -> Any:
    """Go one step of a pydantic error's location into a type."""
    if inspect.isclass(place) and issubclass(place, BaseModel):
        return place.model_fields[str(part)].annotation if part in place.model_fields else place
    parts = typing.get_args(place)
    if typing.get_origin(place) in (typing.Union, types.UnionType):
        models = [p for p in parts if inspect.isclass(p) and issubclass(p, BaseModel)]
        named = [m for m in models if "name" in m.model_fields and m.model_fields["name"].default == part]
        if named:
            return named[0]
        inner = [p for p in parts if p is not type(None)]
        return _step(inner[0], part) if inner else None
    if typing.get_origin(place) is typing.Annotated:
        return _step(parts[0], part)
    return parts[-1] if parts and part != "[key]" else place  # of a dict or a list: what is in it
