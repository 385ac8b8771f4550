"""All tables of a study, and their files: numbers as csv, text as Markdown and LaTeX."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from capsbench.analysis.claims import is_side
from capsbench.analysis.correct_bits import Correct
from capsbench.analysis.measures import Measures
from capsbench.analysis.published import PUBLISHED_IN, claims, counterpart
from capsbench.analysis.tables.claimed import claims_table
from capsbench.analysis.tables.contrasts import contrasts_table
from capsbench.analysis.tables.costs import cost_table, routings_table
from capsbench.analysis.tables.latex import latex
from capsbench.analysis.tables.markdown import markdown
from capsbench.analysis.tables.measured import is_measured, measured_names, measured_table
from capsbench.analysis.tables.methods import routing_of
from capsbench.analysis.tables.model import Table
from capsbench.analysis.tables.overview import coverage_table, summary_table
from capsbench.analysis.tables.own import own_table
from capsbench.analysis.tables.pairs import pair_table
from capsbench.analysis.tables.paper import hinton_table1, natural_images, sabour_table1
from capsbench.analysis.tables.source import Source, gather
from capsbench.analysis.tables.test_items import test_items_table
from capsbench.run.folder import write_whole
from capsbench.study import Plan
from capsbench.study.tables import OwnTable

_MADE: dict[str, Callable[[Source], Table]] = {
    "sabour-table1": sabour_table1,
    "affnist": lambda source: pair_table("affnist", source),
    "hinton-table1": hinton_table1,
    "hinton-table2": lambda source: pair_table("hinton-table2", source),
    "natural-images": natural_images,
    "claims": claims_table,
    "contrasts": lambda source: contrasts_table(source.plan, source.runs),
    "test_items": test_items_table,
    "routings": routings_table,
    "cost": cost_table,
    "summary": summary_table,
    "coverage": coverage_table,
}


def table_names(plan: Plan) -> list[str]:
    """Return the names of the tables that a study gets, before anything has run.

    Those that the study names and its own ones; if it names none, all that have something to show. Contrasts, which a
    study switches off with `contrasts: {}`, are always among them, and so are those of protocols.
    """
    asked = plan.study.tables
    own = [table for table in asked or [] if isinstance(table, OwnTable)]
    named = [table for table in asked or [] if isinstance(table, str)]
    chosen = bool(named) or asked == []
    contrasts = ["contrasts"] if plan.contrasts else []
    names = [*named, *(name for name in contrasts if name not in named)] if chosen else _with_something_to_show(plan)
    return [*names, *measured_names(plan), *(table.name for table in own)]


def build_tables(
    plan: Plan, runs: pd.DataFrame, correct: Correct | None = None, measures: Measures | None = None
) -> dict[str, Table]:
    """Return all tables of a study by name.

    Args:
        plan: the study.
        runs: from `collect` or `read_runs`.
        correct: which test items the runs got right, from `read_predictions` or `read_correct`; without it the table of
            test items has no intervals, and says so.
        measures: what protocols found, from `read_measures` or `load_measures`; without it their tables have no rows.
    """
    source = gather(plan, runs, correct, measures)
    return {name: _built(name, source) for name in table_names(plan)}


def build_table(
    name: str, plan: Plan, runs: pd.DataFrame, correct: Correct | None = None, measures: Measures | None = None
) -> Table:
    """Return one table of a study; raises KeyError for a name that is no table of it."""
    return _built(name, gather(plan, runs, correct, measures))


def write_tables(
    plan: Plan,
    runs: pd.DataFrame,
    folder: Path,
    correct: Correct | None = None,
    measures: Measures | None = None,
) -> dict[str, list[Path]]:
    """Write all tables of a study into a folder, which holds nothing else; returns the paths by table."""
    return {name: write_table(table, folder) for name, table in build_tables(plan, runs, correct, measures).items()}


def write_table(table: Table, folder: Path) -> list[Path]:
    """Write NAME.csv (numbers), NAME.md and NAME.tex (text); returns the paths."""
    contents = {"csv": table.numbers.to_csv(index=False), "md": markdown(table), "tex": latex(table)}
    paths = [folder / f"{table.name}.{ending}" for ending in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_whole(path, lambda aside, text=content: aside.write_text(text, encoding="utf-8"))  # type: ignore[misc]
    return paths


def _built(name: str, source: Source) -> Table:
    own = {table.name: table for table in source.plan.study.tables or [] if isinstance(table, OwnTable)}
    if name in own:
        return own_table(own[name], source)
    return measured_table(name, source) if is_measured(name) else _MADE[name](source)


def _with_something_to_show(plan: Plan) -> list[str]:
    runs = {(run.experiment, run.variant): run for run in reversed(plan.runs)}.values()
    values = [(run, counterpart(run, PUBLISHED_IN[run.table])) for run in runs]
    sides = [side for claim in claims() if claim.attack is None for side in (claim.first, claim.second)]
    there = {
        **dict.fromkeys(plan.tables, True),
        "claims": any(is_side(run, value, side) for run, value in values for side in sides),
        "contrasts": bool(plan.contrasts),
        "test_items": True,
        "routings": any(routing_of(run)[0] is not None for run in runs),
        "cost": True,
        "summary": len(plan.data) > 1,
        "coverage": any(value is not None for _, value in values),
    }
    return [name for name in _MADE if there.get(name)]
