"""The table of what a study asks first: the contrasts that answer each question, a column per data set."""

import itertools
from collections.abc import Sequence

import pandas as pd

from capsbench.analysis.contrasts import compare, contrasts_of_begun, not_in_intervals, titles_of
from capsbench.analysis.outcomes import CHANCE, TOO_FEW, Line, Outcome, asked_rows, question_grid
from capsbench.analysis.tables.model import Grid, Row, Table
from capsbench.analysis.tables.source import Source
from capsbench.analysis.tables.text import MISSING

NAME = "questions"
_SHOWN = "*"
_NUMBERS = (
    "experiment",
    "data_set",
    "contrast",
    "family",
    "n",
    "error_a",
    "error_b",
    "mean",
    "low",
    "high",
    "p",
    "p_holm",
    "p_same",
    "at_chance",
)


def questions_table(source: Source) -> Table:
    """Return a grid per question, with a row per thing that is compared and a column per data set that it has."""
    plan = source.plan
    compared = compare(contrasts_of_begun(plan, source.runs), source.runs)
    asked = asked_rows(plan, list(compared.itertuples()))
    found = question_grid(asked, titles_of(plan))
    grids = tuple(_grid(question, lines, found.columns) for question, lines in found.parts)
    outcomes = {
        (question, name, experiment): cell
        for question, lines in found.parts
        for name, cells in lines
        for experiment, cell in zip(found.experiments, cells, strict=True)
        if cell
    }
    numbers = [
        {"question": question, "row": name, "outcome": outcomes[question, name, row.experiment].text}
        | {key: getattr(row, key) for key in _NUMBERS}
        for question, rows in asked.items()
        for name, own in rows.items()
        for row in own
    ]
    caption = (
        f"Study '{plan.study.name}'. Test error of the first minus that of the second at equal seeds, in points of %, "
        f"negative where the first is better: mean and 95 % t interval of the mean. {_SHOWN}: a difference was shown "
        "(zero lies outside the interval, and p stays below 0.05 after Holm's correction within its family). "
        f"{''.join(f'{meaning}. ' for meaning in found.meanings())}Intervals are over seeds: {not_in_intervals(plan)}."
    )
    title = "What the study asks: differences in test error (points), negative where the first is better"
    return Table(NAME, title, caption, grids, (), pd.DataFrame(numbers))


def _grid(question: str, lines: Sequence[Line], columns: Sequence[str]) -> Grid:
    there = [any(cells) for cells in zip(*(cells for _, cells in lines), strict=True)]
    rows = (Row((name, *map(_text, itertools.compress(cells, there)))) for name, cells in lines)
    return Grid(question, ("first against second", *itertools.compress(columns, there)), tuple(rows))


def _text(cell: Outcome | None) -> str:
    if cell is None:
        return MISSING
    if cell.word in (TOO_FEW, "identical", CHANCE):
        return cell.text
    shown = _SHOWN if cell.word in ("higher", "lower") else ""
    same = "≈ " if cell.text.startswith("≈") else ""
    return f"{same}{cell.mean}{shown}{cell.marks} {cell.interval}".strip()
