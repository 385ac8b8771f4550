"""Study files that are none, or were made to do harm: one line each, soon."""

import os
import time
from pathlib import Path

import pytest

from capsbench import __version__
from capsbench.errors import InputError
from capsbench.registry import MODELS, flat_options
from capsbench.study import files, load_plan
from capsbench.study.files import DEEPEST, LARGEST_FILE, MOST_VALUES, SCHEMA, read_yaml
from capsbench.study.shipped import TEMPLATE


def bomb(first: str, layer: str) -> str:
    """Nine layers, each of which names the one before it ten times."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} {layer.format(','.join([f'*a{n - 1}'] * 10))}" for n in range(1, 10)]
    return "\n".join(lines)


def nested(depth: int) -> str:
    """A file of this depth: a mapping of lists in one another, the innermost empty."""
    return "a: " + "[" * (depth - 1) + "]" * (depth - 1)


TEXTS = {
    "lists of aliases": (bomb("[x, x]", "[{}]"), ["aliases", f"{MOST_VALUES:,}"]),
    "mappings merged": (bomb("{k: 1}", "{{<<: [{}]}}"), ["aliases", f"{MOST_VALUES:,}"]),
    "an alias of itself": ("b: 1\na: &a [*a]", ["line 2", "alias"]),
    "an alias of itself, merged": ("a: &a {<<: *a}", ["line 1", "alias"]),
    "one level too many": (nested(DEEPEST + 1), ["line 1", f"{DEEPEST} deep"]),
    "deep lists": (nested(50_000), ["line 1", f"{DEEPEST} deep"]),
    "deep blocks": ("\n".join(" " * n + "a:" for n in range(500)), [f"{DEEPEST} deep"]),
    "deep keys": ("? " * 3000 + "a", [f"{DEEPEST} deep"]),
    "a number of 5,000 digits": ("b: 1\na: " + "7" * 5000, ["line 2", "777", "int"]),
    "no number": ("a: !!int x", ["line 1", "'x'", "int"]),
    "no truth": ("a: !!bool x", ["line 1", "'x'", "bool"]),
    "no time": ("a: !!timestamp x", ["line 1", "'x'", "timestamp"]),
    "an object of Python": ("a: !!python/object/apply:os.getcwd []", ["line 1", "os.getcwd"]),
    "two documents": ("a: 1\n---\nb: 2", ["line 2", "another document"]),
    "a NUL": ("a: \0", ["not valid YAML"]),
    "a number for a key": ("a: 1\n2: 3", ["line 2", "key 2 is not a word", "quotes"]),
    "a long number for a key": ("a: 1\n" + "7" * 900 + ": 3", ["line 2", "key 777", "is not a word"]),
    "a long key twice": (f"{'k' * 500}: 1\n{'k' * 500}: 2", ["line 2", "kkk' is there twice"]),
    "a list for a key": ("? [a]\n: 1", ["line 1", "is not a word"]),
    "a key twice": ("a: 1\nb: {c: 1, c: 2}", ["line 2", "'c' is there twice"]),
    "nothing": ("", ["a study is a mapping"]),
}


def problem(path: Path) -> str:
    started = time.perf_counter()
    with pytest.raises(InputError) as caught:
        read_yaml(path)
    assert time.perf_counter() - started < 20
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    assert len(line) < 300
    return line


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_is_no_study_is_one_line(tmp_path, text):
    path = tmp_path / "study.yaml"
    content, words = TEXTS[text]
    path.write_text(content)
    line = problem(path)
    assert [word for word in words if word not in line] == []


def write_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


FILES = {
    "a FIFO": (os.mkfifo, "no regular file"),
    "a folder": (Path.mkdir, "is a folder"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    "a link to nothing": (lambda path: path.symlink_to("nothing"), "no such study file"),
    "a link to itself": (lambda path: path.symlink_to(path), "cannot be read"),
    "missing": (lambda path: None, "no such study file"),
    "bytes": (lambda path: path.write_bytes(bytes(range(256))), "no UTF-8 text"),
    "UTF-16": (lambda path: path.write_text("name: x", "utf-16"), "no UTF-8 text"),
    "huge": (write_sparse, "larger than 1 MiB"),
    "a byte too large": (lambda path: path.write_bytes(b"#" * (LARGEST_FILE + 1)), "larger than 1 MiB"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_no_study_is_one_line(tmp_path, kind):
    path = tmp_path / "study.yaml"
    make, words = FILES[kind]
    make(path)
    assert words in problem(path)


def test_anchors_aliases_and_merge_keys_may_be_used(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("a: &a {x: 1, y: [2]}\nb: *a\nc: &c {<<: *a, x: 3}\nd: {<<: [{z: 4}, *c]}\n")
    found = read_yaml(path)
    assert found["b"] == {"x": 1, "y": [2]}
    assert found["c"] == {"x": 3, "y": [2]}  # what is merged in may be replaced
    assert found["d"] == {"z": 4, "x": 3, "y": [2]}


def test_numbers_are_those_of_yaml_1_2(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("a: [010, 1_000, -3, +4, 1e-3, 2., .5]\nb: [0x10, 0o10, 1:30, 0b1, 08.5.1]\n")
    found = read_yaml(path)
    assert found["a"] == [10, 1000, -3, 4, 0.001, 2.0, 0.5]
    assert all(isinstance(value, str) for value in found["b"])


def test_the_limits_themselves_are_allowed(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(nested(DEEPEST))
    assert list(read_yaml(path)) == ["a"]
    path.write_text("a: 1\n#" + "x" * (LARGEST_FILE - 6))
    assert path.stat().st_size == LARGEST_FILE
    assert read_yaml(path) == {"a": 1}


def test_values_are_counted_with_every_alias_written_out(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MOST_VALUES", 100)
    path = tmp_path / "study.yaml"
    for text, values in (("a: [{}]", 3), ("a: &a [1, 2]\nb: *a\nc: [{}]", 11)):  # the mapping, its keys and the lists
        path.write_text(text.format(",".join(["1"] * (100 - values))))
        assert len(list(read_yaml(path).values())[-1]) == 100 - values
        path.write_text(text.format(",".join(["1"] * (101 - values))))
        assert "more than 100 values" in problem(path)


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_key(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\n")
    assert read_yaml(path) == {"name": "x"}


SMALL = """\
name: small
seeds: [0]
experiments: {digits: {data: {name: digits}}}
variants:
  capsnet: {model: capsnet, training: {}, options: {}, grid: {}}
