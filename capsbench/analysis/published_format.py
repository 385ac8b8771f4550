"""The format of published.yaml: protocols, values and claims of the papers, checked when they are read.

A key or a type that is not declared here is an error that names the entry. What the entries mean together (that a
network has the options of a value, a data set those of a protocol) is checked by `problems`.
"""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator

from capsbench.errors import InputError
from capsbench.registry import MODELS, Count, Fraction, NonNegative, Positive, first_problem, flat_options
from capsbench.run.folder import parse_yaml
from capsbench.study import Data, catalogue, default_training

PATH = Path(__file__).parent / "published.yaml"
Number = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)?$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Paper(_Strict):
    """A paper, by its short name."""

    title: str
    authors: str
    year: int


class Protocol(_Strict):
    """What a run needs so that it can be compared with a value; all that is not set here has its default.

    task: options of the data set without which a run is on another task, and has no value. data_options: those that
    keep a run from being compared. also: further values of options of the data, the network or the training that do
    not, each with what to say of it. match: the network that the capsules are stopped to match; it is trained to the
    end itself. spread_margin_at_least: at the end of the training, where the loss is the spread loss. test_images:
    where the paper's test has another number than the data set.
    """

    data_set: str
    task: dict[str, Any] = {}
    data_options: dict[str, Any] = {}
    train_images_at_least: Count
    steps_at_least: Count | None = None
    epochs_at_least: Count | None = None
    spread_margin_at_least: Fraction | None = None
    match: str | None = None
    training: dict[str, Any] = {}
    also: dict[str, dict[Any, str]] = {}
    test_images: Count | None = None

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if (self.steps_at_least is None) == (self.epochs_at_least is None):
            raise ValueError("needs one of steps_at_least and epochs_at_least")
        return self


class Attack(_Strict):
    """How test images were changed. epsilon: the largest change of a pixel; None: not given."""

    name: Literal["fgsm", "bim", "transfer"]
    epsilon: Positive | None = None


class Value(_Strict):
    """A number of a paper, and the network that stands beside it, if there is one.

    printed, familiar: as the paper prints them, in `unit`; familiar is that of the familiar test. options: those that
    tell the rows of a paper apart; further_options: others that the number rests on. rounding: in points, where it is
    not half the last digit. n: number of trials. parameters: without the decoder. source: where the number was read, if
    not in its paper.
    """

    id: str
    paper: str
    table: str
    method: str
    protocol: str | None = None
    data_set: str | None = None
    model: str | None = None
    options: dict[str, Any] = {}
    further_options: dict[str, Any] = {}
    printed: Number
    unit: Literal["error", "accuracy"] = "error"
    familiar: Number | None = None
    rounding: NonNegative | None = None
    std: Positive | None = None
    n: Count | None = None
    parameters: Count | None = None
    attack: Attack | None = None
    source: str = ""
    caveats: list[str] = []
    from_memory: bool = False

    @property
    def all_options(self) -> dict[str, Any]:
        """Return options and further_options together, groups joined."""
        joined = dict(self.options)
        for name, value in self.further_options.items():
            both = isinstance(value, dict) and isinstance(joined.get(name), dict)
            joined[name] = {**joined[name], **value} if both else value
        return joined

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if (self.protocol is None) != (self.model is None):
            raise ValueError("a value with a model needs a protocol, and one without has none")
        if (self.protocol is None) == (self.data_set is None):
            raise ValueError("needs one of protocol and data_set")
        if self.std is not None and self.n is None:
            raise ValueError("a std needs n, the number of trials")
        return self


class Side(_Strict):
    """One side of a claim that no value stands for."""

    model: str
    options: dict[str, Any] = {}
    protocol: str


class Claim(_Strict):
    """What a paper claims of two networks: the error of `first` minus that of `second`.

    first, second: the id of a value, or a Side. difference: None where the paper gives no number. expected: the paper
    finds the error of the first lower, or both the same. times_parameters: where the claim is about sizes too, the
    parameters of the second over those of the first. equal_familiar: it is about networks of equal familiar error.
    """

    id: str
    paper: str
    place: str
    wording: str
    first: str | Side
    second: str | Side
    difference: float | None
    unit: Literal["points", "percent"] = "points"
    expected: Literal["lower", "same"] = "lower"
    attack: Attack | None = None
    times_parameters: Positive | None = None
    equal_familiar: bool = False
    from_memory: bool = False


