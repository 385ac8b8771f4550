"""The table of what a study asks about first: the contrasts that answer each question, a column per data set."""

from capsbench.analysis.contrasts import compare, contrasts_of_begun, not_in_intervals, titles_of
from capsbench.analysis.outcomes import TOO_FEW, Outcome, asked_rows, meanings, question_grid
from capsbench.analysis.tables.model import Grid, Row, Table
from capsbench.analysis.tables.source import Source
from capsbench.analysis.tables.text import MISSING

NAME = "questions"
_SHOWN = "*"


def questions_table(source: Source) -> Table:
    """Return a grid per question, with a row per thing that is compared and a column per data set."""
    plan = source.plan
    table = compare(contrasts_of_begun(plan, source.runs), source.runs)
    asked = asked_rows(plan, list(table.itertuples()))
    whole = question_grid(asked, titles_of(plan))
    columns = ("first against second", *whole.columns)
    grids, heading, lines = [], "", list[Row]()
    for name, found in [*whole.rows, ("", ())]:
        if found:
            lines.append(Row((name, *(_text(cell) for cell in found))))
            continue
        grids += [Grid(heading, columns, tuple(lines))] if lines else []
        heading, lines = name, []
    places = {name: (question, row) for question, rows in plan.study.questions.items() for row, names in rows.items()
              for name in names}  # fmt: skip
    numbers = table[table["contrast"].isin(list(places))]
    numbers = numbers.drop(columns=["differences", "shows"])
    numbers.insert(0, "row", [places[name][1] for name in numbers["contrast"]])
    numbers.insert(0, "question", [places[name][0] for name in numbers["contrast"]])
    caption = (
        f"Study '{plan.study.name}'. Test error of the first minus that of the second at equal seeds, in points of %, "
        f"negative where the first is better: mean and 95 % t interval of the mean. {_SHOWN}: a difference was shown "
        "(zero lies outside the interval, and p stays below 0.05 after Holm's correction within the contrast's family). "
        f"{'. '.join(meanings(whole))}. Intervals are over seeds: {not_in_intervals(plan)}."
    )
    title = "What the study asks: differences in test error (points), negative where the first is better"
    return Table(NAME, title, caption, tuple(grids), (), numbers)


def _text(cell: Outcome | None) -> str:
    if cell is None or cell.word == TOO_FEW:
        return MISSING if cell is None else TOO_FEW
    mark = _SHOWN if cell.word in ("higher", "lower") else ""
    same = "≈ " if cell.text.startswith("≈") else ""
    return f"{same}{cell.mean}{mark}{cell.marks} {cell.interval}".strip()
