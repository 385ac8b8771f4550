import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from capsbench.errors import InputError
from capsbench.registry import MODELS, PROTOCOLS
from capsbench.study import Study, catalogue, load_plan
from capsbench.study.files import read_yaml
from capsbench.study.json_schema import json_schema
from capsbench.study.shipped import TEMPLATE

SHIPPED = [*sorted((Path(__file__).parents[2] / "configs").glob("*.yaml")), TEMPLATE]
SMALL: dict[str, Any] = {
    "name": "small",
    "seeds": [0, 1],
    "experiments": {"digits": {"data": {"name": "digits"}}},
    "variants": {"v": {"model": "capsnet"}},
}


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json.loads(json.dumps(json_schema()))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def study(**changes: Any) -> dict[str, Any]:
    """The small study with values replaced, keys leading to them: variants__v__model."""
    made = copy.deepcopy(SMALL)
    for path, value in changes.items():
        *outer, last = path.split("__")
        node = made
        for key in outer:
            node = node.setdefault(key, {})
        node[last] = value
    return made


def load(raw: dict[str, Any], folder: Path) -> None:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(raw))
    load_plan(path)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_studies_validate(validator, path):
    assert [error.message for error in validator.iter_errors(read_yaml(path))] == []


def test_the_keys_are_those_of_a_study():
    assert set(json_schema()["properties"]) == {field.alias or name for name, field in Study.model_fields.items()}


@pytest.mark.parametrize("name", MODELS.names())
def test_the_options_of_every_network_are_known(validator, name):
    usual = {key: value for key, value in MODELS.options(name)().plain().items() if key != "name"}
    assert validator.is_valid(study(variants__v__model=name, variants__v__options=usual))
    assert not validator.is_valid(study(variants__v__model=name, variants__v__options={**usual, "wide": 3}))
    assert not validator.is_valid(study(variants__v__model=name, variants__v__options={**usual, "name": name}))


@pytest.mark.parametrize("name", catalogue())
def test_the_options_of_every_data_set_are_known(validator, name):
    usual = catalogue()[name].options().model_dump(mode="json")
    assert validator.is_valid(study(experiments__digits__data={"name": name, "options": usual}))
    assert not validator.is_valid(study(experiments__digits__data={"name": name, "options": {**usual, "shfit": 2}}))


@pytest.mark.parametrize(
    "changes",
    [
        {"variants__v__options": {"routing": "em"}},
        {"variants__v__options": {"routing": {"name": "em", "iterations": 2}}},
        {"variants__v__options": {"routing": {"iterations": 2}}},
        {"variants__v__options": {"decoder": None}},
        {"variants__v__options": {"decoder": {"hidden": [16, 32]}}},
        {"variants__v__options": {"transform": {"name": "low_rank", "rank": 2}}},
        {"variants__v": {"model": "cnn_matched", "options": {"matched_to": {"name": "capsnet", "routing": "em"}}}},
        {"variants__v": {"model": "matrix_capsnet", "options": {"routing": {"iterations": 2}}}},
        {"variants__v__grid": {"routing.iterations": [1, 3], "decoder": [None, "fully_connected"]}},
        {"variants__v__label": "CapsNet"},
        {"training": {"epochs": 3}},
        {"training": {"steps": 30, "schedule": "scaled", "schedule_steps": 5, "l2": 1e-7}},
        {"training": {"steps": 30, "epochs": None, "match": None}},
        {"evaluations": PROTOCOLS.names()},
        {"experiments__digits__evaluations": ["cost", {"name": "transforms", "images": 50}]},
    ],
    ids=str,
)
def test_what_a_study_may_say_is_valid(validator, tmp_path, changes):
    load(study(**changes), tmp_path)
    assert [error.message for error in validator.iter_errors(study(**changes))] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"sedes": [1]},
        {"seeds": []},
        {"name": "two words"},
        {"variants": {"two words": {"model": "capsnet"}}},
        {"variants__v__model": "capsnte"},
        {"variants__v__options": {"conv_chanels": 3}},
        {"variants__v__options": {"conv_channels": 0}},
        {"variants__v__options": {"conv_channels": "many"}},
        {"variants__v__options": {"routing": "ems"}},
        {"variants__v__options": {"routing": {"name": "ems"}}},
        {"variants__v__options": {"routing": {"name": "em", "dampng": 0.1}}},
        {"variants__v__options": {"routing": {"damping": 0.1}}},  # an option of em; dynamic is the default
        {"variants__v__options": {"routing": {"name": "uniform", "iterations": 3}}},
        {"variants__v__options": {"routing": None}},
        {"variants__v__options": {"decoder": False}},
        {"variants__v__options": {"decoder": {"width": 3}}},  # an option of deconvolutional
        {"variants__v": {"model": "cnn_matched", "options": {"matched_to": {"name": "cnn_matched"}}}},
        {"variants__v": {"model": "cnn_matched", "options": {"matched_to": {"conv_chanels": 3}}}},
        {"variants__v": {"model": "cnn_matched", "options": {"matched_to": {"types": 8}}}},  # of self_routing_capsnet
        {"variants__v": {"model": "matrix_capsnet", "options": {"routing": "dynamic"}}},
        {"variants__v__grid": {"conv_channels": []}},
        {"experiments__digits__data__name": "mnits"},
        {"experiments__digits__data__options": {"shift": 2}},
        {"experiments__digits__training": {"epoch": 3}},
        {"training": {"epochs": 0}},
        {"training": {"steps": 0}},
        {"training": {"steps": 3, "epochs": 3}},
        {"variants__v__training": {"steps": 3, "epochs": 3}},
        {"training": {"schedule": "half"}},
        {"training": {"l2": -1}},
        {"training": {"match": "two words"}},
        {"training": {"match_every": 0}},
        {"evaluations": ["accuracy", "acuracy"]},
        {"tables": ["table1"]},
    ],
    ids=str,
)
def test_what_a_study_may_not_say_is_refused_by_both(validator, tmp_path, changes):
    with pytest.raises(InputError):
        load(study(**changes), tmp_path)
    assert not validator.is_valid(study(**changes))
