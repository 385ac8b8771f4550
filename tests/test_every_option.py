"""Options of all that is registered: what is new is tested by being registered."""

import inspect
import json

import pytest
from option_values import impossible_values, option_names, other_value
from pydantic import ValidationError

from capsbench.registry import DECODERS, LOSSES, MODELS, ROUTINGS, TRANSFORMS, Chosen, Options, Said
from capsbench.study import Augmentation, Training

REGISTRIES = {registry.kind: registry for registry in (LOSSES, ROUTINGS, TRANSFORMS, DECODERS, MODELS)}
EVERYTHING = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry.names()]
every_entry = pytest.mark.parametrize(("kind", "name"), EVERYTHING)
every_option = pytest.mark.parametrize(
    ("kind", "name", "option"),
    [(kind, name, option) for kind, name in EVERYTHING for option in option_names(REGISTRIES[kind].options(name))],
)


def signature(kind: str, name: str) -> inspect.Signature:
    return inspect.signature(REGISTRIES[kind][name].factory)


def problem(call, *arguments, **options) -> str:
    """The one line of the ValueError that a call ends with."""
    with pytest.raises(ValueError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@every_entry
def test_options_are_those_of_the_signature_in_its_order(kind, name):
    parameters = signature(kind, name).parameters.values()
    options = REGISTRIES[kind].options(name)
    own = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert option_names(options) == list(own)
    checked = options()
    for option, default in own.items():
        value = getattr(checked, option)
        if isinstance(default, Chosen):
            assert value.name == default.name
            assert all(getattr(value, key) == set_to for key, set_to in default.options.items())
        else:
            assert value == default


@every_entry
def test_plain_options_are_json_and_give_the_same_options(kind, name):
    options = REGISTRIES[kind].options(name)
    for given in ({}, *({option: changed} for option, changed in changes(options))):
        checked = options(**given)
        plain = checked.plain()
        assert json.loads(json.dumps(plain)) == plain
        again = options(**{key: value for key, value in plain.items() if key != "name"})
        assert again == checked
        assert options(**plain).plain() == plain
    assert REGISTRIES[kind].choose(name).name == plain["name"] == name


def changes(options):
    for option in option_names(options):
        try:
            yield option, other_value(options, option)
        except AssertionError:  # a group that cannot be null
            assert isinstance(getattr(options(), option), Options)


@every_option
def test_what_no_option_can_be_is_refused_in_one_line_that_names_it(kind, name, option):
    registry = REGISTRIES[kind]
    for value in impossible_values(registry.options(name), option):
        assert problem(registry.build, name, **{option: value}).startswith(f"{name}: option '{option}")


@every_entry
def test_an_unknown_option_is_refused_in_one_line(kind, name):
    assert problem(REGISTRIES[kind].build, name, colour=1) == f"{name}: unknown option 'colour'"


@every_entry
def test_options_have_a_json_schema_for_editors(kind, name):
    schema = json.dumps(REGISTRIES[kind].options(name).model_json_schema())
    assert all(f'"{option}"' in schema for option in option_names(REGISTRIES[kind].options(name)))


@pytest.mark.parametrize("kind", REGISTRIES)
def test_names_are_found_in_the_packages_and_have_titles(kind):
    registry = REGISTRIES[kind]
    assert registry.names() == sorted(set(registry.names()))
    for name in registry.names():
        entry = registry[name]
        assert entry.name == name and entry.title
        assert entry.factory.__module__.startswith(registry.package)
        assert entry.factory.__doc__


def test_what_people_compare_is_registered():
    assert set(ROUTINGS.names()) >= {
        "dynamic", "em", "uniform", "random", "self", "attention", "sparse", "inverted_dot_product",
        "variational_bayes", "heinsen", "ablated_attention", "centred_attention", "ablated_heinsen", "ablated_em",
        "random_selection", "common_selection", "redrawn_selection",
    }  # fmt: skip
    assert set(MODELS.names()) >= {"capsnet", "matrix_capsnet", "cnn_sabour_mnist", "cnn_matched", "resnet20"}
    assert set(LOSSES.names()) >= {"margin", "spread", "share_likelihood", "cross_entropy"}
    assert set(TRANSFORMS.names()) >= {"full", "shared", "shared_over_positions", "grouped", "low_rank"}
    assert set(DECODERS.names()) >= {"fully_connected", "convolutional", "deconvolutional"}


def test_a_bare_name_stands_in_the_schema_beside_the_group():
    schema = MODELS.options("capsnet").model_json_schema()["properties"]["routing"]
    assert {"enum": ROUTINGS.names()} in schema["anyOf"]
    assert len(schema["anyOf"]) == 1 + len(ROUTINGS.names())


def test_a_network_has_the_options_of_its_routing_and_no_others():
    assert MODELS.options("capsnet")(routing={"name": "em", "damping": 0.2}).routing.damping == 0.2
    for routing in ({"damping": 0.1}, {"name": "uniform", "iterations": 3}):
        assert "unknown option 'routing." in problem(MODELS.build, "capsnet", (1, 28, 28), 10, routing=routing)


def test_em_routing_has_one_set_of_defaults():
    alone = ROUTINGS.options("em")().plain()
    assert MODELS.options("matrix_capsnet")().plain()["routing"] == alone
    assert MODELS.options("capsnet")(routing="em").plain()["routing"] == alone
    assert alone == {
        "name": "em", "iterations": 3, "inverse_temperature": 0.02, "damping": 0.1, "variance_floor": 0.0005,
        "annealing": 0.95, "class_temperature_factor": 0.25, "damp_first_mean": True, "beta_u": 2.0, "beta_a": 1.0,
    }  # fmt: skip


def test_what_a_networks_default_sets_holds_until_another_thing_is_named():
    def decoder(given):
        return MODELS.options("efficient_capsnet")(decoder=given).plain()["decoder"]

    for given in ({"hidden": [16, 32]}, {"name": "fully_connected", "hidden": [16, 32]}):
        found = decoder(given)
        assert (found["weight"], found["reduction"], found["hidden"]) == (0.392, "mean", [16, 32])
    assert decoder("fully_connected")["weight"] == 0.392
    assert decoder({"weight": 0.1})["weight"] == 0.1
    assert decoder("convolutional")["weight"] == DECODERS.options("convolutional")().weight
    assert decoder(None) is None


def test_the_options_of_a_matched_network_are_its_own():
    def matched(given):
        return MODELS.options("cnn_matched")(matched_to=given).plain()["matched_to"]

    assert matched("resnet20") == MODELS.options("resnet20")().plain()
    assert matched({"name": "resnet20", "blocks": 2}) == MODELS.options("resnet20")(blocks=2).plain()
    with_em = matched({"routing": {"name": "em", "damping": 0.5}})
    assert with_em["name"] == "capsnet"  # the default's
    assert with_em["routing"] == ROUTINGS.options("em")(damping=0.5).plain()
    assert matched({"decoder": None})["decoder"] is None
    with pytest.raises(ValidationError, match="blocks"):
        matched({"blocks": 2})
    assert "cnn_matched" not in str(MODELS.options("cnn_matched").model_json_schema()["properties"]["matched_to"])


every_key_of_training = pytest.mark.parametrize(
    ("part", "key"), [(part, key) for part in (Training, Augmentation) for key in part.model_fields]
)


@every_key_of_training
def test_what_no_key_of_training_can_be_is_refused(part, key):
    values = impossible_values(part, key)
    assert len(values) > 1 or part.model_fields[key].annotation in (bool, Augmentation) or _is_closed(part, key)
    for value in values:
        with pytest.raises(ValidationError) as caught:
            part(**{key: value})
        assert caught.value.errors()[0]["loc"][0] == key


def _is_closed(part, key) -> bool:
    """Tell whether a key takes words from a list, or a name."""
    return any("enum" in kind or "pattern" in kind for kind in _kinds(part.model_json_schema()["properties"][key]))


def _kinds(schema):
    return [schema, *schema.get("anyOf", [])]


@every_key_of_training
def test_every_key_of_training_is_described_in_a_line(part, key):
    assert 10 < len(part.model_fields[key].description) < 200


def test_what_papers_and_code_disagree_on_is_said():
    said = {
        key: part for key, field in Training.model_fields.items() for part in field.metadata if isinstance(part, Said)
    }
    assert {"steps", "lr_decay_every", "learning_rate", "batch_size", "lr_floor", "l2", "match"} <= said.keys()
    assert "20,000" in said["lr_decay_every"].paper and "6.2" in said["lr_decay_every"].note
    assert "300,000" in said["steps"].code and Training().steps == 300_000
    assert "1e-7" in said["l2"].code
