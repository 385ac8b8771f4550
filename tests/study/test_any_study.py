"""Whatever a study file holds, it is a plan or one line that names the file."""

import copy
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from any_cases import cases, for_each
from hypothesis import strategies as st
from small_studies import STUDY

from capsbench.errors import InputError
from capsbench.study import Plan, load_plan

LONGEST_LINE = 2000  # some list all names that there are


class Raw(str):
    """What is written into the file as it stands, such as a tag or an alias."""


FULL = """\
schema: 2
name: full
description: each key at least once
seeds: [0, 1]
training: {steps: 20, batch_size: 16, learning_rate: 0.002, lr_decay: 0.9, device: cpu, threads: 2}
evaluations: [accuracy, familiar, reconstruction, {name: calibration}]
experiments:
  digits: {data: {name: digits, train_images: 200, split: per_seed}, variants: [caps, cnn], evaluations: [cost]}
  moved:
    data: {name: affdigits, validation_images: 50, options: {transforms_per_image: 2}}
    training: {epochs: 3, augmentation: {shift: 1, rotation: 5.5}}
  solids: {data: {name: toynorb, options: {lightings: 1, view: elevation}}, variants: [cnn, matched]}
variants:
  caps:
    model: capsnet
    label: Caps
    options: {conv_channels: 8, routing: {name: em, damping: 0.1}, loss: spread}
    grid: {routing.iterations: [1, 3], decoder: [{name: fully_connected, hidden: [8, 16]}, null], training.l2: [0, 0.5]}
  cnn: {model: cnn_matched, options: {matched_to: {name: capsnet, conv_channels: 16}}}
  matched: {model: resnet20, training: {match: cnn, match_every: 10}, options: {widths: [4, 8]}}
contrasts:
  pairs: [{a: caps-iterations1-fully_connected-l20, b: cnn, experiment: digits, name: one}]
  axis: {axis: routing.iterations, against: 3, variants: [caps], experiments: [digits]}
tables: [summary, cost, {name: own, rows: ["caps*", cnn], columns: [error, parameters], contrasts: [pairs]}]
plots: [contrasts, learning_curves]
tracking: false
"""
MATCHED = """\
name: matched
seeds: [3]
training: {epochs: 2, device: cpu}
experiments: {solids: {data: {name: toynorb, options: {lightings: 1, view: azimuth}}}}
variants:
  caps: {model: capsnet, options: {routing: uniform, decoder: null}, training: {match: cnn}}
  cnn: {model: cnn_hinton_norb, options: {conv_channels: [4, 4], hidden: 8}}
"""
STUDIES = (STUDY, FULL, MATCHED)
TREES = tuple(yaml.safe_load(study) for study in STUDIES)

NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([2**31, 2**63, -(2**64), 10**30, 10**400, 1e308, -1e-320, 1e-9, -0.0, math.nan, math.inf]),
    st.floats(),
)
WORDS = st.one_of(
    st.sampled_from([
        "em", "cnn", "caps", "name", "training.epochs", "routing.iterations", "a.b.c", ".", "", "null", "NaN", "-1",
        "~", "../up", "a/b", "x" * 300, "é", "ナ", "\u2028", "a\nb", "\x85", "\x1b[2J", "😀", "%s {0}", "*", "[",
        "smallnorb", "mnist", "capsnet", "scae", "affnist", "multidigits", "fully_connected", "per_seed",
        "confusion", "adversarial",
    ]),
    st.text(max_size=6),
)  # fmt: skip
RAW = st.sampled_from([
    Raw(text) for text in (
        "!!int x", "!!float 1_0.5", "!!binary aGk=", "!!binary é", "!!timestamp 2001-01-01", "!!set {a, b}",
        "!!omap [{a: 1}]", "!!pairs [a: 1]", "!!null x", "!!str {a: 1}", "!!map [a]", "!!seq {a: 1}", "!!bool [true]",
        "!!python/name:os.system", "!mine {a: 1}", "! x", "&r [*r]", "&m {<<: *m}", "{<<: 3}", "{<<: [1, {a: 2}]}",
        "*nothing", "&a {b: &a 1, c: *a}", "? a", "{? [1] : 2}", "{? {a: 1} : 2}", "{1: 2}", "{null: 2}", "{a, b}",
        "[", "}",
        '"\\ud800"', '"\\udfff\\ud800"', '"\\0"', '"\\L"', "2001-01-01", "1:30", "0x1F", "1_000", "017", "=", "<<", "|",
        "- a", "@a", "`a`", "%a", "7" * 5000, "." + "1" * 5000, "1e999", "-.inf", "[" * 45 + "]" * 45, "a: b: c",
        "#", "",
    )
])  # fmt: skip
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, RAW)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(WORDS, SCALARS, max_size=3),
    st.integers(5, 60).map(lambda depth: Raw("[" * depth + "1" + "]" * depth)),
    st.sampled_from([list(range(150)), [{"a": 1}] * 2, {"name": []}, {"name": {}}, [[]], [None], {"name": None}]),
)
ACTIONS = ("drop", "replace", "rename", "move", "copy", "wrap", "add")
MUTATIONS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 500), st.integers(0, 500), VALUES, WORDS), min_size=1, max_size=3
)
TREES_AND_MUTATIONS = st.tuples(st.sampled_from(range(len(TREES))), MUTATIONS)
PIECES = st.one_of(
    RAW,
    st.text(max_size=4),
    st.sampled_from(
        [": ", "- ", "\n", "  ", "\t", "{", "}", "[", "]", "&x ", "*x", "<<: *x", "!!", '"', "'", "#", "---\n"]
    ),
)
CUTS = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 40), PIECES), min_size=1, max_size=4)
TEXTS = st.tuples(st.sampled_from(STUDIES), CUTS)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a tree with each of its keys."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(pairs):
        yield node, key
        yield from places(value)


