"""Fills the parts of README.md and docs/ that come from the code and from the committed results.

    python docs/generate.py            updates every block
    python docs/generate.py --check    prints one line per stale block; exits with 1 if there is one

Either prints, and exits with 1 for, a difference in the prose that no committed contrast has; see docs/prose.py.

A block lies between `<!-- begin NAME ARGUMENTS -->` and `<!-- end NAME -->`; BLOCKS, below, has all names. Which rows
a summary or a table of seeds shows is declared in docs/summaries.py, which questions are answered in docs/questions.py.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from answers import answers, draw_answers
from at_test import at_test
from claimed import claimed
from contrasted import contrast_rows, contrasts, contrasts_note, effects
from crops import crops
from drawn import drawn
from findings import after_more_epochs, by_seed, commits, held_out, lost_classes, results, summary, table
from first_steps import first_steps
from fitted import fit
from overlap import overlap
from places import draw_places, places
from prose import intervals, unfounded
from pydantic import BaseModel
from spreads import alike, one_class, spreads
from starts import starts, taken_for

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"(?P<begin><!-- begin (?P<name>\w+)(?P<arguments>[^\n]*?) -->\n)(?P<body>.*?)(?P<end><!-- end \2 -->)", re.S
)
LARGEST_LIMIT = 10_000_000  # limits from here on are beyond any study
# Keys of a study file whose JSON schema says less
IN_WORDS = {"description": "text", "label": "text or `null`", "evaluations": "list of words and mappings"}


def options(reference: Path, kind: str, name: str = "") -> str:
    """Return the options of a registered thing or a data set, or the keys of a part of a study file."""
    schema = _options_of(kind, name).model_json_schema()
    fields = {key: value for key, value in schema.get("properties", {}).items() if key != "name" or not name}
    if not fields:
        return "It has no options."
    explained = any("description" in value for value in fields.values())
    rows = [["option" if name else "key", "values", "default", *(["meaning"] if explained else [])]]
    for key, value in fields.items():
        meaning = [value.get("description", "")] if explained else []
        values = IN_WORDS.get(key, "") if kind in ("study", "experiment", "variant") else ""
        rows.append([f"`{key}`", values or _values(value), _default(value), *meaning])
    return table(rows)


def _options_of(kind: str, name: str) -> type[BaseModel]:
    from capsbench import registry
    from capsbench.study import catalogue, schema, training

    parts: dict[str, type[BaseModel]] = {
        "study": schema.Study,
        "experiment": schema.Experiment,
        "variant": schema.Variant,
        "data": schema.DataInFile,
        "training": training.Training,
        "augmentation": training.Augmentation,
    }
    registries = {
        "routing": registry.ROUTINGS,
        "loss": registry.LOSSES,
        "decoder": registry.DECODERS,
        "transform": registry.TRANSFORMS,
        "model": registry.MODELS,
    }
    if not name:
        return parts[kind]
    return catalogue()[name].options if kind == "data" else registries[kind].options(name)


def _values(schema: Mapping[str, Any]) -> str:
    """Put the JSON schema of an option into words: type and limits; of a group, the names that it can take."""
    if "anyOf" in schema:
        parts = schema["anyOf"]
        if "enum" in parts[0]:  # a group: its names, then the options of each
            parts = [parts[0], *(part for part in parts if part.get("type") == "null")]
        return " or ".join(map(_values, parts))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{_plain(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if "$ref" in schema or schema.get("type") == "object":
        return "mapping"
    if schema.get("type") == "array" and "oneOf" in schema["items"]:
        return "list of words and mappings"
    if schema.get("type") == "array":
        return f"list of {_values(schema['items'])}".replace("number", "numbers").replace("word", "words")
    kinds = {"integer": "whole number", "boolean": "`true`, `false`", "string": "word", "null": "`null`"}
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = {sign: schema[key] for key, sign in signs.items() if schema.get(key, LARGEST_LIMIT) < LARGEST_LIMIT}
    limited = ", ".join(f"{sign} {limit:g}" for sign, limit in limits.items())
    return f"{kinds.get(schema.get('type', ''), 'number')} {limited}".strip()


def _default(schema: Mapping[str, Any]) -> str:
    if "default" not in schema:
        return "required"
    if "Training" in schema.get("$ref", ""):
        return "see [Training](training.md)"
    return "see below" if "$ref" in schema else f"`{_plain(schema['default'])}`"


def _plain(value: Any) -> str:
    """Write a value as a study would."""
    if isinstance(value, Mapping) and list(value) == ["name"]:
        return str(value["name"])
    return value if isinstance(value, str) and value else json.dumps(value).replace('"', "" if value else '"')


def networks(reference: Path) -> str:
    """Return all networks with the images of their papers and the parameters that they have there."""
    import torch

    from capsbench.models import build_model, count_parameters
    from capsbench.registry import MODELS

    rows = [["network", "what tables call it", "images", "classes", "parameters"]]
    for name in MODELS.names():
        shape, classes = MODELS[name].facts.get("published_on", ((1, 28, 28), 10))
        with torch.device("meta"):
            parameters = count_parameters(build_model(name, shape, classes))
        images = " x ".join(map(str, shape))
        rows.append([f"`{name}`", MODELS[name].title, images, str(classes), f"{parameters:,}"])
    return table(rows)


def data(reference: Path) -> str:
    """Return all data sets: what a network sees, how many items there are, source and licence."""
    from capsbench.study import catalogue

    rows = [["name", "what it is", "images", "training items", "test items", "source", "licence"]]
    for name, facts in catalogue().items():
        images = " x ".join(map(str, facts.image_shape))
        counts = (f"{facts.train_items:,}", f"{facts.test_items:,}")
        rows.append([f"`{name}`", facts.title, images, *counts, facts.source, facts.licence])
    return table(rows)


def disputed(reference: Path, part: str) -> str:
    """Return the options of a part of which a paper or its authors' code says something, one row each."""
    from capsbench.registry import Said

    rows = [["", "option", "here", "the paper", "the authors' code", "source and remarks"]]
    for where, model in _parts(part).items():
        for option, field in model.model_fields.items():
            for said in _said(field):
                assert isinstance(said, Said)
                default = _plain(field.get_default(call_default_factory=True))
                row = [f"`{option}`", f"`{default}`", said.paper, said.code, said.note]
                known = next((other for other in rows if other[1:] == row), None)
                if known is None:
                    rows.append([where, *row])
                else:  # inherited
                    known[0] += f", {where}"
    if len(rows) == 1:
        raise ValueError(f"no option of '{part}' says what papers have")
    return table(rows)


