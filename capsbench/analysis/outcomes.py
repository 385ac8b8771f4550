"""What became of contrasts: counted in words, and as a grid with a row per contrast and a column per data set."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from capsbench.analysis.contrasts import (
    MARK_POST_HOC,
    POST_HOC,
    SIGNIFICANT,
    count_in_words,
    digits_for,
    interval_of_difference,
    is_identical,
    is_same,
    is_shown,
    number,
)
from capsbench.analysis.statistics import FEWEST, holm
from capsbench.study import Plan

MARK_WIDER = "†"  # shown in its family, as lower, higher or the same, but not among all contrasts of its question
SAME = "the same within a tenth"
TOO_FEW = "too few seeds"
CHANCE = "at chance in some seeds"


def at_chance(row: Any) -> bool:
    """Tell whether a side of a row of `compare` stayed at chance in any seed."""
    return bool(row.at_chance)


def is_open(row: Any) -> bool:
    """Tell whether a row of `compare` shows neither a difference nor the same error, of networks that learn."""
    return not (row.at_chance or is_shown(row) or is_same(row))


OUTCOMES: dict[str, Callable[[Any], bool]] = {  # what became of a contrast with enough seeds: one of these
    "higher": lambda row: is_shown(row) and row.mean > 0,
    "lower": lambda row: is_shown(row) and row.mean < 0,
    SAME: lambda row: is_same(row) and not is_identical(row),
    "identical": lambda row: is_identical(row) and not row.at_chance,
    "undecided": lambda row: is_open(row) and not is_identical(row),
    CHANCE: at_chance,
}
_KINDS = {"higher": "worse", "lower": "better", SAME: "same", "identical": "same"}


def kept(rows: Sequence[Any], outcome: Callable[[Any], bool]) -> list[Any]:
    """Return the rows of `compare` with enough seeds and this outcome."""
    return [row for row in rows if row.n >= FEWEST and outcome(row)]


def outcome_of(row: Any) -> str:
    """Name what became of the error of the first: one of `OUTCOMES`, or that there are too few seeds."""
    if row.n < FEWEST:
        return TOO_FEW
    return next(name for name, outcome in OUTCOMES.items() if outcome(row))


def outcomes(rows: Sequence[Any]) -> str:
    """Count what became of the error of the first in rows of `compare`: "higher in 2 (+0.52 to +3.39), ..."."""
    told = []
    for name, outcome in OUTCOMES.items():
        found = kept(rows, outcome)
        means = _means(found) if name in ("higher", "lower") and found else ""
        told += [f"{name} in {len(found)}{means}"] * bool(found)
    return ", ".join([*told, *too_few(rows)])


def too_few(rows: Sequence[Any]) -> list[str]:
    """Count the rows with too few seeds; empty where none has."""
    count = sum(row.n < FEWEST for row in rows)
    return [f"{TOO_FEW} in {count}"] if count else []


@dataclass(frozen=True)
class Outcome:
    """What became of a contrast on one data set.

    word: one of `OUTCOMES`, or that there are too few seeds. mean: the difference; empty without a seed. interval: of
    it; empty where there is none. marks: see `MARK_POST_HOC` and `MARK_WIDER`. errors: of the first and of the second,
    in %. seeds: with a result of both. planned: seeds. stuck: those in which either stayed at chance.
    """

    word: str
    mean: str
    interval: str
    marks: str
    errors: str
    seeds: int
    planned: int
    stuck: int

    @property
    def kind(self) -> str:
        """How the page shows it."""
        return _KINDS.get(self.word, "undecided")

    @property
    def text(self) -> str:
        """The difference where something was shown, otherwise the word."""
        stuck = f"at chance in {self.stuck} of {self.planned}"
        shown = {"higher": self.mean, "lower": self.mean, SAME: f"≈ {self.mean}", CHANCE: stuck}
        return shown.get(self.word, self.word) + self.marks

    @property
    def beside(self) -> str:
        """The two errors, and the seeds where some are missing."""
        return self.errors + (f" ({self.seeds} of {self.planned} seeds)" if 0 < self.seeds < self.planned else "")

    @property
    def more(self) -> str:
        """The interval and the seeds."""
        seeds = f"{count_in_words(self.seeds)} seed{'s' * (self.seeds != 1)}"
        return f"95 % interval {self.interval}, {seeds}" if self.interval else seeds


Line = tuple[str, tuple[Outcome | None, ...]]  # what is compared, and what became of it on each data set
Rows = Mapping[str, Sequence[Any]]  # what is compared -> rows of `compare`, of different experiments


@dataclass(frozen=True)
class OutcomeGrid:
    """Contrasts and what became of them on each data set; None where there is no such contrast.

    experiments, columns: the data sets, and what they are called. parts: headings, empty where there is none, with the
    lines below each.
    """

    experiments: tuple[str, ...]
    columns: tuple[str, ...]
    parts: tuple[tuple[str, tuple[Line, ...]], ...]

    @property
    def lines(self) -> list[Line]:
        """The lines of all parts."""
        return [line for _, lines in self.parts for line in lines]

    def meanings(self) -> list[str]:
        """Say what the marks in it mean."""
        texts = [found.text for _, cells in self.lines for found in cells if found]
        return [
            f"{mark}: {meaning}"
            for mark, meaning in (
                ("≈", "the same error, within a tenth of the second's"),
                (
                    MARK_WIDER,
                    "in its family alone, not after Holm's correction over all contrasts of the question",
                ),
                (MARK_POST_HOC, f"{POST_HOC}, declared when the errors of both were known"),
                ("at chance", "in so many seeds one of the two never left the error of guessing"),
            )
            if any(mark in text for text in texts)
        ]

    def texts(self) -> list[str]:
        """Write the lines as text: "A against B: MNIST +0.74, smallNORB undecided"."""
        lines = []
        for name, found in self.lines:
            cells = [f"{column} {cell.text}" for column, cell in zip(self.columns, found, strict=True) if cell]
            lines += [f"{name}: {', '.join(cells)}"] * bool(cells)
        return lines


def family_grid(rows: Sequence[Any], titles: Mapping[str, str]) -> OutcomeGrid:
    """Put the contrasts of a family side by side: those of the same name make a line.

    Args:
        rows: of `compare`.
        titles: of the experiments, in the order of the columns.
    """
    names = dict.fromkeys(row.contrast for row in rows)
    return _grid({"": {name: [row for row in rows if row.contrast == name] for name in names}}, titles, set())


def asked_rows(plan: Plan, rows: Sequence[Any]) -> dict[str, Rows]:
    """Return the questions of a study, with the rows of `compare` that answer each; without those that have none."""
    named = {(each.family, each.experiment, each.a, each.b): each.name for each in plan.contrasts}
    found = {}
    for question, answers in plan.study.questions.items():
        own = {
            label: [row for row in rows if named[row.family, row.experiment, row.a, row.b] in names]
            for label, names in answers.items()
        }
        found[question] = {label: answered for label, answered in own.items() if answered}
    return {question: own for question, own in found.items() if own}


def question_grid(asked: Mapping[str, Rows], titles: Mapping[str, str]) -> OutcomeGrid:
    """Put the contrasts that answer questions side by side, below their questions.

    A question may draw on several families. What is shown in its own family, but not after Holm's correction over all
    contrasts of the question, is marked.

    Args:
        asked: from `asked_rows`.
        titles: of the experiments, in the order of the columns.
    """
    marked = set()
    for question, rows in asked.items():
        own = list({row.Index: row for found in rows.values() for row in found}.values())
        adjusted = (holm([getattr(row, p) for row in own]) for p in ("p", "p_same_raw"))
        for row, p, p_same in zip(own, *adjusted, strict=True):
            if (is_shown(row) and not p < SIGNIFICANT) or (is_same(row) and not p_same < SIGNIFICANT):
                marked.add((question, row.Index))
    return _grid(asked, titles, marked)


def _grid(parts: Mapping[str, Rows], titles: Mapping[str, str], marked: Set[tuple[str, Any]]) -> OutcomeGrid:
    there = {row.experiment for rows in parts.values() for found in rows.values() for row in found}
    experiments = [name for name in titles if name in there]

    def line(heading: str, name: str, found: Sequence[Any]) -> Line:
        cells = {row.experiment: _outcome(row, MARK_WIDER * ((heading, row.Index) in marked)) for row in found}
        return name, tuple(cells.get(experiment) for experiment in experiments)

    return OutcomeGrid(
        tuple(experiments),
        tuple(titles[name] for name in experiments),
        tuple((heading, tuple(line(heading, *each) for each in rows.items())) for heading, rows in parts.items()),
    )


def _outcome(row: Any, mark: str) -> Outcome:
    whole = row.low == row.low  # nan: there is no interval
    return Outcome(
        outcome_of(row),
        number(row.mean, digits_for(row.low, row.high) if whole else digits_for(row.mean)) if row.n else "",
        interval_of_difference(row.low, row.high) if whole else "",
        MARK_POST_HOC * bool(row.post_hoc) + mark,
        f"{_error(row.error_a)} − {_error(row.error_b)}" if row.n else "",
        row.n,
        row.planned,
        int(row.at_chance),
    )


def _error(error: float) -> str:
    return f"{error:.1f}" if error >= 10 else f"{error:.2f}"


def _means(rows: Sequence[Any]) -> str:
    """Return the mean differences, from the smallest to the largest."""
    low, high = (of(rows, key=lambda row: abs(row.mean)).mean for of in (min, max))
    ends = (number(mean, digits_for(mean)) for mean in (low, high))
    return f" ({' to '.join(dict.fromkeys(ends))})"
