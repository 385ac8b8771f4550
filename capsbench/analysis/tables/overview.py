"""A study at a glance: variants by data sets, and how much of the papers it covers."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from capsbench.analysis.cells import Cell
from capsbench.analysis.contrasts import titles_of
from capsbench.analysis.published import Published, read_published, rows_without_models
from capsbench.analysis.tables.model import Grid, Notes, Row, Table
from capsbench.analysis.tables.source import Source, numbers
from capsbench.analysis.tables.text import MISSING, interval_text

_AT_ONCE = 4  # experiments side by side
# the first that any cell has counts: a value with several rows is not judged by the best of them
_WORDS = ("worse", "undecided", "better", "same", "not comparable", "not run")


def summary_table(source: Source) -> Table:
    """Return a row per network and a column per experiment, at most four side by side.

    Variants of different experiments share a row where they are the same network, see `_networks`.
    """
    notes = Notes()
    heads = headings(source)
    experiments = list(heads)
    networks = _networks(source.cells)
    grids = []
    for start in range(0, len(experiments), _AT_ONCE):
        shown = experiments[start : start + _AT_ONCE]
        rows = []
        for network in networks:
            cells = [network.get(experiment) for experiment in shown]
            if any(cells):
                keys = tuple(key for cell in cells if cell is not None for key in cell.keys)
                label = next(iter(network.values())).label
                rows.append(Row((label, *(_text(cell, notes) for cell in cells)), keys))
        grids.append(Grid("", ("network", *(heads[name] for name in shown)), tuple(rows)))
    caption = (
        f"Study '{source.plan.study.name}'. Test error in %, mean ± standard deviation over the seeds, with the 95 % t "
        "interval of the mean from three seeds on; in brackets the runs with a result, where some have none."
    )
    return Table("summary", "All networks on all data", caption, tuple(grids), notes.lines(), numbers(source.cells))


def _networks(cells: Sequence[Cell]) -> list[dict[str, Cell]]:
    """Return the cells of each network, by experiment.

    The cells of a variant are one network. So are those of variants with the same options and the same label that share
    no experiment: a study may name a network anew where it trains fewer members of a grid.
    """
    variants: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        variants.setdefault(cell.variant, {})[cell.experiment] = cell
    found: list[dict[str, Cell]] = []
    for variant in variants.values():
        for network in found:
            if network.keys().isdisjoint(variant) and _called(network) == _called(variant):
                network.update(variant)
                break
        else:
            found.append(dict(variant))
    return found


def _called(network: Mapping[str, Cell]) -> tuple[object, ...]:
    cell = next(iter(network.values()))
    return cell.label, cell.run.model, cell.run.options


def headings(source: Source) -> dict[str, str]:
    """Return what a column of an experiment is called: its data, and its own name where that does not do."""
    return titles_of(source.plan)


def coverage_table(source: Source) -> Table:
    """Return a row per table of the papers: how many of its values have a row here, and what became of them."""
    words = _words(source.cells)
    values = [*read_published(), *rows_without_models()]
    found = Counter(f"{value.paper} {value.table}" for value in values)
    rows = []
    for place in found:
        of_place = [value for value in values if f"{value.paper} {value.table}" == place]
        if any(value.id in words for value in of_place):
            rows.append(_coverage(place, of_place, words))
    others = [value for value in values if f"{value.paper} {value.table}" not in {row["papers"] for row in rows}]
    if rows and others:
        rows.append(_coverage(f"{len({f'{v.paper} {v.table}' for v in others})} other tables", others, words))
    frame = pd.DataFrame([*rows, _coverage("all", values, words)])
    columns = ("table of the papers", "values", "with a row here", "compared", *_WORDS)
    texts = tuple(Row(tuple(str(value) for value in row.values())) for row in frame.to_dict("records"))
    caption = (
        f"Study '{source.plan.study.name}'. Values: printed in the papers, as far as published.yaml has them. With a "
        "row here: the study has the network and the task. Compared: same, better, worse or undecided. Where several "
        "rows have the same value, the first of the words counts that one of them has."
    )
    title = "How much of the papers this study covers"
    return Table("coverage", title, caption, (Grid("", columns, texts),), (), frame)


def _coverage(name: str, values: Sequence[Published], words: dict[str, str]) -> dict[str, object]:
    counts = Counter(words[value.id] for value in values if value.id in words)
    return {
        "papers": name, "values": len(values), "with_row": sum(counts.values()),
        "compared": sum(counts[word] for word in ("same", "better", "worse", "undecided")),
        **{word.replace(" ", "_"): counts[word] for word in _WORDS},
    }  # fmt: skip


def _words(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the word of each published value that has a row, by its id."""
    found: dict[str, str] = {}
    for cell in cells:
        if cell.published is not None:
            words = [found.get(cell.published.id, cell.verdict.word), cell.verdict.word]
            found[cell.published.id] = min(words, key=_WORDS.index)
    return found


def _text(cell: Cell | None, notes: Notes) -> str:
    if cell is None:
        return MISSING
    notes.about(cell)
    interval = interval_text(*cell.summary.error_interval)
    text = notes.ours(cell) + (f" {interval}" if interval != MISSING else "")
    return (
        text
        if len(cell.errors) == cell.planned or not cell.errors
        else f"{text} ({len(cell.errors)} of {cell.planned})"
    )
