"""The table of intervals over test items: what other objects, digits or images would have given."""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from capsbench.analysis.cells import Cell
from capsbench.analysis.contrasts import compare, contrasts_of_begun, digits_for, family_title, number, titles_of
from capsbench.analysis.correct_bits import Correct, unlike
from capsbench.analysis.resampling import DRAWS, FEWEST, PLURAL, Resampled, mcnemar, resample_all, times_wrong
from capsbench.analysis.tables.model import Grid, Notes, Row, Table
from capsbench.analysis.tables.source import Source
from capsbench.analysis.tables.text import MISSING, count_text, interval_text
from capsbench.study import Plan
from capsbench.study.data_sets import Clusters

NAME = "test_items"
_CELLS = ("variant", "error (%)", "over test items", "resampled", "n")
_CONTRASTS = ("contrast", "difference", "over seeds", "over test items", "McNemar", "n")
_NO_RUN = "no run has a result"
_P = 0.05  # below which a seed counts for McNemar's test
_DIGITS = 6  # of intervals in the csv: what follows differs between versions of libraries


@dataclass
class _Line:
    """A cell, or a contrast: which runs it has, and what their test items say.

    keys: of the runs seed by seed, in a list for each side. why: there is no interval. p: of McNemar's test by seed.
    """

    experiment: str
    keys: list[list[str]]
    found: Resampled | None = None
    why: str = ""
    p: list[float] = field(default_factory=list)


def test_items_table(source: Source) -> Table:
    """Return a row per cell and per contrast, with the interval that resamples the test items."""
    plan, correct = source.plan, source.correct
    compared = compare(contrasts_of_begun(plan, source.runs), source.runs)
    contrasts = list(compared.to_dict("records"))
    lines = [_of_cell(cell) for cell in source.cells] + [_of_contrast(plan, row) for row in contrasts]
    bad = unlike(correct, source.runs).keys()
    for experiment in plan.data:
        _fill(plan, correct, bad, [line for line in lines if line.experiment == experiment])
    beside, below = lines[: len(source.cells)], lines[len(source.cells) :]
    notes, titles = Notes(), titles_of(plan)
    grids = [
        Grid(titles[name], _CELLS, tuple(
            _cell_row(cell, line, plan, notes)
            for cell, line in zip(source.cells, beside, strict=True) if cell.experiment == name
        ))
        for name in plan.data
    ]  # fmt: skip
    named = titles if compared["experiment"].nunique() > 1 else {}
    grids += [
        Grid(f"contrasts: {family_title(plan, family)}", _CONTRASTS, tuple(
            _contrast_row(row, line, named.get(row["experiment"], ""), notes)
            for row, line in zip(contrasts, below, strict=True) if row["family"] == family
        ))
        for family in dict.fromkeys(row["family"] for row in contrasts)
    ]  # fmt: skip
    return Table(
        NAME, "Intervals over test items", _caption(plan), tuple(grids),
        (*_notes(plan, bool(contrasts)), *notes.lines()), _numbers(source, contrasts, lines),
    )  # fmt: skip


def _of_cell(cell: Cell) -> _Line:
    keys = {int(key.rpartition("seed")[2]): key for key in cell.keys}
    return _Line(cell.experiment, [[keys[seed] for seed in cell.errors]])


def _of_contrast(plan: Plan, row: dict[str, Any]) -> _Line:
    keys = {(run.variant, run.seed): run.key for run in plan.runs if run.experiment == row["experiment"]}
    sides = [[keys[row[side], seed] for seed in row["differences"]] for side in ("a", "b")]
    return _Line(row["experiment"], sides)


def _fill(plan: Plan, correct: Correct | None, bad: Set[str], lines: Sequence[_Line]) -> None:
    """Find the intervals of the cells and contrasts of one experiment, or why there are none; bad: see `unlike`."""
    if not lines:
        return
    experiment = lines[0].experiment
    kind = plan.data[experiment].facts.clusters
    why = _why_none(experiment, kind, correct)
    for line in lines:
        keys = [key for side in line.keys for key in side]
        if not keys:
            line.why = _NO_RUN
        elif why or correct is None or not set(keys) <= correct.right.keys():
            line.why = why or "it was not kept for all runs which items they got right: evaluate the runs again"
        elif bad & set(keys):
            line.why = "the items that were kept as right do not give the errors of the runs: evaluate the runs again"
    ready = [line for line in lines if not line.why]
    if correct is not None and ready:
        _resample(ready, correct, kind)


def _resample(lines: Sequence[_Line], correct: Correct, kind: Clusters | None) -> None:
    """Find the intervals of lines of one experiment, all of whose runs have kept what they got right."""
    counts = []
    for line in lines:
        sides = [[correct.right[key] for key in side] for side in line.keys]
        wrong = [times_wrong(side)[0] for side in sides]
        counts.append(wrong[0] if len(wrong) == 1 else wrong[0] - wrong[1])
        if len(sides) > 1 and kind is None:
            line.p = [mcnemar(a, b, kind).p for a, b in zip(*sides, strict=True)]
    runs, clusters = [len(line.keys[0]) for line in lines], correct.clusters.get(lines[0].experiment)
    for line, found in zip(lines, resample_all(np.stack(counts), runs, clusters), strict=True):
        line.found = found
        if math.isnan(found.low):
            line.why = f"fewer than {FEWEST} {PLURAL[kind]}"
        elif found.std_error == 0:
            line.why = "every draw gives the same: no item is wrong, or none makes a difference"


