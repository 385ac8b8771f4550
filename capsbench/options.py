"""Typed options of a model, read from its constructor without importing torch.

A model's keyword-only constructor arguments ARE its options: their annotations and defaults are the schema that a
study is checked against. A dry run must not wait for torch, so the file is parsed, not imported.
"""

import ast
import functools
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Counts = Annotated[tuple[Count, ...], Field(min_length=1)]

MODELS_FOLDER = Path(__file__).parent / "models"
_NAMES_IN_ANNOTATIONS = {
    "Literal": Literal, "bool": bool, "int": int, "float": float, "str": str,
    "Count": Count, "Counts": Counts, "Positive": Positive, "NonNegative": NonNegative, "Fraction": Fraction,
}  # fmt: skip
_NOT_MODELS = {"__init__", "output"}


def model_names() -> list[str]:
    """Return the registered models: each is a file of capsbench/models named like it."""
    return sorted(p.stem for p in MODELS_FOLDER.glob("*.py") if p.stem not in _NOT_MODELS)


@functools.cache
def model_class_name(name: str) -> str:
    """Return the name of the one public class that a model file holds."""
    return _model_class(name).name


@functools.cache
def model_options(name: str) -> type[BaseModel]:
    """Return the pydantic model of a network's options: types, limits and defaults from its constructor.

    Raises KeyError for a name that is not registered, TypeError for a constructor that breaks the contract.
    """
    if name not in model_names():
        raise KeyError(name)
    constructors = [
        node for node in _model_class(name).body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    if not constructors:
        raise TypeError(f"models/{name}.py: {model_class_name(name)} has no __init__")
    arguments = constructors[0].args
    if [a.arg for a in arguments.posonlyargs + arguments.args] != ["self", "image_shape", "num_classes"]:
        raise TypeError(f"models/{name}.py: arguments are (self, image_shape, num_classes, *, options)")
    fields: dict[str, Any] = {}
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if argument.annotation is None or default is None:
            raise TypeError(f"models/{name}.py: option '{argument.arg}' needs a type and a default")
        try:
            fields[argument.arg] = (_annotation(name, argument), ast.literal_eval(default))
        except ValueError:
            raise TypeError(f"models/{name}.py: the default of option '{argument.arg}' is not a plain value") from None
    config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    options = create_model(f"{model_class_name(name)}Options", __config__=config, **fields)
    try:
        options()
    except ValidationError as error:
        first = error.errors()[0]
        raise TypeError(f"models/{name}.py: default of option '{first['loc'][0]}': {first['msg']}") from None
    return options


def _model_class(name: str) -> ast.ClassDef:
    tree = ast.parse((MODELS_FOLDER / f"{name}.py").read_text())
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and not n.name.startswith("_")]
    if len(classes) != 1:
        found = ", ".join(c.name for c in classes) or "none"
        raise TypeError(f"models/{name}.py must hold exactly one public class, the model; found: {found}")
    return classes[0]


def _annotation(model: str, argument: ast.arg) -> Any:
    assert argument.annotation is not None
    text = ast.unparse(argument.annotation)
    try:
        return eval(text, {"__builtins__": {}}, _NAMES_IN_ANNOTATIONS)  # the package's own source, no input
    except NameError as error:
        allowed = ", ".join(_NAMES_IN_ANNOTATIONS)
        raise TypeError(
            f"models/{model}.py: type '{text}' of option '{argument.arg}' is not made of {allowed}"
        ) from error
