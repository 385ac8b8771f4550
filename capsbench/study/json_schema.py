"""The JSON schema of study files, for editors and for other programs: data sets and networks with their options."""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from capsbench.registry import MODELS, PROTOCOLS
from capsbench.study.data_sets import catalogue
from capsbench.study.schema import DataInFile, Plot, Study, Variant

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/"

Schema = dict[str, Any]


def json_schema() -> Schema:
    """Return the JSON schema of a study file.

    `data` is one of the data sets with its options, a variant one of the networks with its options. Grids are free:
    what a dotted key may hold, and what several values mean together, is checked when the study is read.
    """
    networks = {name: MODELS.options(name) for name in MODELS.names()}
    data_options = {name: facts.options for name, facts in catalogue().items()}
    protocols = [PROTOCOLS.options(name) for name in PROTOCOLS.names()]
    classes: list[type[BaseModel]] = [Study, *networks.values(), *dict.fromkeys(data_options.values()), *protocols]
    found, together = models_json_schema([(each, "validation") for each in classes])
    definitions: dict[str, Schema] = together["$defs"]
    places = {each: schema["$ref"] for (each, _), schema in found.items()}

    for schema in definitions.values():
        _name_groups(schema, definitions)
    for name, options in networks.items():
        definitions[f"{name}_options"] = _without_name(definitions[places[options].removeprefix(_REF)])
    _choose(definitions, Variant, "model", {name: f"{_REF}{name}_options" for name in networks})
    _choose(definitions, DataInFile, "name", {name: places[options] for name, options in data_options.items()})

    study = definitions.pop("Study")
    for each in protocols:
        definitions[places[each].removeprefix(_REF)]["required"] = ["name"]
    with_options = [{"$ref": places[each]} for each in protocols]
    for part in (study, definitions["Experiment"]):
        part["properties"]["evaluations"]["items"] = {"anyOf": [{"enum": PROTOCOLS.names()}, *with_options]}
    drawn = [name for name in PROTOCOLS.names() if PROTOCOLS[name].facts.get("draws")]
    study["properties"]["plots"]["items"] = {"enum": [*get_args(Plot), *drawn]}
    for named in ("experiments", "variants"):
        study["properties"][named]["additionalProperties"] = False  # what is no name
    return {"$schema": DIALECT, **study, "$defs": definitions}


def _choose(definitions: dict[str, Schema], part: type[BaseModel], key: str, options: Mapping[str, str]) -> None:
    """Let the options of a part of a study depend on the name that it has under `key`."""
    schema = definitions[part.__name__]
    schema["properties"][key] = {**schema["properties"][key], "enum": list(options)}
    schema["allOf"] = [
        {
            "if": {"properties": {key: {"const": name}}, "required": [key]},
            "then": {"properties": {"options": {"$ref": place}}},
        }
        for name, place in options.items()
    ]


def _without_name(options: Schema) -> Schema:
    """Return the options of a network as a variant has them: the variant names the network under `model`."""
    return {**options, "properties": {key: value for key, value in options["properties"].items() if key != "name"}}


def _name_groups(schema: Schema, definitions: Mapping[str, Schema]) -> None:
    """Require the name of a group where its options are not those of the default."""
    for option in schema.get("properties", {}).values():
        default = option.get("default")
        if not isinstance(default, dict) or "name" not in default:
            continue
        for member in option["anyOf"]:
            reference = member.get("$ref", "").removeprefix(_REF)
            if reference and definitions[reference]["properties"]["name"]["const"] != default["name"]:
                member["required"] = ["name"]
