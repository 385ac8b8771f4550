"""The papers' tables with our numbers beside theirs: one data frame -> csv, Markdown, LaTeX."""

import itertools
import math
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from capsbench.analysis.published import Published, counterpart, deviations
from capsbench.analysis.statistics import Summary, summarise, verdict
from capsbench.config import Plan, Run
from capsbench.data.catalogue import CATALOGUE
from capsbench.run_folder import write_whole

MISSING = "-"
_NOT_COMPARABLE = "not comparable: "
_METHODS = {
    "capsnet": "CapsNet",
    "matrix_capsnet": "matrix capsules",
    "efficient_capsnet": "Efficient-CapsNet",
    "self_routing_capsnet": "self-routing CapsNet",
    "deepcaps": "DeepCaps",
    "resnet20": "ResNet-20",
    "cnn_sabour_mnist": "CNN (S17, MNIST)",
    "cnn_sabour_multimnist": "CNN (S17, MultiMNIST)",
    "cnn_hinton_norb": "CNN (H18)",
    "cnn_matched": "CNN (matched size)",
}
_S17 = "Sabour, Frosst, Hinton 2017 (S17)"
_H18 = "Hinton, Sabour, Frosst 2018 (H18)"
_LATER = "of later networks their own papers (published.yaml)"


@dataclass(frozen=True)
class PaperTable:
    """A table of the papers: what its runs are held against. Which runs those are, their data set says."""

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
    """Build a table: a row for each experiment and variant that belongs there, errors in %.

    runs: from `collect`. Numbers stay numbers here (mean, std, low, high, n of planned, diverged, failed, published,
    difference, verdict, parameters, seconds a run; of pairs the per-digit error too; where the test is on novel views
    or transforms, the familiar error too); `for_people` turns them into text.
    """
    table = TABLES[name]
    by_variant: dict[tuple[str, str], Run] = {}
    for run in plan.runs:
        if run.table == name:
            by_variant.setdefault((run.experiment, run.variant), run)
    rows = [_row(run, runs[_is_cell(runs, run)], table) for run in by_variant.values()]
    return pd.DataFrame(rows, columns=_COLUMNS)