class PublishedFile(_Strict):
    """The whole file."""

    papers: dict[str, Paper]
    protocols: dict[str, Protocol]
    values: list[Value]
    claims: list[Claim]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for entries in (self.values, self.claims):
            ids = [entry.id for entry in entries]
            for entry in entries:
                if ids.count(entry.id) > 1:
                    raise ValueError(f"{entry.id} is there twice")
                if entry.paper not in self.papers:
                    raise ValueError(f"{entry.id}: no paper '{entry.paper}'")
        sides = [side for claim in self.claims for side in (claim.first, claim.second)]
        owners: list[Value | Side] = [*self.values, *(side for side in sides if isinstance(side, Side))]
        for owner in owners:
            if owner.protocol is not None and owner.protocol not in self.protocols:
                raise ValueError(f"{getattr(owner, 'id', owner.model)}: no protocol '{owner.protocol}'")
        known = {value.id for value in self.values if value.model is not None}
        for claim in self.claims:
            for side in (claim.first, claim.second):
                if isinstance(side, str) and side not in known:
                    raise ValueError(f"{claim.id}: no value '{side}' with a model")
        return self


@functools.cache
def read_file(path: Path = PATH) -> PublishedFile:
    """Read and check the file. Raises InputError in one line that names the entry."""
    raw = parse_yaml(path.read_text(encoding="utf-8"))
    try:
        return PublishedFile.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{path.name}: {_first(error, raw)}") from None


def problems(file: PublishedFile) -> Iterator[str]:
    """Name what entries ask of data sets, networks and trainings that these do not have."""
    for name, protocol in file.protocols.items():
        for problem in _of_protocol(protocol):
            yield f"protocols.{name}: {problem}"
    for value in file.values:
        if value.model is not None:
            for problem in _of_model(value.model, value.all_options):
                yield f"values.{value.id}: {problem}"
    for claim in file.claims:
        for side in (claim.first, claim.second):
            if isinstance(side, Side):
                for problem in _of_model(side.model, side.options):
                    yield f"claims.{claim.id}: {problem}"


def _of_protocol(protocol: Protocol) -> Iterator[str]:
    if protocol.data_set not in catalogue():
        yield f"no data set '{protocol.data_set}'"
        return
    facts = catalogue()[protocol.data_set]
    if protocol.match is not None and protocol.match not in MODELS.names():
        yield f"match: no network '{protocol.match}'"
    for option, values in protocol.also.items():
        for value in values if option in facts.options.model_fields else []:
            yield from _refusals(facts.options.model_validate, {option: value})
    options = {**protocol.task, **protocol.data_options}
    refused = list(_refusals(facts.options.model_validate, options))
    yield from refused
    if not refused:
        data = Data(name=facts.name, options=facts.options.model_validate(options))
        yield from _refusals(lambda changes: default_training(data, changes), protocol.training)
        if protocol.train_images_at_least > (available := facts.training_items(data.options)):
            yield f"train_images_at_least is more than the {available:,} that there are"


def _of_model(model: str, options: Mapping[str, Any]) -> Iterator[str]:
    if model not in MODELS.names():
        yield f"no network '{model}'"
        return
    refused = list(_refusals(lambda given: MODELS.options(model)(**given), options))
    yield from refused
    if not refused:  # a mistyped option inside a group is refused above; one that is lost would be silent
        there = flat_options(MODELS.options(model)(**options).plain())
        yield from (f"option '{name}' is lost" for name in flat_options(options) if name not in there)


def _refusals(check: Any, given: Mapping[str, Any]) -> Iterator[str]:
    try:
        check(given)
    except ValidationError as error:
        yield first_problem(error, given)
    except ValueError as error:
        yield str(error)


def _first(error: ValidationError, raw: Any) -> str:
    """Return the first problem in one line; entries of a list are named by their id."""
    first = next((e for e in error.errors() if e["type"] == "extra_forbidden"), error.errors()[0])  # the cause
    node, path = raw, []
    for part in first["loc"]:
        try:
            node = node[part]
        except (TypeError, KeyError, IndexError):
            node = None
        path.append(str(node.get("id", part)) if isinstance(part, int) and isinstance(node, Mapping) else str(part))
    problem = "unknown key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
    return ": ".join([".".join(path), problem] if path else [problem])
