"""A page per study: what it shows, verdicts, plots, all runs, provenance, in one file that opens anywhere."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.conclusion import findings
from capsbench.analysis.contrasts import compare
from capsbench.analysis.page import contrasts_table, details_of, plots_of, results_table, sheets_of
from capsbench.analysis.power import in_words
from capsbench.analysis.tables import build_tables
from capsbench.analysis.tables.text import MISSING, duration_text
from capsbench.run.folder import RunFolder, write_whole
from capsbench.study import Plan

MOST_BYTES = 2_900_000  # what goes through most mail servers, and opens at once on a telephone
_COMPARED = ("same", "better", "worse")
_ON_THE_PAGE = ("contrasts",)  # tables that the page has in a form of its own


def write_report(
    plan: Plan, runs: pd.DataFrame, folder: Path, provenance: Mapping[str, str], curves: pd.DataFrame | None = None
) -> Path:
    """Write folder/report.html; returns its path. Plots are those that stand in the folder.

    Args:
        plan: the study.
        runs: from `collect` or `read_runs`.
        folder: results/STUDY or a reference, with plots/*.
        provenance: facts in the order in which they are shown, from `summarise_provenance`.
        curves: from `learning_curves`; None where the run folders are not here.
    """
    found = cells(plan, runs)
    facts = {
        "study": plan.study,
        "findings": findings(plan, runs),
        "coverage": _coverage(found, runs),
        "results": results_table(found),
        "seeds": in_words(plan, runs),
        "contrasts": contrasts_table(compare(plan.contrasts, runs)),
        "tables": [
            (table, sheets_of(table, found))
            for name, table in build_tables(plan, runs).items()
            if name not in _ON_THE_PAGE
        ],
        "cells": details_of(plan, found, runs, curves),
        "deviations": _deviations(found),
        "beside": sum(cell.published is not None for cell in found),
        "unwell": _unwell(runs),
        "missing": runs.loc[runs["status"].isin(["missing", "running"]), "key"].tolist(),
        "provenance": provenance,
        "duration": duration_text,
    }
    template = _environment().get_template("report.html.j2")
    room = MOST_BYTES - len(template.render(**facts, plots=[]).encode())
    page = template.render(**facts, plots=plots_of(folder / "plots", plan.study.plots, room))
    path = folder / "report.html"
    write_whole(path, lambda aside: aside.write_text(page, encoding="utf-8"))
    return path


def summarise_provenance(plan: Plan, results: Path) -> dict[str, str]:
    """Gather what the finished runs rest on: commit, versions, machine, data; several values where runs differ."""
    facts: dict[str, dict[str, None]] = {}  # an ordered set per fact
    seconds, starts, ends = 0.0, [], []
    for run in plan.runs:
        record = RunFolder.of(results, run.study, run.key).read_record()
        if not record or record["status"] not in ("ok", "diverged") or record["digest"] != run.digest:
            continue
        seconds += record["seconds"]
        starts.append(datetime.fromisoformat(record["started"]))
        ends.append(datetime.fromisoformat(record["finished"]))
        machine = record["machine"]
        versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
        for name, value in {
            "commit": record["commit"],
            "versions": versions,
            "machine": f"{machine['device']}; {machine['system']} {machine['release']} {machine['architecture']}",
            f"data fingerprint ({run.data.name})": record["data"]["fingerprint"],
            f"not the official files ({run.data.name})": "; ".join(record["data"]["unofficial"]),
            "threads per run": str(record["config"]["training"]["threads"]),
        }.items():
            if value:
                facts.setdefault(name, {})[value] = None
    joined = {name: "; ".join(values) for name, values in facts.items()}
    wall = (max(ends) - min(starts)).total_seconds() if starts else 0.0
    return {
        **joined,
        "training time, sum over all runs": f"{seconds / 60:.1f} min",
        "wall time, first start to last end": f"{wall / 60:.1f} min",
    }


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("capsbench", "analysis"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _coverage(found: list[Cell], runs: pd.DataFrame) -> dict[str, str]:
    """Say how much of the study there is: runs, published values that stand beside a result, verdicts."""
    statuses = runs["status"].value_counts().to_dict()
    beside = [cell for cell in found if cell.published is not None]
    judged = [cell for cell in beside if cell.verdict.word in _COMPARED]
    return {
        "runs": ", ".join(f"{number} {status}" for status, number in statuses.items()),
        "variants with a result": f"{sum(bool(cell.errors) for cell in found)} of {len(found)}",
        "beside a published value": f"{sum(bool(cell.errors) for cell in beside)} of {len(beside)}",
        "with a verdict": f"{len(judged)} of {len(beside)}",
    }


def _deviations(found: list[Cell]) -> dict[str, list[int]]:
    """Return why results cannot be compared with published values: reason -> places of the cells."""
    reasons: dict[str, list[int]] = {}
    for place, cell in enumerate(found):
        for reason in cell.deviations if cell.published is not None else ():
            reasons.setdefault(reason, []).append(place)
    return dict(sorted(reasons.items(), key=lambda item: -len(item[1])))


def _unwell(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the runs that failed, diverged or never left chance."""
    rows = []
    for run in runs.to_dict("records"):
        stuck = run.get("stuck_at_chance") in (True, "True")
        if run["status"] in ("failed", "diverged") or stuck:
            diagnostics = run.get("diagnostics")
            rows.append({
                "key": run["key"],
                "what": "stuck at chance" if stuck else run["status"],
                "error": f"{run['test_error']:.2f}" if stuck else MISSING,
                "diagnostics": diagnostics if isinstance(diagnostics, str) and diagnostics else MISSING,
            })  # fmt: skip
    return rows