def _why_none(experiment: str, kind: Clusters | None, correct: Correct | None) -> str:
    """Say why an experiment has no intervals, empty where it has."""
    if correct is None:
        return "it was not kept which items the runs got right (no correct.npz beside runs.csv)"
    if experiment in correct.mixed:
        return "the runs were not all tested on the same items, as far as is known: evaluate all of them again"
    kept = any(key.split("/")[0] == experiment for key in correct.right)
    if kept and kind is not None and experiment not in correct.clusters:
        return (
            f"which {kind} each item shows was not kept with the results, and items of one {kind} are not independent"
        )
    return ""


def _cell_row(cell: Cell, line: _Line, plan: Plan, notes: Notes) -> Row:
    notes.about(cell)
    kind = plan.data[cell.experiment].facts.clusters
    drawn = MISSING if line.found is None else f"{line.found.clusters:,} {PLURAL[kind]}"
    interval = MISSING if line.found is None else interval_text(line.found.low, line.found.high)
    return Row((cell.label, notes.ours(cell), _or_why(interval, line, notes), drawn, count_text(cell)), cell.keys)


def _contrast_row(row: dict[str, Any], line: _Line, title: str, notes: Notes) -> Row:
    ends = [(row["low"], row["high"])]
    ends += [] if line.found is None or line.why else [(line.found.low, line.found.high)]
    digits = max((digits_for(*pair) for pair in ends if not math.isnan(pair[0])), default=digits_for(row["mean"]))
    mean = MISSING if row["n"] == 0 else number(row["mean"], digits)
    over = [MISSING if math.isnan(low) else f"[{number(low, digits)}, {number(high, digits)}]" for low, high in ends]
    items = _or_why(over[-1], line, notes)
    below = f"{sum(p < _P for p in line.p)} of {len(line.p)}" if line.p else MISSING
    name = f"{title}: {row['contrast']}" if title else row["contrast"]
    keys = tuple(key for side in line.keys for key in side)
    count = f"{row['n']} of {row['planned']}" + (f", {row['at_chance']} at chance" if row["at_chance"] else "")
    return Row((name, mean, over[0], items, below, count), keys)


def _or_why(interval: str, line: _Line, notes: Notes) -> str:
    """Return the interval, or the mark of why there is none; without runs a dash says enough."""
    if not line.why:
        return interval
    return notes.marked(MISSING, "" if line.why == _NO_RUN else line.why)


def _caption(plan: Plan) -> str:
    return (
        f"Study '{plan.study.name}'. Test error over all seeds with a result, mean ± standard deviation; then "
        "differences at equal seeds in points of %, the first variant minus the second. All intervals are 95 % "
        "intervals. Over test items: what the same trained networks would give on other test items of the same kind; "
        f"whole objects, digits or images are drawn with replacement, {DRAWS:,} times. Over seeds (paired t): what "
        "other trainings would give on the same test items. Neither interval holds what the other is about. n: seeds "
        "with a result, out of the planned seeds."
    )


def _notes(plan: Plan, contrasts: bool) -> list[str]:
    """Say what McNemar's test is about, and where it is refused."""
    if not contrasts:
        return []
    titles = titles_of(plan)
    kinds = {titles[name]: data.facts.clusters for name, data in plan.data.items()}
    found = [
        f"McNemar: in how many seeds McNemar's exact test of the two runs has p < {_P:g}, not adjusted for the number "
        "of tests. It is about the two trained networks of a seed, not about the two variants."
    ]
    refused = [f"{name} (items of one {kind})" for name, kind in kinds.items() if kind is not None]
    if refused:
        found.append(f"McNemar's test is refused where test items are not independent: {', '.join(refused)}.")
    return found


def _numbers(source: Source, contrasts: Sequence[dict[str, Any]], lines: Sequence[_Line]) -> pd.DataFrame:
    """Return a row per cell and contrast; estimate, low and high over test items are those of the items alone."""
    about = [
        {"experiment": cell.experiment, "variant": cell.variant, "label": cell.label, "n": len(cell.errors),
         "planned": cell.planned, "mean": cell.summary.mean}
        for cell in source.cells
    ]  # fmt: skip
    about += [
        {"experiment": row["experiment"], "family": row["family"], "label": row["contrast"], "a": row["a"],
         "b": row["b"], "n": row["n"], "planned": row["planned"], "mean": row["mean"], "seeds_low": row["low"],
         "seeds_high": row["high"]}
        for row in contrasts
    ]  # fmt: skip
    rows = [
        first | _of_items(line, source.plan.data[line.experiment].facts.clusters)
        for first, line in zip(about, lines, strict=True)
    ]
    return pd.DataFrame(rows, columns=_COLUMNS).astype({"clusters": "Int64", "items": "Int64"})


_COLUMNS = [
    "experiment", "family", "variant", "a", "b", "label", "n", "planned", "mean", "seeds_low", "seeds_high",
    "items_low", "items_high", "items_std_error", "resampled", "clusters", "items", "mcnemar_p", "why_none",
]  # fmt: skip


def _of_items(line: _Line, kind: Clusters | None) -> dict[str, Any]:
    found = line.found
    p = "; ".join(f"{key.rpartition('seed')[2]}: {p:.3g}" for key, p in zip(line.keys[0], line.p, strict=False))
    if found is None:
        return {"mcnemar_p": p, "why_none": line.why}
    ends = (math.nan, math.nan) if line.why else (found.low, found.high)
    return {
        "items_low": round(ends[0], _DIGITS) + 0.0, "items_high": round(ends[1], _DIGITS) + 0.0,
        "items_std_error": round(found.std_error, _DIGITS), "resampled": kind or "image", "clusters": found.clusters,
        "items": found.images, "mcnemar_p": p, "why_none": line.why,
    }  # fmt: skip
