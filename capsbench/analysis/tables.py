"""The papers' tables with our numbers beside theirs: one data frame -> csv, Markdown, LaTeX."""

import math
import string
from pathlib import Path
from typing import Any

import pandas as pd

from capsbench.analysis.published import counterpart, deviations
from capsbench.analysis.statistics import Summary, summarise, verdict
from capsbench.config import Plan, Run
from capsbench.run_folder import write_whole

MISSING = "-"
_NOT_COMPARABLE = "not comparable: "
_METHODS = {
    "capsnet": "CapsNet",
    "cnn_sabour_mnist": "CNN (S17 baseline)",
    "cnn_matched": "CNN (matched size)",
}


def sabour_table1(plan: Plan, runs: pd.DataFrame) -> pd.DataFrame:
    """S17 Table 1: a row for each experiment and variant, errors in %.

    runs: from `collect`. Numbers stay numbers here (mean, std, low, high, n of planned, diverged, failed, published,
    difference, verdict, parameters, seconds a run); `for_people` turns them into text.
    """
    by_variant: dict[tuple[str, str], Run] = {}
    for run in plan.runs:
        by_variant.setdefault((run.experiment, run.variant), run)
    return pd.DataFrame([_row(run, runs[_is_cell(runs, run)]) for run in by_variant.values()])


TABLES = {"sabour-table1": sabour_table1}


def for_people(table: pd.DataFrame) -> pd.DataFrame:
    """Turn numbers into text: mean ± std, [low, high], n of N; a cell that has not run is "-".

    Why a row is not comparable goes into a note below the table: see `notes`.
    """
    marks = {why: f"not comparable ({letter})" for why, letter in _reasons(table).items()}
    text = pd.DataFrame(
        {
            "data": table["data"],
            "experiment": table["experiment"],
            "method": table["method"],
            "variant": table["variant"],
            "routing": table["routing"],
            "reconstruction": table["reconstruction"],
            "ours (error %)": [_mean_std(r) for r in table.itertuples()],
            "95 % interval": [_interval(r) for r in table.itertuples()],
            "n": [_count(r) for r in table.itertuples()],
            "published": table["published"].fillna(MISSING),
            "difference": [_number(v, "+.2f") for v in table["difference"]],
            "verdict": [marks.get(_why(v), v) for v in table["verdict"]],
            "parameters": [_number(v, ",.0f") for v in table["parameters"]],
            "time a run": [_duration(v) for v in table["seconds"]],
        }
    )
    # the names of experiment and variant only where nothing else tells rows apart
    if (text.groupby("data")["experiment"].nunique() == 1).all():
        text = text.drop(columns="experiment")
    told_apart = ["data", "experiment", "method", "routing", "reconstruction"]
    if not text.duplicated([c for c in told_apart if c in text]).any():
        text = text.drop(columns="variant")
    return text


def notes(table: pd.DataFrame) -> list[str]:
    """Return the notes below the table: each reason why rows are not comparable, once, under its letter."""
    return [f"({letter}) {why}." for why, letter in _reasons(table).items()]


def write_table(table: pd.DataFrame, name: str, folder: Path, caption: str) -> list[Path]:
    """Write NAME.csv (numbers), NAME.md and NAME.tex (text, booktabs) from one data frame; returns the paths."""
    paths = [folder / f"{name}.{ending}" for ending in ("csv", "md", "tex")]
    write_whole(paths[0], lambda aside: table.to_csv(aside, index=False))
    text = for_people(table)
    below = [caption, *notes(table)]
    markdown = [text.to_markdown(index=False, disable_numparse=True), *below]
    _write_text(paths[1], "\n\n".join(markdown) + "\n")
    latex = (
        text.style.hide(axis="index")
        .format(escape="latex")
        .format_index(escape="latex", axis="columns")
        .to_latex(hrules=True, caption=_escape(" ".join(below)), label=f"tab:{name}", column_format="l" * text.shape[1])
    )
    _write_text(paths[2], "% needs \\usepackage{booktabs}\n" + latex.replace("±", r"$\pm$"))
    return paths


def caption(plan: Plan) -> str:
    """Say what the table shows and how to read it, in one paragraph."""
    return (
        f"Study '{plan.study.name}'. Test error in %, mean ± standard deviation over the seeds, with the 95 % t "
        "interval of the mean. n: runs that ended well of those planned. Published: Sabour, Frosst, Hinton 2017 (S17), "
        "Table 1. Nothing was chosen on the test set."
    )


def _row(run: Run, cell: pd.DataFrame) -> dict[str, Any]:
    done = cell[cell["status"] == "ok"]
    ours = summarise(list(done["test_error"]) if len(done) else [])
    published = counterpart(run, "S17 Table 1")
    comparable = published is not None and run.data.name == published.requirements["data_set"]
    return {
        "experiment": run.experiment,
        "data": run.data.name,
        "method": _METHODS.get(run.model, run.model),
        "variant": run.variant,
        "routing": str(run.options.get("iterations", MISSING)),
        "reconstruction": {True: "yes", False: "no"}.get(run.options.get("reconstruction"), MISSING),  # type: ignore[arg-type]
        "mean": ours.mean, "std": ours.std, "low": ours.interval[0], "high": ours.interval[1],
        "n": ours.n, "planned": len(cell),
        "diverged": int((cell["status"] == "diverged").sum()), "failed": int((cell["status"] == "failed").sum()),
        "published": None if published is None else str(published),
        "difference": ours.mean - published.error if published and comparable else math.nan,
        "verdict": _verdict(run, ours, cell),
        "parameters": done["parameters"].iloc[0] if len(done) else math.nan,
        "seconds": done["seconds"].mean() if len(done) else math.nan,
    }  # fmt: skip


def _verdict(run: Run, ours: Summary, cell: pd.DataFrame) -> str:
    published = counterpart(run, "S17 Table 1")
    if published is None:
        return "no published value"
    if ours.n == 0:
        ended = (cell["status"].isin(["diverged", "failed"])).any()
        return "no run ended well" if ended else "not run"
    reasons = deviations(run, published)
    if not reasons:
        return verdict(ours, published.error, published.std, published.n)
    return _NOT_COMPARABLE + "; ".join(reasons)


def _why(verdict: str) -> str:
    return verdict.removeprefix(_NOT_COMPARABLE) if verdict.startswith(_NOT_COMPARABLE) else ""


def _reasons(table: pd.DataFrame) -> dict[str, str]:
    """Return why rows are not comparable -> its letter, in the order of the rows."""
    found = dict.fromkeys(why for why in map(_why, table["verdict"]) if why)
    return dict(zip(found, string.ascii_lowercase, strict=False))


def _is_cell(runs: pd.DataFrame, run: Run) -> "pd.Series[bool]":
    return (runs["experiment"] == run.experiment) & (runs["variant"] == run.variant)


def _mean_std(row: Any) -> str:
    if row.n == 0:
        return "failed" if row.failed else "diverged" if row.diverged else MISSING
    return f"{row.mean:.2f}" + ("" if math.isnan(row.std) else f" ± {row.std:.2f}")


def _interval(row: Any) -> str:
    return MISSING if math.isnan(row.low) else f"[{row.low:.2f}, {row.high:.2f}]"


def _count(row: Any) -> str:
    text = f"{row.n} of {row.planned}"
    for kind in ("diverged", "failed"):
        if number := getattr(row, kind):
            text += f", {number} {kind}"
    return text


def _number(value: float, form: str) -> str:
    return MISSING if math.isnan(value) else format(value, form)


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _write_text(path: Path, text: str) -> None:
    write_whole(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def _escape(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")
