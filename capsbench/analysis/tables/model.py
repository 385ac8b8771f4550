"""A table as people read it: grids of text with notes below, and the numbers behind them."""

import itertools
import math
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from capsbench.analysis.cells import Cell, Matching
from capsbench.analysis.published import Published
from capsbench.analysis.tables.text import MISSING, error_text, precision_lines, with_minus_signs

_IN_COLUMNS = re.compile(r", (iterations \d+|(no )?decoder\b[^,()]*)(?=,|$)")  # what grids add to labels


@dataclass(frozen=True)
class Row:
    """One line of a grid. keys: of the runs behind it, empty for what a paper alone has."""

    texts: tuple[str, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """Rows under one heading, which may be empty."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """A table of a study.

    title: one line. caption: how to read it. grids: with the same columns or others, one below the other. notes: what
    its marks refer to. numbers: all that is known, for the csv. left_out: columns that are too long for print.
    """

    name: str
    title: str
    caption: str
    grids: tuple[Grid, ...]
    notes: tuple[str, ...]
    numbers: pd.DataFrame
    left_out: tuple[str, ...] = ()

    @property
    def printed(self) -> tuple[Grid, ...]:
        """The grids without the columns that are left out in print."""
        return tuple(_without(each, self.left_out) for each in self.grids) if self.left_out else self.grids


def _without(each: Grid, names: tuple[str, ...]) -> Grid:
    kept = [n for n, name in enumerate(each.columns) if name not in names]
    rows = tuple(Row(tuple(row.texts[n] for n in kept), row.keys) for row in each.rows)
    return Grid(each.heading, tuple(each.columns[n] for n in kept), rows)


def grid(heading: str, columns: Sequence[str], rows: Iterable[Row], keep: Sequence[str] = ()) -> Grid:
    """Make a grid, without the columns in which no row says anything; `keep` names columns that stay."""
    rows = list(rows)
    shown = [n for n, name in enumerate(columns) if name in keep or any(row.texts[n] != MISSING for row in rows)]
    return Grid(
        heading,
        tuple(columns[n] for n in shown),
        tuple(Row(tuple(row.texts[n] for n in shown), row.keys) for row in rows),
    )


@dataclass
class Notes:
    """Collects what stands below a table while its rows are written: a mark goes into the row, the rest here.

    diagnostics: whether to say what the routing of runs that stayed at chance did.
    """

    diagnostics: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    files: dict[tuple[str, ...], str] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    remarks: dict[str, dict[str, None]] = field(default_factory=dict)
    waiting: dict[str, None] = field(default_factory=dict)
    several_machines: dict[str, None] = field(default_factory=dict)
    precisions: dict[str, str] = field(default_factory=dict)

    def marked(self, word: str, reason: str) -> str:
        """Return a word with the letter of the reason for it."""
        if not reason:
            return word
        if reason not in self.reasons:
            letters = (a + b for a in ("", *string.ascii_lowercase) for b in string.ascii_lowercase)  # a .. z, aa ..
            self.reasons[reason] = next(itertools.islice(letters, len(self.reasons), None))
        return f"{word} ({self.reasons[reason]})"

    def verdict(self, cell: Cell) -> str:
        """Return the verdict of a cell, and note the reason, caveats of its published value, and runs at chance.

        "-" where papers have no value.
        """
        self.about(cell)
        if cell.published is not None:
            self.caveats(cell.published)
        if cell.verdict.word == "no published value":
            return MISSING
        return self.marked(str(cell.verdict), cell.verdict.reason)

    def ours(self, cell: Cell) -> str:
        """Return the error of a cell, with a dagger where it rests on unofficial files."""
        return error_text(cell) + (self._dagger(cell.unofficial) if cell.unofficial else "")

    def about(self, cell: Cell) -> None:
        """Note what a reader must know of the runs of a cell."""
        if cell.stuck:
            runs = "run" if cell.stuck == 1 else "runs"
            text = f"Stuck at chance: {cell.stuck} {runs} of {_name(cell)}: the training error never left guessing"
            if self.diagnostics and cell.diagnostics:
                text += f"; the routing there, {with_minus_signs(cell.diagnostics)}"
                text += "; for the others see runs.csv" if cell.stuck > 1 else ""
            self.others[f"{text}."] = None
        self.precisions[_name(cell)] = cell.run.training.precision
        for what in cell.mixed:
            self.others[f"Not one cell but several: {_name(cell)} was {what}."] = None
        if len(cell.machines) > 1 or any(", then " in machine for machine in cell.machines):
            self.several_machines[_name(cell)] = None
        if cell.matching is not None and math.isnan(cell.matching.overshoot):
            self.waiting[_name(cell)] = None
        elif cell.matching is not None:
            self.others[_matched(cell, cell.matching)] = None

    def caveats(self, published: Published) -> None:
        """Note the caveats of a published value."""
        for caveat in published.caveats:
            self.remarks.setdefault(caveat, {})[str(published)] = None

    def lines(self) -> tuple[str, ...]:
        """Return the notes in the order of their kinds."""
        below = [f"({letter}) {reason}." for reason, letter in self.reasons.items()]
        for lines, mark in self.files.items():
            below.append(f"{mark} not the official files (runs.csv has their checksums): {file_names(lines)}.")
        below += self.others
        below += precision_lines(self.precisions)
        if self.several_machines:
            names = ", ".join(self.several_machines)
            below.append(f"Trained on several machines, or with several versions (runs.csv names them): {names}.")
        if self.waiting:
            below.append(f"Matched in familiar error, no result yet: {', '.join(self.waiting)}.")
        if self.remarks:
            alike: dict[str, list[str]] = {}  # remarks on the same values
            for remark, values in self.remarks.items():
                alike.setdefault(", ".join(values), []).append(remark)
            said = (f"{values}: {'; '.join(remarks)}" for values, remarks in alike.items())
            below.append("Remarks on published values: " + ". ".join(said) + ".")
        return tuple(below)

    def _dagger(self, lines: tuple[str, ...]) -> str:
        if lines not in self.files:
            marks = (mark * times for times in itertools.count(1) for mark in "§¶")
            self.files[lines] = next(itertools.islice(marks, len(self.files), None))
        return self.files[lines]


def file_names(lines: Iterable[str]) -> str:
    """Return the names of files that are not official, what each is a copy of said once.

    Args:
        lines: "smallNORB (a copy): train.mat: md5 .., the official file has ..", as runs.csv has them.
    """
    found = []
    before = ""
    for name in dict.fromkeys(line.split(": md5 ")[0] for line in lines):
        copy, _, file = name.rpartition(": ")
        found.append(file if copy == before else name)
        before = copy
    return ", ".join(found)


def tell_apart(names: Sequence[str], cells: Sequence[Cell | None], of_paper: Sequence[bool]) -> list[str]:
    """Return names of rows, each once: with the label, then the experiment, where the name alone does not do.

    Iterations and decoder are left out of labels that are told apart without them: columns of the tables have these.

    Args:
        names: as tables have them, with all that tells rows apart; not unique.
        cells: of the rows; None for those that a paper alone has.
        of_paper: whether a row is one of the paper; if one among those of the same name is, it keeps the name.
    """
    found = list(names)
    for name in dict.fromkeys(names):
        same = [n for n, other in enumerate(names) if other == name]
        if len(same) < 2:
            continue
        first = [n for n in same if of_paper[n]]
        if len(first) == 1:
            same.remove(first[0])
        labels = [cell.label if (cell := cells[n]) is not None else "" for n in same]
        short = [_IN_COLUMNS.sub("", label) for label in labels]
        taken = [name.split("|")[0]] if len(first) == 1 else []
        for n, label, brief in zip(same, labels, short, strict=True):
            if (cell := cells[n]) is not None:
                one = brief if [*short, *taken].count(brief) == 1 else label
                found[n] = one if labels.count(label) == 1 else f"{label}, {cell.experiment}"
    return found


def _name(cell: Cell) -> str:
    facts = cell.run.data.facts
    return f"{cell.label} ({facts.title if cell.experiment == facts.name else cell.experiment})"


def _matched(cell: Cell, matching: Matching) -> str:
    """Say what a cell was matched to, and how well."""
    text = f"Matched: {_name(cell)} was to stop at the familiar error of {matching.variant} of the same seed"
    size = f"{abs(matching.overshoot):.2f} points"
    text += f"; it ended {size} {'below' if matching.overshoot >= 0 else 'above'} it on average"
    return f"{text}; {matching.problem}." if matching.problem else f"{text}."
