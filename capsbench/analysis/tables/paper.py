"""The numbers of a table: a row per experiment and variant, with the value that the paper has for it."""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from capsbench.analysis.published import Published, counterpart, deviations
from capsbench.analysis.statistics import Summary, summarise, verdict
from capsbench.analysis.tables.methods import method_name, reconstructs, routing_name
from capsbench.study import Plan, Run

NOT_COMPARABLE = "not comparable: "
_S17 = "Sabour, Frosst, Hinton 2017 (S17)"
_H18 = "Hinton, Sabour, Frosst 2018 (H18)"
_LATER = "for later networks, the papers that published.yaml names"


@dataclass(frozen=True)
class PaperTable:
    """A table of the papers. The data set of a run decides to which table it belongs."""

    source: str
    published: tuple[str, ...]  # "paper table", as in published.yaml


TABLES = {
    "sabour-table1": PaperTable(f"{_S17}, Table 1; {_LATER}", ("S17 Table 1", "R19 MNIST", "M21 MNIST")),
    "affnist": PaperTable(f"{_S17}, section 5.2", ("S17 section 5.2",)),
    "hinton-table1": PaperTable(
        f"{_H18}, Table 1, and {_S17}, section 7; {_LATER}", ("H18 Table 1", "S17 section 7", "M21 smallNORB")
    ),
    "hinton-table2": PaperTable(f"{_H18}, Table 2", ("H18 Table 2",)),
}


def paper_table(name: str, plan: Plan, runs: pd.DataFrame) -> pd.DataFrame:
    """Build a table as numbers: a row per experiment and variant of its data sets, errors in %.

    Columns: mean, std, low and high of the 95 % interval; n of planned runs, diverged, failed; published value,
    difference, verdict; parameters, seconds per run. For pairs of digits also the per-digit error; where the test is on
    novel views or transforms also the familiar error. `for_people` turns the numbers into text.

    Args:
        name: one of TABLES.
        plan: the study.
        runs: from `collect`.
    """
    table = TABLES[name]
    by_variant: dict[tuple[str, str], Run] = {}
    for run in plan.runs:
        if run.table == name:
            by_variant.setdefault((run.experiment, run.variant), run)
    rows = [_row(run, runs[_is_cell(runs, run)], table) for run in by_variant.values()]
    return pd.DataFrame(rows, columns=_COLUMNS)


def caption(name: str, plan: Plan) -> str:
    """Say what the table shows and how to read it, in one paragraph."""
    stopped = any(run.training.stop_at_familiar_accuracy for run in plan.runs if run.table == name)
    chosen = "Training was stopped on the familiar test, as in the papers; nothing" if stopped else "Nothing"
    return (
        f"Study '{plan.study.name}'. Test error in %, mean ± standard deviation over the seeds, with the 95 % t "
        f"interval of the mean. n: runs with a result, out of the planned runs. Published: {TABLES[name].source}. "
        f"{chosen} was chosen on the test set."
    )


def _row(run: Run, cell: pd.DataFrame, table: PaperTable) -> dict[str, Any]:
    done = cell[cell["status"] == "ok"]
    ours = summarise(_values(done, "test_error"))
    familiar, per_digit = (summarise(_values(done, name)) for name in ("familiar_error", "per_digit_error"))
    published = counterpart(run, table.published)
    comparable = published is not None and run.data.name == published.requirements["data_set"]
    return {
        "experiment": run.experiment,
        "data": run.data.name,
        "method": method_name(run),
        "variant": run.variant,
        "label": cell["label"].iloc[0],
        "routing": routing_name(run),
        "reconstruction": reconstructs(run),
        "mean": ours.mean, "std": ours.std, "low": ours.interval[0], "high": ours.interval[1],
        "n": ours.n, "planned": len(cell),
        "diverged": int((cell["status"] == "diverged").sum()), "failed": int((cell["status"] == "failed").sum()),
        "published": None if published is None else str(published),
        "difference": ours.mean - published.error if published and comparable else math.nan,
        "verdict": _verdict(run, ours, cell, published),
        "per_digit_mean": per_digit.mean, "per_digit_std": per_digit.std,
        "familiar_mean": familiar.mean, "familiar_std": familiar.std,
        "published_familiar": _published_familiar(run, published),
        "unofficial": "; ".join(_unofficial_lines(done)),
        "caveat": "" if published is None else published.caveat,
        "parameters": done["parameters"].iloc[0] if len(done) else math.nan,
        "seconds": done["seconds"].mean() if len(done) else math.nan,
    }  # fmt: skip


_COLUMNS = [
    "experiment", "data", "method", "variant", "label", "routing", "reconstruction", "mean", "std", "low", "high", "n",
    "planned", "diverged", "failed", "published", "difference", "verdict", "per_digit_mean", "per_digit_std",
    "familiar_mean", "familiar_std", "published_familiar", "unofficial", "caveat", "parameters", "seconds",
]  # fmt: skip


def _published_familiar(run: Run, published: Published | None) -> float:
    if published is None or published.familiar is None or not run.data.has_familiar_test:
        return math.nan
    return published.familiar


def _values(done: pd.DataFrame, name: str) -> list[float]:
    return list(done[name].dropna()) if name in done else []


def _unofficial_lines(done: pd.DataFrame) -> list[str]:
    """Return the lines about files that are not official, each once, over all seeds of a cell."""
    found = done["unofficial"].dropna() if len(done) else []
    return list(dict.fromkeys(line for lines in found for line in lines.split("; ") if line))


def _verdict(run: Run, ours: Summary, cell: pd.DataFrame, published: Published | None) -> str:
    if published is None:
        return "no published value"
    if ours.n == 0:
        ended = (cell["status"].isin(["diverged", "failed"])).any()
        return "no run ended well" if ended else "not run"
    reasons = deviations(run, published)
    goal = run.training.stop_at_familiar_accuracy
    if goal and any(error > 100 * (1 - goal) + 1e-9 for error in _values(cell, "familiar_error")):
        reasons.append(f"a familiar accuracy of {goal:.2%} was not reached")
    if any(cell["unofficial"].fillna("")):
        reasons.append("not the official files")
    if not reasons:
        return verdict(ours, published.error, published.std, published.n)
    return NOT_COMPARABLE + "; ".join(reasons)


def _is_cell(runs: pd.DataFrame, run: Run) -> "pd.Series[bool]":
    return (runs["experiment"] == run.experiment) & (runs["variant"] == run.variant)