def for_people(table: pd.DataFrame) -> pd.DataFrame:
    """Turn numbers into text: mean ± std, [low, high], n of N; a cell that has not run is "-".

    Why a row is not comparable goes into a note below the table: see `notes`.
    """
    marks = {why: f"not comparable ({letter})" for why, letter in _reasons(table).items()}
    daggers = _footnotes(table)
    rows = list(table.itertuples())
    text = pd.DataFrame(
        {
            "data": [r.data + daggers.get(r.unofficial, "") for r in rows],
            "experiment": table["experiment"],
            "method": table["method"],
            "variant": table["variant"],
            "routing": table["routing"],
            "reconstruction": table["reconstruction"],
            "familiar (error %)": [_plus_minus(r.familiar_mean, r.familiar_std) for r in rows],
            "published familiar": [_number(r.published_familiar, "g") for r in rows],
            "ours (error %)": [_mean_std(r) for r in rows],
            "95 % interval": [_interval(r) for r in rows],
            "n": [_count(r) for r in rows],
            "published": table["published"].fillna(MISSING),
            "difference": [_number(v, "+.2f") for v in table["difference"]],
            "verdict": [marks.get(_why(v), v) for v in table["verdict"]],
            "per-digit (error %)": [_plus_minus(r.per_digit_mean, r.per_digit_std) for r in rows],
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
    empty = [
        c for c in ("familiar (error %)", "published familiar", "per-digit (error %)") if set(text[c]) <= {MISSING}
    ]
    text = text.drop(columns=empty)
    if "per-digit (error %)" in text:  # so that the two scores cannot be confused
        text = text.rename(columns={"ours (error %)": "ours (error %; of pairs: pair-exact)"})
    if "familiar (error %)" in text or "published familiar" in text:
        text = text.rename(columns={"ours (error %)": "ours (test, error %)"})
    return text


def notes(table: pd.DataFrame) -> list[str]:
    """Return the notes below the table: reasons why rows are not comparable, unofficial files, the papers' caveats."""
    below = [f"({letter}) {why}." for why, letter in _reasons(table).items()]
    for lines, mark in _footnotes(table).items():
        files = ", ".join(line.split(": md5 ")[0] for line in lines.split("; "))
        below.append(f"{mark} not the official files (runs.csv has their checksums): {files}.")
    caveats = dict.fromkeys(f"{p}: {c}" for p, c in zip(table["published"], table["caveat"], strict=True) if c)
    if caveats:
        below.append("Of the published values: " + ". ".join(caveats) + ".")
    return below


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
    for sign, command in (("±", r"$\pm$"), ("†", r"$\dagger$"), ("‡", r"$\ddagger$")):
        latex = latex.replace(sign, command)
    _write_text(paths[2], "% needs \\usepackage{booktabs}\n" + latex)
    return paths


def caption(name: str, plan: Plan) -> str:
    """Say what the table shows and how to read it, in one paragraph."""
    stopped = any(run.training.stop_at_familiar_accuracy for run in plan.runs if run.table == name)
    chosen = "Training was stopped on the familiar test, as in the papers; else nothing" if stopped else "Nothing"
    return (
        f"Study '{plan.study.name}'. Test error in %, mean ± standard deviation over the seeds, with the 95 % t "
        f"interval of the mean. n: runs that ended well of those planned. Published: {TABLES[name].source}. "
        f"{chosen} was chosen on the test set."
    )


def _row(run: Run, cell: pd.DataFrame, table: PaperTable) -> dict[str, Any]:
    done = cell[cell["status"] == "ok"]
    ours = summarise(_values(done, "test_error"))
    familiar, per_digit = (summarise(_values(done, name)) for name in ("familiar_error", "per_digit_error"))
    published = counterpart(run, table.published)
    novel = CATALOGUE[run.data.name].has_familiar_test(run.data.options)
    comparable = published is not None and run.data.name == published.requirements["data_set"]
    return {
        "experiment": run.experiment,
        "data": run.data.name,
        "method": _method(run),
        "variant": run.variant,
        "routing": _routing(run),
        "reconstruction": {True: "yes", False: "no"}.get(run.options.get("reconstruction"), MISSING),  # type: ignore[arg-type]
        "mean": ours.mean, "std": ours.std, "low": ours.interval[0], "high": ours.interval[1],
        "n": ours.n, "planned": len(cell),
        "diverged": int((cell["status"] == "diverged").sum()), "failed": int((cell["status"] == "failed").sum()),
        "published": None if published is None else str(published),
        "difference": ours.mean - published.error if published and comparable else math.nan,
        "verdict": _verdict(run, ours, cell, published),
        "per_digit_mean": per_digit.mean, "per_digit_std": per_digit.std,
        "familiar_mean": familiar.mean, "familiar_std": familiar.std,
        "published_familiar": math.nan if published is None or published.familiar is None or not novel
        else published.familiar,
        "unofficial": "; ".join(_unofficial_lines(done)),
        "caveat": "" if published is None else published.caveat,
        "parameters": done["parameters"].iloc[0] if len(done) else math.nan,
        "seconds": done["seconds"].mean() if len(done) else math.nan,
    }  # fmt: skip


_COLUMNS = [
    "experiment", "data", "method", "variant", "routing", "reconstruction", "mean", "std", "low", "high", "n",
    "planned", "diverged", "failed", "published", "difference", "verdict", "per_digit_mean", "per_digit_std",
    "familiar_mean", "familiar_std", "published_familiar", "unofficial", "caveat", "parameters", "seconds",
]  # fmt: skip


def _routing(run: Run) -> str:
    """Iterations, as S17's column has them; any other routing than its own by name too."""
    iterations = run.options.get("iterations", "")
    name = run.options.get("routing", MISSING)
    usual = {"capsnet": "dynamic", "matrix_capsnet": "em"}.get(run.model)
    return str(iterations) if name == usual and iterations else f"{name} {iterations}".strip()


def _method(run: Run) -> str:
    name = _METHODS.get(run.model, run.model)
    if run.model == "capsnet" and run.options["loss"] != "margin":
        return f"{name} ({run.options['loss'].replace('_', '-')} loss)"
    if run.model != "matrix_capsnet":
        return name
    # the rows of H18's Table 1 differ in these
    coordinates = "with" if run.options["coordinate_addition"] else "no"
    loss = run.options["loss"].replace("_", "-")
    return f"{name} ({run.options['pose']} pose, {loss} loss, {coordinates} coordinates)"


def _values(done: pd.DataFrame, name: str) -> list[float]:
    return list(done[name].dropna()) if name in done else []


def _unofficial_lines(done: pd.DataFrame) -> list[str]:
    """Return what is said of files that are not official, each line once, over all seeds of a cell."""
    told = done["unofficial"].dropna() if len(done) else []
    return list(dict.fromkeys(line for lines in told for line in lines.split("; ") if line))


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
    return _NOT_COMPARABLE + "; ".join(reasons)


def _why(verdict: str) -> str:
    return verdict.removeprefix(_NOT_COMPARABLE) if verdict.startswith(_NOT_COMPARABLE) else ""


def _reasons(table: pd.DataFrame) -> dict[str, str]:
    """Return why rows are not comparable -> its letter, in the order of the rows."""
    found = dict.fromkeys(why for why in map(_why, table["verdict"]) if why)
    letters = (a + b for a in ("", *string.ascii_lowercase) for b in string.ascii_lowercase)  # a .. z, aa, ab ..
    return dict(zip(found, letters, strict=False))


def _footnotes(table: pd.DataFrame) -> dict[str, str]:
    """Return the lines about unofficial files -> the mark of the rows that rest on them."""
    found = dict.fromkeys(lines for lines in table["unofficial"] if lines)
    return dict(zip(found, (mark * n for n in itertools.count(1) for mark in "†‡"), strict=False))


def _is_cell(runs: pd.DataFrame, run: Run) -> "pd.Series[bool]":
    return (runs["experiment"] == run.experiment) & (runs["variant"] == run.variant)


def _mean_std(row: Any) -> str:
    if row.n == 0:
        return "failed" if row.failed else "diverged" if row.diverged else MISSING
    return _plus_minus(row.mean, row.std)


def _plus_minus(mean: float, std: float) -> str:
    if math.isnan(mean):
        return MISSING
    return f"{mean:.2f}" + ("" if math.isnan(std) else f" ± {std:.2f}")


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
