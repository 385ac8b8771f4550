"""The numbers of a table: a row per experiment and variant, with the value that the paper has for it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from capsbench.analysis.published import Published, counterpart, deviations, rows_without_models
from capsbench.analysis.statistics import summarise, verdict
from capsbench.analysis.tables.methods import MISSING, method_name, reconstructs, routing_name
from capsbench.run.match import TOLERANCE
from capsbench.study import Plan, Run, catalogue

NOT_COMPARABLE = "not comparable: "
NO_NETWORK = "no network of ours"
_S17 = "Sabour, Frosst, Hinton 2017 (S17)"
_H18 = "Hinton, Sabour, Frosst 2018 (H18)"
_BESIDE = {"norb": "smallnorb"}  # data sets that are not here, and where their values are shown
_LATER = "for later networks, the papers that published.yaml names"


@dataclass(frozen=True)
class PaperTable:
    """A table of the papers. The data set of a run decides to which table it belongs."""

    source: str
    published: tuple[str, ...]  # "paper table", as in published.yaml


TABLES = {
    "sabour-table1": PaperTable(
        f"{_S17}, Table 1; {_LATER}", ("S17 Table 1", "H18 section 5", "R19 Table 1", "M21 MNIST")
    ),
    "affnist": PaperTable(f"{_S17}, section 5.2", ("S17 section 5.2",)),
    "hinton-table1": PaperTable(
        f"{_H18}, Table 1, and {_S17}, section 7; {_LATER}",
        ("H18 Table 1", "H18 section 5", "S17 section 7", "M21 smallNORB"),
    ),
    "hinton-table2": PaperTable(f"{_H18}, Table 2", ("H18 Table 2",)),
    "natural-images": PaperTable(
        f"{_S17}, section 7, and {_H18}, section 5; {_LATER}", ("S17 section 7", "H18 section 5", "R19 Table 1")
    ),
}


def paper_table(name: str, plan: Plan, runs: pd.DataFrame) -> pd.DataFrame:
    """Build a table as numbers: a row per experiment and variant of its data sets, errors in %.

    After them, a row per value that papers publish for a data set of the study and a network that is not here; in
    these `planned` is 0.

    Columns: mean, std, low and high of the 95 % interval; n of planned runs, diverged, failed; published value,
    difference, verdict; parameters, seconds per run. For pairs of digits also the per-digit error; where the test is on
    novel views or transforms also the familiar error, and where training stopped at the familiar error of another
    variant, that variant and the overshoot: by how many points the familiar error is below its, mean over the seeds.
    stuck: runs that never left chance, with the diagnostics of one of them; unmatched: why a familiar error does not
    count as matched. `for_people` turns the numbers into text.

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
    rows = [_row(run, plan, runs, table) for run in by_variant.values()]
    rows += _published_only(name, plan)
    return pd.DataFrame(rows, columns=_COLUMNS)


def caption(name: str, plan: Plan) -> str:
    """Say what the table shows and how to read it, in one paragraph."""
    stopped = any(run.training.match for run in plan.runs if run.table == name)
    chosen = (
        "Where a note says so, training was stopped on the familiar test, as in H18; nothing" if stopped else "Nothing"
    )
    return (
        f"Study '{plan.study.name}'. Test error in %, mean ± standard deviation over the seeds, with the 95 % t "
        f"interval of the mean. n: runs with a result, out of the planned runs. Published: {TABLES[name].source}. "
        f"{chosen} was chosen on the test set."
    )


def _row(run: Run, plan: Plan, runs: pd.DataFrame, table: PaperTable) -> dict[str, Any]:
    cell = runs[_is_cell(runs, run.experiment, run.variant)]
    matching = _matching(run, cell, runs)
    done = cell[cell["status"] == "ok"]
    ours = summarise(_values(done, "test_error"))
    familiar, per_digit = (summarise(_values(done, name)) for name in ("familiar_error", "per_digit_error"))
    published = counterpart(run, table.published)
    comparable = published is not None and run.data.name == published.data_set
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
        "verdict": _verdict(run, plan, cell, published, matching),
        "per_digit_mean": per_digit.mean, "per_digit_std": per_digit.std,
        "familiar_mean": familiar.mean, "familiar_std": familiar.std,
        "published_familiar": _published_familiar(run, published),
        "unofficial": "; ".join(_unofficial_lines(done)),
        "caveat": "" if published is None else published.caveat,
        "parameters": done["parameters"].iloc[0] if len(done) else math.nan,
        "seconds": done["seconds"].mean() if len(done) else math.nan,
        "matched_to": "" if matching is None else matching.variant,
        "overshoot": math.nan if matching is None else matching.overshoot,
        "stuck": len(_stuck(cell)),
        "diagnostics": _diagnostics(_stuck(cell)),
        "unmatched": "" if matching is None else matching.problem,
    }  # fmt: skip