def _parts(part: str) -> dict[str, type[BaseModel]]:
    """Return the models of options that a part of the table of protocols takes, each with how it calls them."""
    from capsbench import registry
    from capsbench.study import catalogue, schema, training

    if part == "training":
        return {"training": training.Training, "augmentation": training.Augmentation, "data": schema.DataInFile}
    if part == "data":
        options = {facts.options: None for facts in catalogue().values()}
        return {", ".join(f"`{n}`" for n, facts in catalogue().items() if facts.options is o): o for o in options}
    kinds = {
        "network": registry.MODELS, "routing": registry.ROUTINGS, "loss": registry.LOSSES,
        "decoder": registry.DECODERS, "transform": registry.TRANSFORMS,
    }  # fmt: skip
    return {f"`{name}`": kinds[part].options(name) for name in kinds[part].names()}


def _said(field: Any) -> list[Any]:
    """Return what papers and code say of an option: its own metadata, and those within a union."""
    from typing import get_args

    from capsbench.registry import Said

    def within(annotation: Any) -> list[Any]:
        metadata = getattr(annotation, "__metadata__", ())
        inner = [found for member in get_args(annotation) for found in within(member)] if not metadata else []
        return [part for part in metadata if isinstance(part, Said)] + inner

    return [part for part in field.metadata if isinstance(part, Said)] + within(field.annotation)


def card(reference: Path, name: str) -> str:
    """Return the facts of a data set's card and its first table, the images of each class."""
    text = (reference / "data" / f"{name}.md").read_text(encoding="utf-8")
    facts = [line for line in text.splitlines() if line.startswith("- ")]
    facts = [re.sub(r": \S+: md5 .*", "", line) for line in facts]  # one line for all files of a copy
    tables = re.findall(r"^\|.*?(?=\n\n|\Z)", text, re.S | re.M)
    return "\n".join([*dict.fromkeys(facts), "", tables[0].strip()])


def committed_table(reference: Path, study: str, name: str) -> str:
    """Return a committed table of a study."""
    return (reference / study / "tables" / f"{name}.md").read_text(encoding="utf-8").strip()


