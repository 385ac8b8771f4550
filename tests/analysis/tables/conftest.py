import pandas as pd
import pytest
from studies import NOVEL, ours_of

from capsbench.analysis.collect import collect
from capsbench.analysis.tables import paper_table


@pytest.fixture
def table_of(results, write_run):
    """Our rows of the table of a study, from the end of each run: a status, or an error for a run that is ok."""

    def make(plan, ends: list[str | float]) -> pd.DataFrame:
        for run, end in zip(plan.runs, ends, strict=True):
            if isinstance(end, float):
                write_run(run, error=end)
            elif end != "missing":
                write_run(run, end)
        return ours_of(paper_table("sabour-table1", plan, collect(plan, results)))

    return make


@pytest.fixture
def novel(make_plan, write_run, results):
    """Capsules and their CNN at novel views, familiar errors matched but for 0.02 points."""
    plan = make_plan(NOVEL)
    for run in plan.runs:
        ours = run.variant == "capsules"
        error, familiar = (13.0, 3.58) if ours else (20.0, 3.6)
        write_run(run, error=error + run.seed / 2, familiar=familiar + run.seed / 10)
    return paper_table("hinton-table2", plan, collect(plan, results))
