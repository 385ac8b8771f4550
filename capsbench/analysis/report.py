"""A page per study: verdicts, runs stuck at chance, plots, provenance, in a single file that opens anywhere."""

import base64
from datetime import datetime
from pathlib import Path

import jinja2
import pandas as pd

from capsbench.analysis.tables import caption, for_people, notes, paper_table
from capsbench.run.folder import RunFolder, write_whole
from capsbench.study import Plan


def write_report(plan: Plan, results: Path, runs: pd.DataFrame) -> Path:
    """Write results/STUDY/report.html from the runs and the plots that are drawn already; returns its path."""
    folder = results / plan.study.name
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("capsbench", "analysis"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    tables = {name: paper_table(name, plan, runs) for name in plan.tables}
    page = environment.get_template("report.html.j2").render(
        study=plan.study,
        counts=runs["status"].value_counts().to_dict(),
        stuck=runs[runs["stuck_at_chance"].eq(True)].fillna({"diagnostics": ""}).to_dict("records"),
        tables={
            name: (for_people(table).to_dict("split"), caption(name, plan), notes(table))
            for name, table in tables.items()
        },
        plots={name: _embedded(folder / "plots" / f"{name}.svg") for name in plan.study.plots},
        provenance=summarise_provenance(plan, results),
    )
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


def _embedded(path: Path) -> str | None:
    if not path.exists():
        return None
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
