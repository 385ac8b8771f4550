"""The papers' numbers and claims, as published.yaml has them."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from capsbench.analysis.margins import margin_of
from capsbench.analysis.published_format import Attack, Claim, Protocol, Side, Value, read_file
from capsbench.study import catalogue


@dataclass(frozen=True)
class Published:
    """One published value: error in %, with the standard deviation over n trials where the paper gives it.

    id: its name in published.yaml. method: what the paper calls it. model: the network beside it, None where there is
    none. options: those that tell the paper's rows apart; all_options: with others that the number rests on.
    rounding: half the last printed digit, in points. margin: how far apart two errors are that count as the same, in
    points: a tenth of the value or five test images, whichever is more. printed, unit: as the paper prints it.
    familiar: error in % on the familiar test. attack: how the test images were changed. parameters: without the
    decoder. requirements: its protocol in published.yaml.
    """

    id: str
    paper: str
    table: str
    method: str
    data_set: str
    error: float
    rounding: float
    margin: float
    printed: str
    unit: Literal["error", "accuracy"]
    protocol: str | None = None
    model: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    all_options: dict[str, Any] = field(default_factory=dict)
    std: float | None = None
    n: int | None = None
    familiar: float | None = None
    attack: Attack | None = None
    parameters: int | None = None
    source: str = ""
    caveats: tuple[str, ...] = ()
    from_memory: bool = False
    requirements: dict[str, Any] = field(default_factory=dict)

    @property
    def caveat(self) -> str:
        """What must be said of the value, in one line."""
        return "; ".join(self.caveats)

    def __str__(self) -> str:
        """Return the value as the paper prints it."""
        value = ("accuracy " if self.unit == "accuracy" else "") + self.printed
        value += f" ± {self.std:g}" if self.std is not None else ""
        return value + (" [from memory]" if self.from_memory else "")


@dataclass(frozen=True)
class Network:
    """One side of a claim: a network under a protocol, and the value that the paper has for it."""

    model: str
    options: dict[str, Any]
    protocol: str
    value: Published | None = None


@dataclass(frozen=True)
class PublishedClaim:
    """What a paper claims of two networks, in one sentence (wording).

    difference: error of `first` minus that of `second` in points, or in percent of the latter; None where the paper
    gives no number. expected: the paper finds the error of the first lower, or both the same. attack: of test images.
    times_parameters: where the claim is about sizes too, the parameters of `second` over those of `first`.
    equal_familiar: it is about networks of equal familiar error.
    """

    id: str
    paper: str
    place: str
    wording: str
    first: Network
    second: Network
    difference: float | None
    unit: Literal["points", "percent"]
    expected: Literal["lower", "same"]
    attack: Attack | None
    times_parameters: float | None
    equal_familiar: bool
    from_memory: bool


@functools.cache
def read_published() -> tuple[Published, ...]:
    """Return the published values beside which a network of ours stands."""
    return tuple(value for value in _values() if value.model is not None)


@functools.cache
def rows_without_models() -> tuple[Published, ...]:
    """Return the published values that are listed only: none of our networks and protocols is theirs."""
    return tuple(value for value in _values() if value.model is None)


@functools.cache
def claims() -> tuple[PublishedClaim, ...]:
    """Return what the papers claim, in the order of published.yaml."""
    return tuple(_claim(claim) for claim in read_file().claims)


def _values() -> Iterator[Published]:
    for value in read_file().values:
        protocol = read_file().protocols[value.protocol] if value.protocol is not None else None
        yield _published(value, protocol)


def _published(value: Value, protocol: Protocol | None) -> Published:
    data_set = protocol.data_set if protocol is not None else str(value.data_set)
    error = _error(value.printed, value.unit)
    decimals = len(value.printed.partition(".")[2])
    same = {name: getattr(value, name) for name in (
        "id", "paper", "table", "method", "protocol", "model", "options", "all_options", "printed", "unit", "std",
        "n", "attack", "parameters", "source", "from_memory",
    )}  # fmt: skip
    return Published(
        **same,
        data_set=data_set,
        error=error,
        rounding=value.rounding if value.rounding is not None else 0.5 / 10**decimals,
        margin=margin_of(error, _test_images(data_set, protocol)),
        familiar=None if value.familiar is None else _error(value.familiar, value.unit),
        caveats=tuple(value.caveats),
        requirements={} if protocol is None else protocol.model_dump(exclude_unset=True),
    )


def _error(printed: str, unit: str) -> float:
    """Return the error in % that a printed error or accuracy stands for, without digits that were not printed."""
    return round(100 - float(printed), 6) if unit == "accuracy" else float(printed)


def _test_images(data_set: str, protocol: Protocol | None) -> int | None:
    """Return the number of test images that a value rests on; None where it is not known."""
    images = protocol.test_images if protocol is not None else None
    if images is None and data_set in catalogue():
        images = catalogue()[data_set].test_items
    return images


def _claim(claim: Claim) -> PublishedClaim:
    first, second = _network(claim.first), _network(claim.second)
    same = {name: getattr(claim, name) for name in (
        "id", "paper", "place", "wording", "difference", "unit", "expected", "times_parameters", "equal_familiar",
        "from_memory",
    )}  # fmt: skip
    attack = claim.attack or (first.value.attack if first.value is not None else None)
    return PublishedClaim(**same, first=first, second=second, attack=attack)


def _network(side: str | Side) -> Network:
    if isinstance(side, Side):
        return Network(side.model, side.options, side.protocol)
    value = next(value for value in read_published() if value.id == side)
    return Network(str(value.model), value.all_options, str(value.protocol), value)
