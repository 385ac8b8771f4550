"""What networks there are: source, parameters, multiply-adds and options of each, counted when asked.

Parameters are the trainable ones. Multiply-adds are those of the forward pass of one image at test, decoder included;
capsbench.run.multiply_adds says what counts.
"""

import inspect
import json
import sys
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from capsbench.models import build_model, count_parameters
from capsbench.registry import LARGEST_COUNT, LOSSES, MODELS, Options
from capsbench.run.multiply_adds import count_multiply_adds

Shape = tuple[int, int, int]
MNIST = ((1, 28, 28), 10)
MISSING = "-"
HOW_COUNTED = (
    "Parameters are the trainable ones. Multiply-adds are for one image at test, decoder included: convolutions and "
    "matrix products; elementwise work is not counted."
)


@dataclass(frozen=True)
class Size:
    """The size of a network for images [C, H, W] and K classes; `problem`: why there is none."""

    image_shape: Shape
    num_classes: int
    parameters: int | None = None
    multiply_adds: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class Group:
    """A group of options of a network: it names one of its members, each with options of its own.

    members: the options class of each member by name. default: the member and its options in this network where a
    study sets nothing, None where the group is off. optional: whether a study can switch the group off with null.
    """

    name: str
    members: dict[str, type[Options]]
    default: Options | None
    optional: bool

    @property
    def choices(self) -> str:
        """Return the names that the group can take, the default first."""
        usual = self.default.name if self.default else "null"
        names = [*self.members, *(["null"] if self.optional else [])]
        return ", ".join([f"{usual} (default)", *(name for name in names if name != usual)])

    def options(self, member: str) -> Options:
        """Return the options of a member with the defaults that they have in this network."""
        if self.default is not None and self.default.name == member:
            return self.default
        return self.members[member]()


def published_on(name: str) -> tuple[Shape, int]:
    """Return the image shape and the number of classes of a network's paper; those of MNIST where it has none."""
    shape, num_classes = MODELS[name].facts.get("published_on", MNIST)
    return shape, num_classes


def source(name: str) -> str:
    """Return the first sentence of a network's file, which names its paper."""
    text = " ".join((inspect.getdoc(sys.modules[MODELS[name].factory.__module__]) or "").split())
    return text.split(". ")[0].rstrip(".") + "."


def groups(name: str) -> dict[str, Group]:
    """Return the groups among the options of a network, by name."""
    options_class = MODELS.options(name)
    usual = options_class()
    found = {}
    for option, field in options_class.model_fields.items():
        members = {part.model_fields["name"].default: part for part in _options_classes(field.annotation)}
        if members:
            default = getattr(usual, option)
            found[option] = Group(option, members, default, type(None) in typing.get_args(field.annotation))
    return found


def measure(name: str, image_shape: Shape | None = None, num_classes: int | None = None, **options: Any) -> Size:
    """Build a network and run one image through it."""
    usual_shape, usual_classes = published_on(name)
    shape, classes = image_shape or usual_shape, num_classes or usual_classes
    try:
        model = build_model(name, shape, classes, **options)
        parameters, multiply_adds = count_parameters(model), count_multiply_adds(model, shape)
    except (ValueError, RuntimeError) as error:  # from the network, or from torch where the network checks nothing
        return Size(shape, classes, problem=" ".join(str(error).split())[:200])
    return Size(shape, classes, parameters, multiply_adds)


def overview(image_shape: Shape | None = None, num_classes: int | None = None) -> str:
    """Return the sizes of all networks as a table, and below it the source and the options of each."""
    names = MODELS.names()
    sizes = [measure(name, image_shape, num_classes) for name in names]
    lines = [_table([{"network": name, **_row(size)} for name, size in zip(names, sizes, strict=True)])]
    lines += ["", *textwrap.wrap(HOW_COUNTED, 120)]
    for name in names:
        lines += ["", *textwrap.wrap(f"{name}: {source(name)}", 120, subsequent_indent="    ")]
        found = groups(name)
        for group in found.values():
            lines += _indented(f"{group.name}: {group.choices}")
        plain = {o: v for o, v in MODELS.options(name)() if o != "name" and o not in found}
        if plain:
            lines += _indented(", ".join(f"{option} {_plain(value)}" for option, value in plain.items()))
    lines += ["", "capsbench models NAME lists all options of a network with types, limits and defaults."]
    return "\n".join(lines)