def bench(reference: Path, study: str) -> str:
    """Return the committed benchmark of a study."""
    return (reference / study / "bench.md").read_text(encoding="utf-8").strip()


BLOCKS: dict[str, Callable[..., str]] = {
    "options": options,
    "disputed": disputed,
    "summary": summary,
    "by_seed": by_seed,
    "after_more_epochs": after_more_epochs,
    "first_steps": first_steps,
    "held_out": held_out,
    "lost_classes": lost_classes,
    "commits": commits,
    "results": results,
    "networks": networks,
    "data": data,
    "card": card,
    "table": committed_table,
    "bench": bench,
    "contrasts": contrasts,
    "contrast_rows": contrast_rows,
    "contrasts_note": contrasts_note,
    "effects": effects,
    "fit": fit,
    "spreads": spreads,
    "alike": alike,
    "one_class": one_class,
    "starts": starts,
    "taken_for": taken_for,
    "crops": crops,
    "overlap": overlap,
    "places": places,
    "drawn": drawn,
    "answers": answers,
    "at_test": at_test,
    "claimed": claimed,
}


class WrongBlock(ValueError):
    """A block that cannot be filled; the message says where and why."""


def pages(root: Path) -> list[Path]:
    """Return the pages that may have blocks."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def fill(text: str, reference: Path, place: str) -> tuple[str, list[str]]:
    """Fill all blocks of a page.

    Args:
        text: the page.
        reference: the folder of committed results.
        place: what messages call the page.

    Returns:
        The page with fresh blocks, and one line for each block that was stale.

    Raises:
        WrongBlock: an unknown or unclosed block, or one whose arguments name nothing.
    """
    stale: list[str] = []
    wanted = len(re.findall(r"<!-- begin ", text))
    if wanted != len(BLOCK.findall(text)):
        raise WrongBlock(f"{place}: {wanted} blocks begin, {len(BLOCK.findall(text))} of them end under the same name")

    def fresh(match: re.Match[str]) -> str:
        name, arguments = match["name"], match["arguments"].split()
        where = f"{place}:{text[: match.start()].count(chr(10)) + 1}: {' '.join([name, *arguments])}"
        try:
            body = f"\n{BLOCKS[name](reference, *arguments).strip()}\n\n"
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise WrongBlock(f"{where}: cannot be filled: {type(error).__name__}: {error}") from error
        if body != match["body"]:
            stale.append(f"{where}: is stale; run python docs/generate.py")
        return match["begin"] + body + match["end"]

    return BLOCK.sub(fresh, text), stale


def update(root: Path, check: bool) -> Iterator[str]:
    """Fill the blocks of all pages and draw the answers, or only look; yield one line for each that was stale."""
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        filled, stale = fill(text, root / "results/reference", str(page.relative_to(root)))
        if stale and not check:
            page.write_text(filled, encoding="utf-8")
        yield from stale
    shown = any("begin answers" in page.read_text(encoding="utf-8") for page in pages(root))
    if shown and draw_answers(root / "results/reference", root / "docs/answers.png", check):
        yield "docs/answers.png: is stale; run python docs/generate.py"
    shown = any("begin places" in page.read_text(encoding="utf-8") for page in pages(root))
    if shown and draw_places(root / "results/reference", root / "docs/surprises/places.png", check):
        yield "docs/surprises/places.png: is stale; run python docs/generate.py"


def check_prose(root: Path) -> Iterator[str]:
    """Yield one line for each difference that prose names and no committed contrast has."""
    texts = {page: page.read_text(encoding="utf-8") for page in pages(root)}
    found = intervals(root / "results/reference", texts.values())
    for page, text in texts.items():
        for line, words in unfounded(text, found):
            yield f"{page.relative_to(root)}:{line}: '{words}' is the interval of no committed contrast; write it anew"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description="Fill the generated blocks of README.md and docs/.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a block is stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: this one)")
    given = parser.parse_args(arguments)
    try:
        stale = list(update(given.root, given.check))
        wrong = list(check_prose(given.root))
    except WrongBlock as error:
        print(error, file=sys.stderr)
        return 2
    for line in stale:
        print(line if given.check else line.replace("is stale; run python docs/generate.py", "updated"))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong) or (bool(stale) and given.check))


if __name__ == "__main__":
    sys.exit(main())