def mutate(tree: Any, action: str, place: int, other: int, value: Any, word: str) -> None:
    """Change a tree at one of its places."""
    known = list(places(tree))
    if not known:
        return
    value = copy.deepcopy(value)  # hypothesis gives the same object to more than one case
    node, key = known[place % len(known)]
    target, there = known[other % len(known)]
    match action:
        case "drop":
            del node[key]
        case "replace":
            node[key] = value
        case "rename" if isinstance(node, dict):
            node[word] = node.pop(key)
        case "move" | "copy":
            target[there] = copy.deepcopy(node[key])
            if action == "move" and key in (node if isinstance(node, dict) else range(len(node))):
                del node[key]
        case "wrap":
            node[key] = [node[key]] if other % 2 else {word: node[key]}
        case "add" if isinstance(node[key], dict):
            node[key][word] = value
        case "add" if isinstance(node[key], list):
            node[key].append(value)


def written(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {written(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return json.dumps(value, ensure_ascii=False)


def changed(case: tuple[int, list]) -> str:
    """The text of a study after some mutations; its first level is on lines of its own."""
    number, mutations = case
    tree = copy.deepcopy(TREES[number])
    for mutation in mutations:
        mutate(tree, *mutation)
    return "".join(f"{json.dumps(key, ensure_ascii=False)}: {written(value)}\n" for key, value in tree.items())


def cut(case: tuple[str, list]) -> str:
    """The text of a study with pieces of it replaced, whatever that makes of it."""
    text, cuts = case
    for start, length, piece in cuts:
        start %= len(text) + 1
        text = text[:start] + piece + text[start + length :]
    return text


def outcome(path: Path, content: str | bytes) -> Plan | str:
    """The plan of a file, or the line that refuses it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    try:
        plan = load_plan(path)
    except InputError as error:
        line = str(error)
        assert line.startswith(f"{path}: ")
        assert len(line.splitlines()) == 1
        assert len(line) < LONGEST_LINE
        assert line.isprintable()
        return line
    assert plan.runs
    assert len({run.key for run in plan.runs}) == len(plan.runs)
    for run in plan.runs[:3]:
        assert run.digest
        assert run.model_dump_json().encode()
    return plan


@pytest.mark.parametrize("study", STUDIES)
def test_what_is_mutated_is_a_study(path, study):
    assert isinstance(outcome(path, study), Plan)
    number = STUDIES.index(study)
    assert isinstance(outcome(path, changed((number, []))), Plan)


@cases(150, 600)
def test_a_mutated_study_is_a_plan_or_one_line(path, count):
    found: set[type] = set()
    for_each(TREES_AND_MUTATIONS, count, lambda case: found.add(type(outcome(path, changed(case)))))
    assert found == {Plan, str}


@cases(50, 600)
def test_a_study_with_pieces_replaced_is_a_plan_or_one_line(path, count):
    found: set[type] = set()
    for_each(TEXTS, count, lambda case: found.add(type(outcome(path, cut(case)))))
    assert found == {Plan, str}


@cases(25, 250)
def test_any_text_is_one_line(path, count):
    for_each(st.text(), count, lambda text: outcome(path, text))


@cases(25, 250)
def test_any_bytes_are_one_line(path, count):
    for_each(st.binary(), count, lambda content: outcome(path, content))
