"""Tables of pairs: capsules and the CNN that they are matched to, compared on what training did not show."""

import math
from collections.abc import Sequence
from typing import Any

from capsbench.analysis.cells import Cell
from capsbench.analysis.claims import ClaimResult
from capsbench.analysis.contrasts import compare, digits_for, interval_of_difference, number
from capsbench.analysis.published_values import PublishedClaim
from capsbench.analysis.statistics import summarise
from capsbench.analysis.tables.model import Grid, Notes, Row, Table, grid
from capsbench.analysis.tables.paper import TABLES, caption
from capsbench.analysis.tables.source import Source, below, not_run, numbers, published_familiar
from capsbench.analysis.tables.text import MISSING, count_text, mean_text, number_text
from capsbench.study import Contrast

_PAIR = ("pair", "novel (error %)", "difference (points)", "verdict", "paper", "familiar (error %)", "paper's", "n")


def pair_table(name: str, source: Source) -> Table:
    """Return a row per pair of networks, then a row per network.

    Args:
        name: affnist or hinton-table2.
        source: of the study.
    """
    there, notes = source.of(name), Notes(diagnostics=True)
    pairs = _pairs(there, source)
    several = len({cell.experiment for cell in there}) > 1
    grids = [grid("", _PAIR, [_pair(*pair, several, source, notes) for pair in pairs], keep=_PAIR)] if pairs else []
    grids.append(_networks(there, several, notes))
    values = not_run(name, there)
    head = (
        f"{caption(name, source.plan)} Pairs: both networks at equal seeds, the first minus the second, with the 95 % "
        "t interval of the mean; their verdict is on what the paper claims of the pair. Familiar: the error under the "
        "conditions of training."
    )
    return Table(name, TABLES[name].title, head, (*grids, *below(values)), notes.lines(), numbers(there, values))


def difference_text(row: Any) -> str:
    """Write a difference with its interval: "−13.10 [−13.90, −12.20]"; `row` is one of `compare`."""
    if row["n"] == 0:
        return MISSING
    if math.isnan(row["low"]):
        return "identical" if row["shows"].startswith("identical") else number(row["mean"], digits_for(row["mean"]))
    mean = number(row["mean"], digits_for(row["low"], row["high"]))
    return f"{mean} {interval_of_difference(row['low'], row['high'])}"


def verdict_text(result: ClaimResult, notes: Notes) -> str:
    """Return the verdict on a claim, marked with the letter of the reason."""
    return "not run" if result.reason == "not run" else notes.marked(result.verdict, result.reason)


def claimed_text(claim: PublishedClaim) -> str:
    """Write what a paper claims: "−13 points", "−32.5 %", "lower", "the same"."""
    if claim.difference is None:
        return "the same" if claim.expected == "same" else claim.expected
    size = f"{number(claim.difference, None)} {'points' if claim.unit == 'points' else '%'}"
    return f"the same ({size})" if claim.expected == "same" else size


def _pairs(there: Sequence[Cell], source: Source) -> list[tuple[Cell, Cell, ClaimResult | None]]:
    """Return each cell with the one that it was matched to, and the pairs of which a paper claims something."""
    claims = {(c.experiment, c.a, c.b): c for c in source.claims if c.a is not None}
    matched = [(cell.experiment, cell.variant, cell.run.training.match) for cell in there if cell.run.training.match]
    experiments = {cell.experiment for cell in there}
    claimed = [place for place in claims if place[0] in experiments]
    return [
        (source.cell(str(experiment), str(a)), source.cell(str(experiment), str(b)), claims.get((experiment, a, b)))
        for experiment, a, b in dict.fromkeys([*matched, *claimed])
    ]


def _pair(a: Cell, b: Cell, claimed: ClaimResult | None, several: bool, source: Source, notes: Notes) -> Row:
    row = compare([Contrast("pairs", a.experiment, a.variant, b.variant)], source.runs).to_dict("records")[0]
    verdict, paper = MISSING, MISSING
    if claimed is not None:
        verdict, paper = verdict_text(claimed, notes), claimed_text(claimed.claim)
        values = [side.value for side in (claimed.claim.first, claimed.claim.second)]
        if all(values):
            paper += f" ({' / '.join(f'{value.error:g}' for value in values if value)})"
    familiar = [summarise(tuple(cell.familiar.values())).mean for cell in (a, b)]
    published = [published_familiar(cell) for cell in (a, b)]
    texts = (
        (f"{a.experiment}: " if several else "") + f"{a.label} / {b.label}",
        _two([cell.summary.mean for cell in (a, b)], ".2f"),
        difference_text(row), verdict, paper, _two(familiar, ".2f"), _two(published, "g"),
        f"{row['n']} of {row['planned']}",
    )  # fmt: skip
    return Row(texts, (*a.keys, *b.keys))


def _two(values: Sequence[float], form: str) -> str:
    if all(math.isnan(value) for value in values):
        return MISSING
    return " / ".join(number_text(value, form) for value in values)


def _networks(there: Sequence[Cell], several: bool, notes: Notes) -> Grid:
    names = [f"{cell.experiment}: {cell.label}" if several else cell.label for cell in there]
    rows = []
    for cell, name in zip(there, names, strict=True):
        familiar = summarise(tuple(cell.familiar.values()))
        published = MISSING if cell.published is None else str(cell.published)
        ours, verdict = notes.ours(cell), notes.verdict(cell)
        texts = (
            name, ours, verdict, published, mean_text(familiar.mean, familiar.std),
            number_text(published_familiar(cell), "g"), count_text(cell),
        )  # fmt: skip
        rows.append(Row(texts, cell.keys))
    columns = ("network", "test (error %)", "verdict", "published", "familiar (error %)", "published familiar", "n")
    return grid("each network", columns, rows, keep=columns[:4])
