"""Registries, and options that are read from signatures, on small ones made here."""

import importlib
import sys
import textwrap
from typing import Annotated, Literal

import pytest
from pydantic import ValidationError

from capsbench.errors import InputError
from capsbench.registry import (
    Chosen,
    Count,
    Counts,
    Fraction,
    Later,
    NonNegative,
    Options,
    Positive,
    Registry,
    Seed,
    UnknownName,
    flat_options,
    without_later,
)


def problem(call, *arguments, **options) -> str:
    """The one line of the ValueError that a call ends with."""
    with pytest.raises(ValueError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class Engine:
    def __init__(self, size: int, *, power: Positive = 1.0, turbo: bool = False):
        self.size, self.power, self.turbo = size, power, turbo


class Sail:
    def __init__(self, size: int, *, area: Count = 10, shape: Literal["square", "lateen"] = "lateen"):
        self.size, self.area, self.shape = size, area, shape


@pytest.fixture
def drives() -> Registry:
    registry = Registry("drive", "json")  # a package without such things: all is registered here
    registry.register("engine", title="steam engine", burns="coal")(Engine)
    registry.register("sail_and_oar")(Sail)
    return registry


@pytest.fixture
def ships(drives) -> Registry:
    registry, usual = Registry("ship", "json"), drives.choose("engine", power=3.0)

    @registry.register("ship")
    class Ship:
        def __init__(
            self,
            name: str,
            *,
            drive: Annotated[Chosen, drives] = usual,
            spare: Annotated[Chosen, drives] | None = None,
            decks: Counts = (1, 2),
        ):
            self.name, self.decks = name, decks
            self.drive, self.spare = drive.build(7), spare and spare.build(8)

    return registry


def test_an_entry_has_a_title_and_facts(drives):
    assert drives.names() == ["engine", "sail_and_oar"]
    engine, sail = drives["engine"], drives["sail_and_oar"]
    assert (engine.name, engine.factory, engine.title, engine.facts) == (
        "engine",
        Engine,
        "steam engine",
        {"burns": "coal"},
    )
    assert (sail.title, sail.facts) == ("sail and oar", {})


def test_options_are_the_keyword_only_arguments_with_their_defaults_and_limits(drives):
    options = drives.options("engine")
    assert issubclass(options, Options)
    assert list(options.model_fields) == ["name", "power", "turbo"]
    assert options().plain() == {"name": "engine", "power": 1.0, "turbo": False}
    assert options(power=2).power == 2.0
    for wrong in ({"power": 0.0}, {"power": "much"}, {"turbo": 3}, {"size": 7}, {"name": "sail_and_oar"}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            options(**wrong)
    with pytest.raises(ValidationError):
        options().power = 2.0  # frozen


def test_build_checks_options_and_hands_on_the_arguments(drives):
    built = drives.build("engine", 5, turbo=True)
    assert (built.size, built.power, built.turbo) == (5, 1.0, True)
    assert problem(drives.build, "engine", 5, power=-1).startswith("engine: option 'power'")
    assert problem(drives.build, "engine", 5, speed=1) == "engine: unknown option 'speed'"
    assert "option 'shape'" in problem(drives.build, "sail_and_oar", 5, shape="round")


def test_an_unknown_name_is_refused_with_the_nearest_and_all_others(drives):
    for look_up in (drives.__getitem__, drives.build, drives.options):
        with pytest.raises(UnknownName, match=r"no drive 'engin'; did you mean engine.* engine, sail_and_oar"):
            look_up("engin")
    assert "did you mean" not in problem(drives.options, "xyz")


def test_a_group_takes_a_name_a_mapping_a_choice_or_nothing(drives, ships):
    engine = {"name": "engine", "power": 3.0, "turbo": False}
    sail = {"name": "sail_and_oar", "area": 10, "shape": "lateen"}
    for given, expected in [
        ({}, engine),
        ({"drive": "engine"}, engine),
        ({"drive": "sail_and_oar"}, sail),
        ({"drive": {"name": "sail_and_oar", "area": 4}}, sail | {"area": 4}),
        ({"drive": drives.choose("sail_and_oar", area=4)}, sail | {"area": 4}),
        ({"drive": {"turbo": True}}, engine | {"turbo": True}),  # without a name it is the default's
        ({"drive": {"name": "engine", "turbo": True}}, engine | {"turbo": True}),  # and 3.0 holds on
        ({"drive": {"power": 1.0}}, engine | {"power": 1.0}),
    ]:
        assert ships.options("ship")(**given).plain()["drive"] == expected, given
    assert ships.options("ship")(spare="engine").plain()["spare"] == engine | {"power": 1.0}  # no default to merge with
    assert ships.options("ship")(spare=None).plain()["spare"] is None


def test_a_group_is_built_with_all_its_options(ships):
    ship = ships.build("ship", "Nautilus", drive={"turbo": True}, spare="sail_and_oar", decks=[3])
    assert (ship.name, ship.decks) == ("Nautilus", (3,))
    assert (ship.drive.size, ship.drive.power, ship.drive.turbo) == (7, 3.0, True)
    assert (ship.spare.size, ship.spare.area) == (8, 10)
    plain = ships.build("ship", "Nautilus")
    assert (plain.drive.power, plain.spare) == (3.0, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drive": "engin"}, "ship: no drive 'engin'; did you mean engine"),
        ({"drive": {"name": "engin"}}, "ship: no drive 'engin'; did you mean engine"),
        ({"drive": None}, "ship: option 'drive'"),
        ({"drive": ["engine"]}, "ship: option 'drive'"),
        ({"drive": {"power": -1}}, "ship: option 'drive.power'"),
        ({"drive": {"area": 1}}, "ship: unknown option 'drive.area'"),
        ({"drive": {"name": "sail_and_oar", "power": 1}}, "ship: unknown option 'drive.power'"),
        ({"spare": {"name": "sail_and_oar", "area": 0}}, "ship: option 'spare.area'"),
        ({"decks": []}, "ship: option 'decks'"),
        ({"decks": [1, 0]}, "ship: option 'decks.1'"),
    ],
    ids=str,
)
def test_a_problem_in_a_group_is_named_with_its_place(ships, options, message):
    assert problem(ships.build, "ship", "Nautilus", **options).startswith(message)


def test_a_group_can_be_a_part_of_a_registry(drives):
    ships, engine, sail = Registry("ship", "json"), drives.choose("engine"), drives.choose("sail_and_oar")

    @ships.register("barge")
    class Barge:
        def __init__(self, *, drive: Annotated[Chosen, drives.only("engine")] = engine): ...

    @ships.register("yacht")
    class Yacht:
        def __init__(self, *, drive: Annotated[Chosen, drives.without("engine")] | None = sail): ...

    assert ships.options("barge")(drive="engine").drive.name == "engine"
    assert "engine" in problem(ships.build, "barge", drive="sail_and_oar")
    assert ships.options("yacht")(drive="sail_and_oar").drive.name == "sail_and_oar"
    assert "no drive 'engine'; there are sail_and_oar" in problem(ships.build, "yacht", drive="engine")


def test_a_name_is_given_once(drives):
    with pytest.raises(TypeError, match=r"drive 'engine' is registered already, by .*Engine") as caught:
        drives.register("engine")(Sail)
    assert "Sail" in str(caught.value)  # who came second
    drives.register("engine")(Engine)  # as when its module is imported again
    assert drives.names() == ["engine", "sail_and_oar"]


def no_type(self, *, power=1.0): ...


def no_default(self, *, power: Positive): ...


def beyond_its_limit(self, *, power: Positive = 0.0): ...


def positional(self, size, power: Positive = 1.0): ...


def reserved(self, *, registry: Positive = 1.0): ...


@pytest.mark.parametrize(
    ("init", "words"),
    [
        (no_type, "option 'power'"),
        (no_default, "option 'power'"),
        (beyond_its_limit, "option 'power'"),
        (positional, "'power' has a default; put options after a"),
        (reserved, "no option can be called 'registry'"),
    ],
)
def test_options_that_cannot_be_read_are_named_with_their_place(init, words):
    registry, wrong = Registry("drive", "json"), type("Wrong", (), {"__init__": init})
    registry.register("wrong")(wrong)
    with pytest.raises(InputError, match=rf"test_registry\.Wrong: {words}") as caught:
        registry.options("wrong")
    assert "\n" not in str(caught.value)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write files of a package of boats, whose registry is `boats_of_a_test.BOATS`; each names its class."""
    folder = tmp_path / "boats_of_a_test"
    folder.mkdir()
    head = "from capsbench.registry import Registry\n\nBOATS = Registry('boat', 'boats_of_a_test')\n"
    (folder / "__init__.py").write_text(head)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name: str, source: str) -> None:
        head = "from boats_of_a_test import BOATS\nfrom capsbench.registry import Count\n\n"
        (folder / f"{name}.py").write_text(head + textwrap.dedent(source))

    yield write
    for module in [module for module in sys.modules if module.split(".")[0] == "boats_of_a_test"]:
        del sys.modules[module]


def boats() -> Registry:
    importlib.invalidate_caches()
    return importlib.import_module("boats_of_a_test").BOATS


def test_a_new_file_in_a_package_registers_itself(package):
    package(
        "dinghy", "@BOATS.register('rowing_boat')\nclass Dinghy:\n    def __init__(self, *, oars: Count = 2): ...\n"
    )
    package("helpers", "class Plank: ...\n")
    assert boats().names() == ["rowing_boat"]
    assert boats().options("rowing_boat")().plain() == {"name": "rowing_boat", "oars": 2}


@pytest.mark.parametrize("source", ["import no_such_package\n", "1 / 0\n", "def (:\n"], ids=str)
def test_an_unfinished_file_in_a_package_is_named_in_one_line(package, source):
    package("dinghy", "@BOATS.register('dinghy')\nclass Dinghy: ...\n")
    package("raft", source)
    for _ in range(2):  # nor are the others given out the second time, as if there were no more
        with pytest.raises(InputError, match=r"boats_of_a_test/raft\.py: cannot be imported: \w+Error") as caught:
            boats().names()
        assert "\n" not in str(caught.value)
    package("raft", "@BOATS.register('raft')\nclass Raft: ...\n")
    importlib.invalidate_caches()
    assert boats().names() == ["dinghy", "raft"]


@pytest.mark.parametrize(
    ("kind", "possible", "impossible"),
    [
        (Count, [1, 7], [0, -1, 1.5, "one", None]),
        (Positive, [1e-9, 3, 3.5], [0, -1.0, float("inf"), float("nan"), "much"]),
        (NonNegative, [0, 0.5], [-1e-9, float("inf"), float("nan")]),
        (Fraction, [0, 0.999], [1, -0.1, float("nan")]),
        (Seed, [0, 2**63 - 1], [-1, 2**63, 0.5]),
        (Counts, [[1], (2, 3)], [[], [0], 3, ["one"]]),
    ],
    ids=["Count", "Positive", "NonNegative", "Fraction", "Seed", "Counts"],
)
def test_types_of_options_have_their_limits(kind, possible, impossible):
    registry = Registry("thing", "json")

    def thing(*, option: kind | None = None): ...

    registry.register("thing")(thing)
    for value in possible:
        registry.build("thing", option=value)
    for value in (value for value in impossible if value is not None):
        assert "option 'option" in problem(registry.build, "thing", option=value)


def test_flat_options_have_dotted_names():
    assert flat_options({"a": 1, "b": {"c": 2, "d": [3]}}) == {"a": 1, "b.c": 2, "b.d": [3]}
    group = {"routing": {"name": "em", "damping": 0.1}, "decoder": None}
    assert flat_options(group) == {"routing": "em", "routing.damping": 0.1, "decoder": None}
    nested = {"matched_to": {"name": "capsnet", "routing": {"name": "em", "damping": 0.1}}}
    assert flat_options(nested) == {
        "matched_to": "capsnet", "matched_to.routing": "em", "matched_to.routing.damping": 0.1,
    }  # fmt: skip


def test_a_choice_is_built_as_its_entry_is():
    registry = Registry("thing", "json")
    registry.register("thing")(lambda size, *, width=1: (size, width))
    assert registry.choose("thing", width=2).build(3) == (3, 2)


def test_options_that_came_later_are_left_out_where_they_have_their_default(drives):
    @drives.register("rotor")
    class Rotor:
        def __init__(self, size: int, *, speed: Count = 5, wind: Annotated[bool, Later()] = False): ...

    ships, rotor, engine = Registry("ship", "json"), drives.choose("rotor"), drives.choose("engine")

    @ships.register("ship")
    class Ship:
        def __init__(
            self,
            *,
            drive: Annotated[Chosen, drives] = rotor,
            spare: Annotated[Chosen, drives] | None = None,
            tow: Annotated[Chosen, drives, Later()] = engine,
            decks: Annotated[Counts, Later()] = (1, 2),
        ): ...

    def kept(**given):
        options = ships.options("ship")
        return without_later(options, options(**given).plain())

    plain = {"name": "rotor", "speed": 5}
    assert kept() == {"name": "ship", "drive": plain, "spare": None}
    assert kept(decks=(1, 2), tow="engine", drive={"wind": False}) == kept()
    assert kept(decks=(1, 3))["decks"] == [1, 3]
    assert kept(drive={"wind": True})["drive"] == plain | {"wind": True}
    assert kept(tow={"turbo": True})["tow"] == {"name": "engine", "power": 1.0, "turbo": True}
    assert kept(tow="rotor", spare="rotor")["tow"] == kept(spare="rotor")["spare"] == plain
    assert without_later(ships.options("ship"), {"decks": [1, 2], "gone": 1}) == {"gone": 1}