def page(name: str, image_shape: Shape | None = None, num_classes: int | None = None) -> str:
    """Return all about one network: its docstring, its size, its options, and a table per group of options."""
    size = measure(name, image_shape, num_classes)
    lines = [*textwrap.wrap(f"{name}: {source(name)}", 120), "", inspect.getdoc(MODELS[name].factory) or ""]
    lines += ["", _table([_row(size)]), "", *textwrap.wrap(HOW_COUNTED, 120)]
    rows = _rows_of_options(MODELS.options(name)())
    if rows:
        lines += ["", _table(rows)]
    for group in groups(name).values():
        lines += ["", f"{group.name}: {group.choices}", "", _table(_rows_of_group(name, group, size))]
    return "\n".join(lines)


def _options_classes(annotation: Any) -> Iterator[type[Options]]:
    """Find the members of a group in the type of an option."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, Options):
            yield annotation
        return
    for part in typing.get_args(annotation):
        yield from _options_classes(part)


def _rows_of_options(options: Options) -> list[dict[str, str]]:
    """Return a row per option; the `name` of a group's member is none."""
    schemas = type(options).model_json_schema()["properties"]
    rows = []
    for option, value in options:
        is_group = any(_options_classes(type(options).model_fields[option].annotation))
        in_words = "group, see below" if is_group else _type(schemas[option])
        rows.append({"option": option, "type": in_words, "default": _plain(value)})
    return [row for row in rows if row["option"] != "name"]


def _rows_of_group(network: str, group: Group, usual: Size) -> list[dict[str, str]]:
    """Return rows for each member of a group: the size of the network that has it, then its options."""
    rows = []
    for member, options_class in group.members.items():
        head = {group.name: member}
        if options_class.registry is not LOSSES:  # a loss is no part of the forward pass
            head |= _counts(measure(network, usual.image_shape, usual.num_classes, **{group.name: member}))
        if options_class.registry is MODELS:
            found = [_no_options(f"see capsbench models {member}")]
        else:
            found = _rows_of_options(group.options(member)) or [_no_options(MISSING)]
        rows += [{**(head if n == 0 else dict.fromkeys(head, "")), **row} for n, row in enumerate(found)]
    if group.optional:
        size = measure(network, usual.image_shape, usual.num_classes, **{group.name: None})
        rows.append({group.name: "null", **_counts(size), **_no_options(MISSING)})
    return rows


def _no_options(remark: str) -> dict[str, str]:
    return {"option": remark, "type": "", "default": ""}


def _row(size: Size) -> dict[str, str]:
    return {"images": "x".join(map(str, size.image_shape)), "classes": str(size.num_classes), **_counts(size)}


def _counts(size: Size) -> dict[str, str]:
    row = {}
    for count in ("parameters", "multiply_adds"):
        number = getattr(size, count)
        row[count.replace("_", "-")] = MISSING if number is None else f"{number:,}"
    return row | {"problem": size.problem}


def _table(rows: list[dict[str, str]]) -> str:
    frame = pd.DataFrame(rows)
    if "problem" in frame and not frame["problem"].any():
        frame = frame.drop(columns="problem")
    numbers = ("classes", "parameters", "multiply-adds")
    alignment = ["right" if column in numbers else "left" for column in frame]
    return str(frame.to_markdown(index=False, disable_numparse=True, colalign=alignment))


def _indented(text: str) -> list[str]:
    return textwrap.wrap(text, 120, initial_indent="    ", subsequent_indent="        ")


def _plain(value: Any) -> str:
    """Write a value as a study would; the member of a group by its name."""
    return json.dumps(value.name if isinstance(value, Options) else value).replace('"', "")


def _type(schema: dict[str, Any]) -> str:
    """Put the JSON schema of an option into words."""
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(map(_plain, schema.get("enum", [schema.get("const")])))
    if schema["type"] == "array":
        return "list of " + _type(schema["items"]).replace("number", "numbers", 1)
    words = {"integer": "whole number", "boolean": "true or false", "string": "word", "object": "mapping"}
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    given = {sign: schema[limit] for limit, sign in signs.items() if schema.get(limit, LARGEST_COUNT) < LARGEST_COUNT}
    limits = [f"{sign} {value:g}" for sign, value in given.items()]  # what is beyond no study reaches
    return " ".join([words.get(schema["type"], schema["type"]), ", ".join(limits)]).strip()
