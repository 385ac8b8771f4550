"""Copying a finished study to results/reference/: tables, plots and the provenance of every number."""

import shutil
from pathlib import Path

import pandas as pd
import yaml

from capsbench.analysis.report import summarise_provenance
from capsbench.config import Plan
from capsbench.errors import InputError
from capsbench.run_folder import RunFolder


def write_reference(plan: Plan, results: Path, runs: pd.DataFrame, target: Path) -> None:
    """Copy tables, plots, runs.csv and the study, and write provenance.yaml, into `target`.

    Raises InputError where a run is missing or failed, or was not of committed code.
    """
    unfinished = runs.loc[~runs["status"].isin(["ok", "diverged"]), "key"]
    if len(unfinished):
        raise InputError(
            f"{len(unfinished)} runs of {plan.study.name} are not finished, the first: {unfinished.iloc[0]}"
        )
    records = [RunFolder.of(results, r.study, r.key).read_record() or {} for r in plan.runs]
    loose = [r for r in records if not _is_commit(r["commit"])]
    if loose:
        raise InputError(
            f"{len(loose)} runs were not of committed code (commit {loose[0]['commit']}): commit, then train again"
        )
    source = results / plan.study.name
    for name in ("tables", "plots"):
        if (target / name).exists():
            shutil.rmtree(target / name)
        shutil.copytree(source / name, target / name)
    shutil.copy(source / "runs.csv", target / "runs.csv")
    shutil.copy(plan.path, target / "study.yaml")
    provenance = {
        "study": plan.study.name,
        "made_by": f"make study STUDY={plan.path}; capsbench reference {plan.path} {target}",
        "summary": summarise_provenance(plan, results),
        "runs": [
            {key: record[key] for key in ("experiment", "variant", "seed", "status", "commit", "digest", "started",
                                          "finished", "seconds", "parameters", "epochs", "data")}
            for record in records
        ],
    }  # fmt: skip
    (target / "provenance.yaml").write_text(yaml.safe_dump(provenance, sort_keys=False, width=110))


def _is_commit(commit: str) -> bool:
    return len(commit) == 40 and all(c in "0123456789abcdef" for c in commit)
