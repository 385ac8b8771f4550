"""A page per study: what it shows, verdicts, plots, all runs, provenance, in one file that opens anywhere."""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.conclusion import findings, scope
from capsbench.analysis.contrasts import compare, contrasts_of_begun
from capsbench.analysis.correct_bits import Correct
from capsbench.analysis.measures import Measures
from capsbench.analysis.page import BESIDE, contrasts_tables, details_of, plots_of, results_tables, sheets_of
from capsbench.analysis.power import in_words
from capsbench.analysis.tables import Table, build_tables
from capsbench.analysis.tables.contrasts import contrasts_notes
from capsbench.analysis.tables.text import MISSING, duration_text
from capsbench.analysis.verdicts import DECIDED
from capsbench.run.finished import FINISHED, finished
from capsbench.run.folder import Damaged, RunFolder, write_whole
from capsbench.study import Plan

MOST_BYTES = 4_500_000  # what goes through most mail servers, and opens soon on a telephone
_LETTERS = 12  # of a sha256 on the page
_ON_THE_PAGE = ("questions", "contrasts")  # tables that the page has in a form of its own


def write_report(
    plan: Plan,
    runs: pd.DataFrame,
    folder: Path,
    provenance: Mapping[str, str],
    curves: pd.DataFrame | None = None,
    tables: Mapping[str, Table] | None = None,
    measures: Measures | None = None,
    correct: Correct | None = None,
) -> Path:
    """Write folder/report.html; returns its path. Plots are those that stand in the folder.

    Args:
        plan: the study.
        runs: from `collect` or `read_runs`.
        folder: results/STUDY or a reference, with plots/*.
        provenance: facts in the order in which they are shown, from `summarise_provenance`.
        curves: from `learning_curves`; None where the run folders are not here.
        tables: from `build_tables`; left out: made of the runs alone.
        measures: what protocols found.
        correct: which test items the runs got right.
    """
    found = cells(plan, runs)
    sheets = results_tables(found)
    compared = compare(contrasts_of_begun(plan, runs), runs)
    facts = {
        "study": plan.study,
        "scope": scope(plan, runs),
        "findings": findings(plan, runs, measures, correct),
        "questions": bool(plan.study.questions),
        "coverage": _coverage(found, runs),
        "results": sheets,
        "seeds": in_words(plan, runs),
        "contrasts": contrasts_tables(plan, compared, found),
        "below_contrasts": contrasts_notes(plan, compared) if len(compared) else [],
        "tables": [
            (table, sheets_of(table, found))
            for name, table in (build_tables(plan, runs) if tables is None else tables).items()
            if name not in _ON_THE_PAGE
        ],
        "cells": details_of(plan, found, runs, curves),
        "deviations": _deviations(found),
        "beside": sum(cell.published is not None for cell in found),
        "compared": any(BESIDE in sheet.columns for sheet in sheets),
        "unwell": _unwell(runs),
        "missing": runs.loc[runs["status"].isin(["missing", "running", "interrupted", "damaged"]), "key"].tolist(),
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
    """Gather what the finished runs rest on: commits, versions, machine, data; several values where runs differ.

    Items shown: by data set and split, the first letters of the sha256 of the items that were trained or tested on, or
    how many there are where runs differ, as those with a training set of their own do.
    """
    facts: dict[str, dict[str, None]] = {}  # an ordered set per fact
    shown: dict[str, dict[str, set[str]]] = {}
    records = []
    for run, folder, record in finished(plan, results, FINISHED):
        records.append(record)
        for name, value in _facts(run.data.name, record, folder):
            if value:
                facts.setdefault(name, {})[value] = None
        for split, fingerprint in record["data"].get("shown", {}).items():
            shown.setdefault(run.data.name, {}).setdefault(split, set()).add(fingerprint)
    joined = {name: "; ".join(values) for name, values in facts.items()}
    items = {
        f"items shown ({name})": "; ".join(_items(split, found) for split, found in by_split.items())
        for name, by_split in shown.items()
    }
    return joined | items | _largest(records)


def _facts(data: str, record: Mapping[str, Any], folder: RunFolder) -> Iterator[tuple[str, str]]:
    """Yield what a run says of its making; what differs between the parts of a training, for each of them."""
    parts = record.get("segments") or [record]
    yield from (("commit", part["commit"]) for part in parts)
    with suppress(Damaged):  # which `collect` has said
        yield "evaluation commit", folder.read_evaluation("accuracy", record).get("commit", "")
    yield from (
        ("versions", ", ".join(f"{name} {version}" for name, version in part["versions"].items())) for part in parts
    )
    for machine in (part["machine"] for part in parts):
        yield "machine", f"{machine['device']}; {machine['system']} {machine['release']} {machine['architecture']}"
    yield f"fingerprint of the training set as read ({data})", record["data"]["fingerprint"]
    yield f"not the official files ({data})", "; ".join(record["data"]["unofficial"])
    yield "threads per run", str(record["config"]["training"]["threads"])


def _items(split: str, fingerprints: Set[str]) -> str:
    """Say which items of a split were shown."""
    if len(fingerprints) > 1:
        return f"{split}: {len(fingerprints)} different"
    return f"{split}: {min(fingerprints)[:_LETTERS]}"


def _largest(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Say how long the runs took together, and how much memory one took at most, where that was noted."""
    starts, ends = ([datetime.fromisoformat(record[name]) for record in records] for name in ("started", "finished"))
    wall = (max(ends) - min(starts)).total_seconds() if records else 0.0
    peaks = [record["peak_memory_mb"] for record in records if record.get("peak_memory_mb") is not None]
    return {
        "training time, sum over all runs": f"{sum(record['seconds'] for record in records) / 60:.1f} min",
        "wall time, first start to last end": f"{wall / 60:.1f} min",
        **({"largest peak memory of a run": f"{max(peaks):,.0f} MiB"} if peaks else {}),
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
    judged = [cell for cell in beside if cell.verdict.word in DECIDED]
    return {
        "runs": ", ".join(f"{number} {status}" for status, number in statuses.items()),
        "variants with a result": f"{sum(bool(cell.errors) for cell in found)} of {len(found)}",
        "beside a published value": f"{sum(bool(cell.errors) for cell in beside)} of {len(beside)}",
        "with a decided verdict": f"{len(judged)} of {len(beside)}",
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
