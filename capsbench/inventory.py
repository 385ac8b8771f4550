"""What networks there are: source, parameters, multiply-adds and options of each, counted when asked.

Parameters are the trainable ones. Multiply-adds are those of one image going forward as at test, decoder included, as
torch.utils.flop_counter sees them: convolutions and matrix products, einsum among them. Elementwise work (squash,
softmax, batch norm, products of votes and couplings that are not summed as a matrix product) is not counted.
"""

import importlib
import inspect
import json
import textwrap
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from pydantic import BaseModel
from torch.utils.flop_counter import FlopCounterMode

from capsbench.config import Plan
from capsbench.data.catalogue import CATALOGUE
from capsbench.errors import InputError
from capsbench.models import build_model, count_parameters
from capsbench.options import (
    default_routing,
    model_class_name,
    model_names,
    model_options,
    routing_names,
    routing_options,
)

Shape = tuple[int, int, int]
MNIST = ((1, 28, 28), 10)
MISSING = "-"
HOW_COUNTED = (
    "Parameters are the trainable ones. Multiply-adds are of one image at test, decoder included: convolutions and "
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


def published_on(name: str) -> tuple[Shape, int]:
    """Return the image shape and the number of classes that a network's paper has; MNIST's where it says none."""
    shape, num_classes = getattr(_module(name), "PUBLISHED_ON", MNIST)
    return shape, num_classes


def source(name: str) -> str:
    """Return the first sentence of a network's file, which names its paper."""
    text = " ".join((inspect.getdoc(_module(name)) or "").split())
    return text.split(". ")[0].rstrip(".") + "."


def measure(name: str, image_shape: Shape | None = None, num_classes: int | None = None, **options: Any) -> Size:
    """Build a network and run one image through it, for real: there are operations that the meta device has not."""
    usual_shape, usual_classes = published_on(name)
    shape, classes = image_shape or usual_shape, num_classes or usual_classes
    try:
        model = build_model(name, shape, classes, **options).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.full((1, *shape), 0.5))
    except (ValueError, RuntimeError) as error:  # what a network says, or torch where the network says nothing
        return Size(shape, classes, problem=" ".join(str(error).split())[:200])
    return Size(shape, classes, count_parameters(model), counter.get_total_flops() // 2)


def check_networks(plan: Plan, experiment: str) -> None:
    """Build every network of an experiment on the meta device, which costs no memory and next to no time.

    Raises InputError, in one line, for options that are possible alone but not together or not on these images.
    """
    variants = {run.variant: run for run in plan.runs if run.experiment == experiment}
    for name, run in variants.items():
        facts = CATALOGUE[run.data.name]
        try:
            with torch.device("meta"):
                build_model(run.model, facts.shape(run.data.options), facts.num_classes, **run.options)
        except ValueError as error:
            raise InputError(f"{plan.path}: {experiment}/{name}: {error}") from None


def overview(image_shape: Shape | None = None, num_classes: int | None = None) -> str:
    """Tell the sizes of all networks in a table, below it the source and the options of each with their defaults."""
    names = model_names()
    sizes = [measure(name, image_shape, num_classes) for name in names]
    lines = [_table([{"network": name, **_row(size)} for name, size in zip(names, sizes, strict=True)])]
    lines += ["", *textwrap.wrap(HOW_COUNTED, 120)]
    for name in names:
        lines += ["", *textwrap.wrap(f"{name}: {source(name)}", 120, subsequent_indent="    ")]
        lines += textwrap.wrap(_with_defaults(_options(name)), 120, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def page(name: str, image_shape: Shape | None = None, num_classes: int | None = None) -> str:
    """Tell everything of one network: what its file says, its size, its options, the routings that it can have."""
    network = getattr(_module(name), model_class_name(name))
    size = measure(name, image_shape, num_classes)
    schemas = model_options(name).model_json_schema()["properties"]
    options = [{"option": o, "type": _type(schemas[o]), "default": _plain(v)} for o, v in _options(name).items()]
    lines = [*textwrap.wrap(f"{name}: {source(name)}", 120), "", inspect.getdoc(network) or ""]
    lines += ["", _table([_row(size)]), "", *textwrap.wrap(HOW_COUNTED, 120), "", _table(options)]
    if default_routing(name) is not None:
        rows = []
        for routing in routing_names():
            own = {option: default for option, (_, default) in routing_options(routing).items()}
            size = measure(name, image_shape, num_classes, routing=routing)
            rows.append({"routing": routing, **_row(size), "options of its own": _with_defaults(own)})
        lines += ["", _table(rows)]
    return "\n".join(lines)


def _module(name: str) -> Any:
    return importlib.import_module(f"capsbench.models.{name}")


def _options(name: str) -> dict[str, Any]:
    """Return the options of a network with their defaults; of an opponent's options what is set, which is nothing."""
    options = dict(model_options(name)())
    return {o: v.model_dump(exclude_unset=True) if isinstance(v, BaseModel) else v for o, v in options.items()}


def _row(size: Size) -> dict[str, str]:
    row = {"images": "x".join(map(str, size.image_shape)), "classes": str(size.num_classes)}
    for count in ("parameters", "multiply_adds"):
        number = getattr(size, count)
        row[count.replace("_", "-")] = MISSING if number is None else f"{number:,}"
    return row | {"why not": size.problem}


def _table(rows: list[dict[str, str]]) -> str:
    frame = pd.DataFrame(rows)
    if "why not" in frame and not frame["why not"].any():
        frame = frame.drop(columns="why not")
    numbers = ("classes", "parameters", "multiply-adds")
    return frame.to_markdown(
        index=False, disable_numparse=True, colalign=["right" if c in numbers else "left" for c in frame]
    )


def _with_defaults(options: dict[str, Any]) -> str:
    return ", ".join(f"{option} {_plain(value)}" for option, value in options.items()) or MISSING


def _plain(value: Any) -> str:
    """Write a value as a study would."""
    return json.dumps(value).replace('"', "")


def _type(schema: dict[str, Any]) -> str:
    """Put the JSON schema of an option into words."""
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(map(_plain, schema.get("enum", [schema.get("const")])))
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    words = {"integer": "whole number", "boolean": "true or false", "string": "word", "object": "mapping of options"}
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    limits = [f"{sign} {schema[limit]:g}" for limit, sign in signs.items() if limit in schema]
    return " ".join([words.get(schema["type"], schema["type"]), ", ".join(limits)]).strip()
