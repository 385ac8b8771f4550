import importlib
import inspect

import pytest
from pydantic import ValidationError

import capsbench.options
from capsbench.options import (
    UnknownChoice,
    chosen_options,
    default_opponent,
    default_routing,
    flat_options,
    model_class_name,
    model_names,
    model_options,
    opponent_names,
    option_modules,
    routing_names,
    routing_options,
)


def constructor(name: str) -> inspect.Signature:
    module = importlib.import_module(f"capsbench.models.{name}")
    return inspect.signature(getattr(module, model_class_name(name)))


@pytest.mark.parametrize("name", model_names())
def test_options_read_by_parsing_are_those_of_the_constructor(name):
    keyword_only = [p for p in constructor(name).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert keyword_only
    own = {p.name: p.default for p in keyword_only}
    routing = default_routing(name)
    more = {} if routing is None else {option: default for option, (_, default) in routing_options(routing).items()}
    if (opponent := default_opponent(name)) is not None:
        assert own["opponent_options"] == {}
        own["opponent_options"] = model_options(opponent)().model_dump()
    assert model_options(name)().model_dump() == own | more
    assert list(model_options(name).model_fields) == [*own, *more]


@pytest.mark.parametrize("name", routing_names())
def test_options_of_a_routing_are_what_its_function_takes_after_the_tensors(name):
    function = getattr(importlib.import_module(f"capsbench.routing.{name}"), f"{name}_routing")
    taken = {
        p.name: p.default
        for p in inspect.signature(function).parameters.values()
        if p.default is not p.empty and "Tensor" not in str(p.annotation)
    }
    assert {option: default for option, (_, default) in routing_options(name).items()} == taken
    options = model_options("capsnet", name)()
    assert options.routing == name
    assert {option: getattr(options, option) for option in taken} == taken


def test_a_network_has_the_options_of_its_routing_and_no_others():
    assert model_options("capsnet", "em")(damping=0.1).damping == 0.1
    with pytest.raises(ValidationError, match="damping"):
        model_options("capsnet", "dynamic")(damping=0.1)
    with pytest.raises(ValidationError, match="iterations"):
        model_options("capsnet", "uniform")(iterations=3)
    with pytest.raises(KeyError, match="nosuch"):
        model_options("capsnet", "nosuch")


def test_the_options_of_an_opponent_are_those_of_that_network():
    chosen = chosen_options("cnn_matched", {"opponent": "resnet20", "opponent_options": {"blocks": 2}})
    options = chosen(opponent="resnet20", opponent_options={"blocks": 2})
    assert options.opponent_options.model_dump() == model_options("resnet20")(blocks=2).model_dump()
    with pytest.raises(ValidationError, match="blocks"):
        chosen_options("cnn_matched", {})(opponent_options={"blocks": 2})
    with_em = {"opponent_options": {"routing": "em", "damping": 0.5}}
    assert chosen_options("cnn_matched", with_em)(**with_em).opponent_options.damping == 0.5


def test_a_network_with_an_opponent_is_nobodys_opponent():
    assert set(model_names()) - set(opponent_names()) == {"cnn_matched"}
    with pytest.raises(UnknownChoice, match="no opponent 'cnn_matched'; there are capsnet, cnn_hinton_norb"):
        chosen_options("cnn_matched", {"opponent": "cnn_matched"})


@pytest.mark.parametrize(
    ("name", "given", "key"),
    [
        ("capsnet", {"routing": "emm"}, "routing"),
        ("capsnet", {"routing": ["em"]}, "routing"),
        ("cnn_matched", {"opponent": "capsnte"}, "opponent"),
        ("cnn_matched", {"opponent_options": {"routing": "emm"}}, "opponent_options.routing"),
    ],
    ids=str,
)
def test_a_choice_that_is_not_registered_is_named_with_its_place(name, given, key):
    with pytest.raises(UnknownChoice, match="there are ") as raised:
        chosen_options(name, given)
    assert raised.value.key == key


def test_options_in_a_mapping_have_dotted_names():
    assert flat_options({"a": 1, "b": {"c": 2, "d": [3]}}) == {"a": 1, "b.c": 2, "b.d": [3]}


def test_modules_are_those_of_routing_and_opponent():
    of_capsnet = ("capsbench.routing.em",)
    assert option_modules("capsnet", {"routing": "em"}) == of_capsnet
    matched = {"opponent": "capsnet", "opponent_options": {"routing": "em"}}
    assert option_modules("cnn_matched", matched) == ("capsbench.models.capsnet", *of_capsnet)
    assert option_modules("resnet20", {}) == ()


def test_the_routings_that_people_compare_are_registered():
    assert set(routing_names()) == {
        "dynamic", "em", "uniform", "random", "self", "attention", "sparse", "inverted_dot_product",
        "variational_bayes", "heinsen",
    }  # fmt: skip


@pytest.mark.parametrize("name", model_names())
def test_every_default_satisfies_its_own_limits(name):
    defaults = model_options(name)().model_dump()
    assert model_options(name)(**defaults).model_dump() == defaults


def test_the_paper_models_are_registered():
    assert set(model_names()) >= {"capsnet", "cnn_sabour_mnist", "cnn_matched"}


@pytest.mark.parametrize(
    ("model", "option", "value"),
    [
        ("capsnet", "iterations", 0),
        ("capsnet", "routing", "other"),
        ("capsnet", "decoder_hidden", []),
        ("capsnet", "decoder_hidden", [512, 0]),
        ("capsnet", "decoder_dropout", 1.0),
        ("capsnet", "weight_std", 0.0),
        ("capsnet", "negative_weight", -0.1),
        ("cnn_matched", "colour", 1),
    ],
)
def test_limits_of_the_annotations_act(model, option, value):
    with pytest.raises(ValidationError, match=option):
        model_options(model)(**{option: value})


def test_a_name_that_is_not_registered_is_a_key_error():
    with pytest.raises(KeyError, match="resnet"):
        model_options("resnet")


@pytest.fixture
def write_model(tmp_path, monkeypatch):
    """Write models/new.py, the only model there is."""

    def clear() -> None:
        for cached in (model_options, model_class_name, default_routing, default_opponent):
            cached.cache_clear()

    monkeypatch.setattr(capsbench.options, "MODELS_FOLDER", tmp_path)
    clear()
    yield (tmp_path / "new.py").write_text
    clear()


def model_source(arguments: str) -> str:
    return f"class New:\n    def __init__(self, image_shape, num_classes, {arguments}):\n        pass\n"


def test_a_new_file_is_a_new_model(write_model):
    write_model(
        "import no_such_package\n\n\nclass _Part:\n    pass\n\n\n" + model_source("*, width: Count | None = None")
    )
    assert model_names() == ["new"]
    assert model_class_name("new") == "New"
    assert model_options("new")(width=3).model_dump() == {"width": 3}
    assert model_options("new")().model_dump() == {"width": None}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        pytest.param(
            model_source("*, a: int = 1") + "\n\nclass Second:\n    pass\n",
            "exactly one public class.*found: New, Second",
            id="two public classes",
        ),
        pytest.param("class _Hidden:\n    pass\n", "exactly one public class.*found: none", id="no public class"),
        pytest.param("class New:\n    pass\n", "New has no __init__", id="no constructor"),
        pytest.param(model_source("*, width: Count"), "'width' needs a type and a default", id="no default"),
        pytest.param(model_source("*, width=3"), "'width' needs a type and a default", id="no type"),
        pytest.param(
            model_source("*, width: Sized = 3"), "type 'Sized' of option 'width' is not made of Literal", id="bad type"
        ),
        pytest.param(
            model_source("*, width: Count = 2 * 3"),
            "option 'width'",
            id="default that is no literal",
        ),
        pytest.param(
            model_source("*, width: Count = 0"),
            "option 'width'",
            id="default outside its limits",
        ),
        pytest.param(
            model_source("width: Count = 3"),
            r"arguments are \(self, image_shape, num_classes, \*, options\)",
            id="option that is not keyword-only",
        ),
        pytest.param(
            model_source('*, opponent: Opponent = "capsnet"'),
            "a choice of opponent is written opponent: Opponent",
            id="opponent without its options",
        ),
    ],
)
def test_a_model_that_breaks_the_contract_is_a_type_error(write_model, source, problem):
    write_model(source)
    with pytest.raises(TypeError, match=f"models/new.py.*{problem}"):
        model_options("new")
