"""What all tables of a study are made from, gathered once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.claims import ClaimResult, claims_of
from capsbench.analysis.correct_bits import Correct
from capsbench.analysis.measures import Measures
from capsbench.analysis.published import PUBLISHED_IN, Published, read_published, rows_without_models
from capsbench.analysis.statistics import summarise
from capsbench.analysis.tables.methods import method_name, reconstructs, routing_name
from capsbench.analysis.tables.model import Grid, Row
from capsbench.analysis.tables.text import MISSING
from capsbench.study import Plan, catalogue

NO_NETWORK = "no network of ours"
NOT_RUN = "not run"
_BESIDE = {"norb": "smallnorb"}  # data sets that are not here, and where their values are shown


@dataclass(frozen=True)
class Source:
    """A study, its runs, and what follows from them.

    correct: which test items the runs got right; None where it is not known. measures: what protocols found.
    """

    plan: Plan
    runs: pd.DataFrame
    cells: Sequence[Cell]
    claims: Sequence[ClaimResult]
    correct: Correct | None = None
    measures: Measures = field(default_factory=dict)

    def of(self, table: str) -> list[Cell]:
        """Return the cells that stand in a table of the papers."""
        return [cell for cell in self.cells if cell.run.table == table]

    def cell(self, experiment: str, variant: str) -> Cell:
        """Find a cell; raises KeyError."""
        for cell in self.cells:
            if (cell.experiment, cell.variant) == (experiment, variant):
                return cell
        raise KeyError(f"{experiment}/{variant}")


def gather(plan: Plan, runs: pd.DataFrame, correct: Correct | None = None, measures: Measures | None = None) -> Source:
    """Return what the tables of a study are made from, see `build_tables`."""
    runs = runs[[name for name in runs if not str(name).startswith("option.")]]  # many, and the plan has them
    there = cells(plan, runs)
    measures = measures or {}
    return Source(plan, runs, there, claims_of(plan, runs, there, measures, correct), correct, measures)


def not_run(name: str, there: Sequence[Cell], shown: Sequence[str] = ()) -> list[Published]:
    """Return the values that belong into a table of the papers and have no row of ours.

    Args:
        name: of the table.
        there: our cells in it. Values for other data sets are left out, and for stand-ins there are none.
        shown: ids of values that have a row of their own.
    """
    data_sets = {cell.data_set for cell in there}
    taken = {*shown, *(cell.published.id for cell in there if cell.published is not None)}
    found = [
        value
        for value in read_published()
        if f"{value.paper} {value.table}" in PUBLISHED_IN[name]
        and value.attack is None and value.data_set in data_sets and value.id not in taken
    ]  # fmt: skip
    for value in rows_without_models():
        data_set = _BESIDE.get(value.data_set, value.data_set)
        facts = catalogue()[data_set]
        if data_set in data_sets and facts.table(facts.options()) == name:
            found.append(value)
    return found


def below(values: Sequence[Published]) -> list[Grid]:
    """Return the second block of a table, of values that have no row of ours; none where there are none."""
    rows = tuple(
        Row((value.method, value.paper, _title(value.data_set), f"{value}{_familiar(value)}")) for value in values
    )
    return [Grid("published, not run here", ("network", "paper", "data", "published"), rows)] if rows else []


def numbers(there: Sequence[Cell], values: Sequence[Published] = ()) -> pd.DataFrame:
    """Return all numbers of cells, a row each, then the values that have no row of ours, whose `planned` is 0.

    Errors in %; low and high: the 95 % interval of the mean; difference: ours minus published, in points, with the
    interval that the verdict rests on.
    """
    rows = [_row(cell) for cell in there] + [_published_row(value) for value in values]
    return pd.DataFrame(rows, columns=_COLUMNS)


_COLUMNS = [
    "experiment", "data", "method", "variant", "label", "routing", "reconstruction", "mean", "std", "low", "high", "n",
    "planned", "diverged", "failed", "stuck", "published", "verdict", "reason", "difference", "difference_low",
    "difference_high", "seeds_needed", "per_digit_mean", "per_digit_std", "familiar_mean", "familiar_std",
    "published_familiar", "matched_to", "overshoot", "unofficial", "caveat", "parameters", "seconds",
    "images_per_second", "diagnostics", "runs",
]  # fmt: skip


def _row(cell: Cell) -> dict[str, Any]:
    low, high = cell.summary.error_interval
    per_digit, familiar = (summarise(tuple(each.values())) for each in (cell.per_digit, cell.familiar))
    return {
        "experiment": cell.experiment, "data": cell.data_set, "method": method_name(cell.run),
        "variant": cell.variant, "label": cell.label, "routing": routing_name(cell.run),
        "reconstruction": reconstructs(cell.run),
        "mean": cell.summary.mean, "std": cell.summary.std, "low": low, "high": high, "n": len(cell.errors),
        "planned": cell.planned, "diverged": cell.diverged, "failed": cell.failed, "stuck": cell.stuck,
        "published": "" if cell.published is None else str(cell.published),
        "verdict": str(cell.verdict), "reason": cell.verdict.reason, "difference": cell.verdict.difference,
        "difference_low": cell.verdict.low, "difference_high": cell.verdict.high,
        "seeds_needed": cell.verdict.seeds_needed or math.nan,
        "per_digit_mean": per_digit.mean, "per_digit_std": per_digit.std,
        "familiar_mean": familiar.mean, "familiar_std": familiar.std,
        "published_familiar": published_familiar(cell),
        "matched_to": cell.matching.variant if cell.matching else "",
        "overshoot": cell.matching.overshoot if cell.matching else math.nan,
        "unofficial": "; ".join(cell.unofficial), "caveat": cell.published.caveat if cell.published else "",
        "parameters": cell.parameters, "seconds": cell.seconds, "images_per_second": cell.images_per_second,
        "diagnostics": cell.diagnostics, "runs": " ".join(cell.keys),
    }  # fmt: skip


def _published_row(value: Published) -> dict[str, Any]:
    return {
        "experiment": "", "data": value.data_set, "method": f"{value.method} ({value.paper})", "variant": "",
        "label": value.method, "routing": MISSING, "reconstruction": MISSING, "n": 0, "planned": 0, "diverged": 0,
        "failed": 0, "stuck": 0, "published": str(value), "verdict": NO_NETWORK if value.model is None else NOT_RUN,
        "reason": "", "published_familiar": math.nan if value.familiar is None else value.familiar,
        "matched_to": "", "unofficial": "", "caveat": value.caveat, "diagnostics": "", "runs": "",
    }  # fmt: skip


def published_familiar(cell: Cell) -> float:
    """Return the paper's familiar error in %; nan where it has none, or where our test is a familiar one itself."""
    if cell.published is None or cell.published.familiar is None or not cell.run.data.has_familiar_test:
        return math.nan
    return cell.published.familiar


def _familiar(value: Published) -> str:
    return "" if value.familiar is None else f" (familiar error {value.familiar:g})"


def _title(data_set: str) -> str:
    return catalogue()[data_set].title if data_set in catalogue() else data_set