_COLUMNS = [
    "experiment", "data", "method", "variant", "label", "routing", "reconstruction", "mean", "std", "low", "high", "n",
    "planned", "diverged", "failed", "published", "difference", "verdict", "per_digit_mean", "per_digit_std",
    "familiar_mean", "familiar_std", "published_familiar", "unofficial", "caveat", "parameters", "seconds",
    "matched_to", "overshoot", "stuck", "diagnostics", "unmatched",
]  # fmt: skip


def _published_only(name: str, plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield a row for each published value of a network that is not here, on a data set that the study has."""
    there = {run.data.name for run in plan.runs if run.table == name}
    for value in rows_without_models():
        data_set = _BESIDE.get(value.data_set, value.data_set)
        facts = catalogue()[data_set]
        if data_set in there and facts.table(facts.options()) == name:
            yield {
                "experiment": "", "data": value.data_set, "method": f"{value.method} ({value.paper})", "variant": "",
                "label": value.method, "routing": MISSING, "reconstruction": MISSING, "n": 0, "planned": 0,
                "diverged": 0, "failed": 0, "stuck": 0, "published": str(value), "verdict": NO_NETWORK,
                "published_familiar": math.nan if value.familiar is None else value.familiar,
                "unofficial": "", "caveat": value.caveat, "matched_to": "", "diagnostics": "", "unmatched": "",
            }  # fmt: skip


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


def _verdict(
    run: Run, plan: Plan, cell: pd.DataFrame, published: Published | None, matching: "_Matching | None"
) -> str:
    unmatched = [matching.problem] if matching and matching.problem else []
    if published is None:
        return NOT_COMPARABLE + unmatched[0] if unmatched else "no published value"
    done = cell[cell["status"] == "ok"]
    if done.empty:
        ended = (cell["status"].isin(["diverged", "failed"])).any()
        return "no run ended well" if ended else "not run"
    reasons = [*deviations(run, published, plan), *unmatched]
    if any(done["unofficial"]):
        reasons.append("not the official files")
    ours = summarise(_values(done, "test_error"))
    found = "" if reasons else verdict(ours, published.error, published.std, published.n)
    if stuck := len(_stuck(done)):  # a mean over networks that learnt and others that did not reproduces nothing
        reasons.append(f"{stuck} of {ours.n} runs stuck at chance")
        if found.startswith("missed"):
            return f"{found}; {reasons[0]}"
    return NOT_COMPARABLE + "; ".join(reasons) if reasons else found


@dataclass(frozen=True)
class _Matching:
    """Familiar errors beside those of the variant that training was matched to, at equal seeds.

    variant: its label. overshoot: mean of its familiar error less ours, in points. problem: why they do not match.
    """

    variant: str
    overshoot: float
    problem: str


def _matching(run: Run, cell: pd.DataFrame, runs: pd.DataFrame) -> _Matching | None:
    """Compare the familiar errors of a cell, as they were evaluated; None where training stopped by itself."""
    if not run.training.match:
        return None
    other = runs[_is_cell(runs, run.experiment, run.training.match)]
    ours, theirs = (_familiar_by_seed(part) for part in (cell, other))
    missing = [seed for seed in ours if seed not in theirs]
    gaps = {seed: theirs[seed] - error for seed, error in ours.items() if seed in theirs}
    worst = max(gaps, key=lambda seed: abs(gaps[seed]), default=None)
    problem = ""
    if missing:
        problem = f"familiar error not matched (seed {missing[0]}: no result of {run.training.match})"
    elif worst is not None and abs(gaps[worst]) > TOLERANCE + 1e-9:
        problem = f"familiar error not matched ({ours[worst]:.2f} against {theirs[worst]:.2f}, seed {worst})"
    overshoot = math.fsum(gaps.values()) / len(gaps) if gaps else math.nan
    return _Matching(str(other["label"].iloc[0]), overshoot, problem)


def _familiar_by_seed(cell: pd.DataFrame) -> dict[int, float]:
    if "familiar_error" not in cell:
        return {}
    return {int(row.seed): float(row.familiar_error) for row in cell.dropna(subset="familiar_error").itertuples()}


def _stuck(cell: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of a cell that never left chance."""
    return cell[cell["stuck_at_chance"].eq(True)]


def _diagnostics(stuck: pd.DataFrame) -> str:
    """Return those of the first run that has any."""
    told = stuck.dropna(subset="diagnostics")
    return "" if told.empty else f"seed {told['seed'].iloc[0]}: {told['diagnostics'].iloc[0]}"


def _is_cell(runs: pd.DataFrame, experiment: str, variant: str) -> "pd.Series[bool]":
    return (runs["experiment"] == experiment) & (runs["variant"] == variant)
