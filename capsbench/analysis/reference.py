"""A finished study as a reference to commit: tables, plots and the provenance of every number."""

import shutil
from pathlib import Path

import pandas as pd
import yaml

from capsbench.analysis.collect import write_runs
from capsbench.analysis.plots import write_plots
from capsbench.analysis.report import summarise_provenance
from capsbench.analysis.tables import caption, paper_table, write_contrasts, write_table
from capsbench.errors import InputError
from capsbench.run.folder import RunFolder, write_whole
from capsbench.study import Plan

_OF_A_RUN = (
    "experiment", "variant", "seed", "status", "commit", "digest", "started", "finished", "seconds", "parameters",
    "epochs", "data",
)  # fmt: skip


def write_reference(plan: Plan, results: Path, runs: pd.DataFrame, target: Path) -> None:
    """Write tables, plots, runs.csv, the study and provenance.yaml into `target`, all from the run folders.

    Raises:
        InputError: a run is missing or failed, or was trained with code that is not committed.
    """
    unfinished = runs.loc[~runs["status"].isin(["ok", "diverged"]), "key"]
    if len(unfinished):
        raise InputError(
            f"{plan.study.name}: runs that are not finished: {len(unfinished)}, the first is {unfinished.iloc[0]}"
        )
    records = [RunFolder.of(results, r.study, r.key).read_record() or {} for r in plan.runs]
    loose = [r for r in records if not _is_commit(r["commit"])]
    if loose:
        raise InputError(
            f"{plan.study.name}: runs trained with code that is not committed: {len(loose)}, the first with commit "
            f"{loose[0]['commit']}; commit the code, then train again"
        )
    for name in ("tables", "plots"):
        shutil.rmtree(target / name, ignore_errors=True)
    for name in plan.tables:
        write_table(paper_table(name, plan, runs), name, target / "tables", caption(name, plan))
    if plan.contrasts:
        write_contrasts(plan, runs, target / "tables")
    write_plots(plan, results, target / "plots")
    write_runs(runs, target / "runs.csv")
    shutil.copy(plan.path, target / "study.yaml")
    provenance = {
        "study": plan.study.name,
        "made_by": f"make reference STUDY={plan.path}",
        "summary": summarise_provenance(plan, results),
        "runs": [{key: record[key] for key in _OF_A_RUN} for record in records],
    }
    text = yaml.safe_dump(provenance, sort_keys=False, width=110)
    write_whole(target / "provenance.yaml", lambda aside: aside.write_text(text, encoding="utf-8"))


def _is_commit(commit: str) -> bool:
    return len(commit) == 40 and all(c in "0123456789abcdef" for c in commit)
