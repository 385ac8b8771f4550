"""Values for options of which a test knows nothing but types and limits, so that it can be run over a registry."""

import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, Union

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ValidationError


def option_names(options: type[BaseModel]) -> list[str]:
    """Return the names of all options, without the name of the registered thing itself."""
    return [name for name in options.model_fields if name != "name"]


def other_value(options: type[BaseModel], option: str) -> Any:
    """Return a possible value of an option that is not its default, near it where the type allows."""
    default = getattr(options(), option)
    for value in _candidates(options.model_fields[option].annotation, default):
        if _possible(options, option, value) and value != default:
            return value
    raise AssertionError(f"tests/option_values.py finds no second value for option '{option}' of {options.__name__}")


def impossible_values(options: type[BaseModel], option: str) -> list[Any]:
    """Return values just beyond the limits of an option, and one of a type that no option has."""
    field = options.model_fields[option]
    beyond = [value for limit in _limits([field.annotation, *field.metadata]) for value in _beyond(limit)]
    return [value for value in beyond if not _possible(options, option, value)] + [object()]


def _candidates(annotation: Any, default: Any) -> Iterator[Any]:
    if isinstance(default, bool):
        yield not default
    elif isinstance(default, int):
        yield from (default + 1, default - 1)
    elif isinstance(default, float):
        yield from (2 * default, default + 0.1, 0.5 * default, 0.5)
    elif isinstance(default, tuple):
        yield tuple(2 * value for value in default)
    yield from (value for part in _members(annotation) if typing.get_origin(part) is Literal for value in _args(part))
    yield from (1, 0.5, None)


def _members(annotation: Any) -> list[Any]:
    union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is Union
    return [part for member in _args(annotation) for part in _members(member)] if union else [annotation]


def _limits(parts: list[Any]) -> Iterator[Any]:
    """Limits of an option itself, of the members of its union and, each in a list, of the elements of its tuple."""
    for part in parts:
        if isinstance(part, Ge | Gt | Le | Lt):
            yield part
        elif hasattr(part, "metadata"):  # a Field of pydantic
            yield from _limits(part.metadata)
        elif hasattr(part, "__metadata__"):  # Annotated
            yield from _limits([part.__origin__, *part.__metadata__])
        elif typing.get_origin(part) is tuple:
            yield from ([limit] for limit in _limits([_args(part)[0]]))
        elif typing.get_origin(part) is not Literal:
            yield from _limits(list(_args(part)))


def _beyond(limit: Any) -> list[Any]:
    if isinstance(limit, list):
        return [[value] for value in _beyond(limit[0])] + [[]]
    if isinstance(limit, Ge):
        return [limit.ge - 1]
    if isinstance(limit, Le):
        return [limit.le + 1]
    return [limit.gt] if isinstance(limit, Gt) else [limit.lt]


def _possible(options: type[BaseModel], option: str, value: Any) -> bool:
    try:
        options(**{option: value})
    except ValidationError:
        return False
    return True


def _args(annotation: Any) -> tuple[Any, ...]:
    return typing.get_args(annotation)