"""


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_plan(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line


def test_a_study_of_this_format_says_so_or_says_nothing(tmp_path):
    digests = []
    for text in (SMALL, f"schema: {SCHEMA}\n{SMALL}"):
        (tmp_path / "study.yaml").write_text(text)
        plan = load_plan(tmp_path / "study.yaml")
        assert plan.study.schema_ == SCHEMA
        digests.append(plan.runs[0].digest)
    assert digests[0] == digests[1]


def test_every_shipped_study_says_its_format():
    studies = [*Path(__file__).parents[2].glob("configs/*.yaml"), TEMPLATE]
    assert len(studies) >= 6
    for path in studies:
        assert read_yaml(path)["schema"] == SCHEMA, path


def test_a_study_of_a_newer_format_names_the_version_that_is_needed(tmp_path):
    line = refusal(tmp_path, "schema: 3\nquite: different\n")
    assert "schema 3" in line
    assert "newer capsbench" in line
    assert __version__ in line


def test_a_study_of_an_older_format_names_the_version_that_reads_it(tmp_path):
    line = refusal(tmp_path, "schema: 1\nquite: different\n")
    assert "schema 1 is read by capsbench 0.1" in line
    assert f"reads schema {SCHEMA}" in line


@pytest.mark.parametrize("schema", ["0", "-1", "two", "2.0", "true", "null", "[2]"])
def test_a_schema_that_is_none_is_refused(tmp_path, schema):
    line = refusal(tmp_path, f"schema: {schema}\n{SMALL}")
    assert "schema" in line
    assert "no number of a format" in line


@pytest.mark.parametrize(
    ("old", "new", "key", "instead"),
    [
        ("training: {}", "training: {stop_at_familiar_accuracy: 0.99}", "stop_at_familiar_accuracy", "match"),
        ("options: {}", "options: {loss: {name: spread, scale: 200}}", "options.loss.scale", "schedule"),
        ("options: {}", "options: {loss: {name: spread, centre: 0}}", "options.loss.centre", "authors"),
        ("options: {}", "options: {iterations: 2}", "options.iterations", "routing.iterations"),
        ("grid: {}", "grid: {iterations: [1, 3]}", "grid.iterations", "routing.iterations"),
        ("options: {}", "options: {reconstruction: false}", "options.reconstruction", "decoder"),
    ],
)
def test_a_key_that_was_removed_says_what_took_its_place(tmp_path, old, new, key, instead):
    where, _, said = refusal(tmp_path, SMALL.replace(old, new)).partition(": is no key any more: ")
    assert where.endswith(key)
    assert instead in said


def test_what_took_the_place_of_a_removed_key_exists():
    names = set(flat_options(MODELS.options("capsnet").model_validate({"routing": "dynamic"}).plain()))
    names |= set(flat_options(MODELS.options("capsnet").model_validate({"routing": "em", "loss": "spread"}).plain()))
    names |= {"matched_to", "decoder.width"}  # of cnn_matched and of another decoder
    assert {text.split(",")[0] for text in files._GROUPED.values()} <= names
