"""The protocols that a study names: for all of its runs, and for those of one experiment."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny, ValidationError

from capsbench.registry import PROTOCOLS, Options, first_problem, no_such


def _protocol(given: Any) -> Options:
    """Make the options of a protocol of its name, or of a mapping with `name` and some options."""
    if isinstance(given, Options):
        return given
    facts = {"name": given} if isinstance(given, str) else given
    if not isinstance(facts, Mapping) or not isinstance(facts.get("name"), str):
        raise ValueError("a protocol is a name, or a mapping with its 'name' and options")
    if facts["name"] not in PROTOCOLS.names():
        raise ValueError(no_such("protocol", facts["name"], PROTOCOLS.names()))
    try:
        return PROTOCOLS.options(facts["name"])(**facts)
    except ValidationError as error:
        raise ValueError(f"{facts['name']}: {first_problem(error, facts)}") from None


Protocol = Annotated[SerializeAsAny[Options], BeforeValidator(_protocol)]


def check_own(key: str, names: list[str], shared: Sequence[str]) -> None:
    """Check the protocols of one experiment: all runs of a study share one pass over the test and what it serves."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{key}: {name} is there twice")
        if name in shared:
            raise ValueError(f"{key}: '{name}' is among those of the study")
        if PROTOCOLS[name].facts.get("scores_alone"):
            raise ValueError(f"{key}: '{name}' needs no pass of its own; name it in the study's evaluations")
