import pandas as pd
import pytest
from studies import NOVEL, ours_of

from capsbench.analysis.collect import collect
from capsbench.analysis.tables import Table, build_table


@pytest.fixture
def made(results):
    """A table of a study, from its run folders."""

    def make(name, plan) -> Table:
        return build_table(name, plan, collect(plan, results))

    return make


@pytest.fixture
def write_ends(write_run):
    """Write the runs of a study from the end of each: a status, or an error for a run that is ok."""

    def write(plan, ends: list[str | float]) -> None:
        for run, end in zip(plan.runs, ends, strict=True):
            if isinstance(end, float):
                write_run(run, error=end)
            elif end != "missing":
                write_run(run, end)

    return write


@pytest.fixture
def table_of(made, write_ends):
    """S17's table of a study, from the end of each run."""

    def make(plan, ends: list[str | float]) -> Table:
        write_ends(plan, ends)
        return made("sabour-table1", plan)

    return make


@pytest.fixture
def numbers_of(table_of):
    """Our rows of the numbers of S17's table."""

    def make(plan, ends: list[str | float]) -> pd.DataFrame:
        return ours_of(table_of(plan, ends).numbers)

    return make


@pytest.fixture
def novel(make_plan, write_run):
    """Capsules and their CNN at novel views, familiar errors matched but for 0.02 points."""
    plan = make_plan(NOVEL)
    for run in plan.runs:
        ours = run.variant == "capsules"
        error, familiar = (13.0, 3.58) if ours else (20.0, 3.6)
        write_run(run, error=error + run.seed / 2, familiar=familiar + run.seed / 10)
    return plan
