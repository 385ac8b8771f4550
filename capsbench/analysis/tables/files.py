"""All tables of a study, and their files: numbers as csv, text as Markdown and LaTeX."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from capsbench.analysis.correct_bits import Correct
from capsbench.analysis.measures import Measures
from capsbench.analysis.table_names import is_measured, table_names
from capsbench.analysis.tables.claimed import claims_table
from capsbench.analysis.tables.contrasts import contrasts_table
from capsbench.analysis.tables.costs import cost_table, routings_table
from capsbench.analysis.tables.latex import latex
from capsbench.analysis.tables.markdown import markdown
from capsbench.analysis.tables.measured import measured_table
from capsbench.analysis.tables.model import Table
from capsbench.analysis.tables.overview import coverage_table, summary_table
from capsbench.analysis.tables.own import own_table
from capsbench.analysis.tables.pairs import pair_table
from capsbench.analysis.tables.paper import hinton_table1, natural_images, sabour_table1
from capsbench.analysis.tables.questions import questions_table
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
    "questions": questions_table,
    "contrasts": lambda source: contrasts_table(source.plan, source.runs),
    "test_items": test_items_table,
    "routings": routings_table,
    "cost": cost_table,
    "summary": summary_table,
    "coverage": coverage_table,
}


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
