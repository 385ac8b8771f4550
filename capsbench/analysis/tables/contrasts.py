"""The table of contrasts: variants of a study compared at equal seeds, as csv, Markdown and LaTeX."""

import math
from pathlib import Path
from typing import Any

import pandas as pd

from capsbench.analysis.contrasts import compare, digits_for, number, p_value
from capsbench.run.folder import write_whole
from capsbench.study import Plan

NAME = "contrasts"
_MISSING = "-"
_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$",
}  # fmt: skip


def write_contrasts(plan: Plan, runs: pd.DataFrame, folder: Path) -> list[Path]:
    """Write contrasts.csv (numbers), .md and .tex (text) into a folder; returns the paths.

    Args:
        plan: a study with contrasts.
        runs: from `collect`.
        folder: that of the tables.
    """
    table = compare(plan.contrasts, runs)
    below = [contrasts_caption(plan), *contrasts_notes(plan, table)]
    text = contrasts_for_people(table).to_markdown(index=False, disable_numparse=True)
    contents = {
        "csv": _numbers(table).to_csv(index=False),
        "md": "\n\n".join([text, *below]) + "\n",
        "tex": _latex(table, below),
    }
    paths = [folder / f"{NAME}.{ending}" for ending in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_whole(path, lambda aside, text=content: aside.write_text(text, encoding="utf-8"))  # type: ignore[misc]
    return paths


def contrasts_for_people(table: pd.DataFrame) -> pd.DataFrame:
    """Turn the numbers of `compare` into text; what cannot be said is "-"."""
    rows = list(table.itertuples())
    text = pd.DataFrame(
        {
            "family": table["family"],
            "experiment": table["experiment"],
            "contrast": table["contrast"],
            "difference (points)": [_mean(r) for r in rows],
            "95 % interval": [_interval(r) for r in rows],
            "P(better)": [_probability(r.p_better) for r in rows],
            "p": [_p(r.p) for r in rows],
            "p (Holm)": [_p(r.p_holm) for r in rows],
            "n": [f"{r.n} of {r.planned}" for r in rows],
            "what it shows": table["shows"],
        }
    )
    return text if table["experiment"].nunique() > 1 else text.drop(columns="experiment")


def contrasts_caption(plan: Plan) -> str:
    """Say what the table shows and how to read it, in one paragraph."""
    return (
        f"Study '{plan.study.name}'. Differences in test error at equal seeds, the first variant minus the second, in "
        "points of %: negative where the first is better. Mean over the seeds and the 95 % t interval of that mean. "
        "P(better): the probability, by the t distribution, that in a fresh pair of runs the error of the first is "
        "below that of the second. p: paired t test, two-sided; p (Holm): adjusted for all contrasts of the family "
        "that have a p. n: seeds with a result of both variants, out of the planned seeds. Intervals are not adjusted, "
        "and they are about seeds: neither the choice of the training images nor that of the test images is in them."
    )


def contrasts_notes(plan: Plan, table: pd.DataFrame) -> list[str]:
    """Return the notes below the table: seeds that were dropped, data that stand in for others, copies."""
    below = []
    if table["dropped"].any():
        lines = [f"{r.contrast} ({r.experiment}): {r.dropped}" for r in table.itertuples() if r.dropped]
        below.append("Seeds that were left out: " + ". ".join(lines) + ".")
        if table["dropped"].str.contains("diverged|at chance").any():
            below.append(
                "A run that diverges or stays at chance is a result of its variant: where such seeds were left out, "
                "the difference is about the seeds in which both variants learnt."
            )
    for experiment in dict.fromkeys(table["experiment"]):
        data = plan.data[experiment].facts
        if data.paper != data.name:
            below.append(f"{experiment}: {data.title}, a stand-in for {data.paper}; what it shows need not hold there.")
        lines = [line for lines in table.loc[table["experiment"] == experiment, "unofficial"] for line in _split(lines)]
        if files := dict.fromkeys(line.split(": md5 ")[0] for line in lines):
            below.append(f"{experiment}: not the official files (runs.csv has their checksums): {', '.join(files)}.")
    return below


def _split(lines: str) -> list[str]:
    return lines.split("; ") if lines else []


def _numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Write the differences of the seeds as text: "0: -0.37; 1: -0.35"."""
    by_seed = ["; ".join(f"{seed}: {d:.10g}" for seed, d in found.items()) for found in table["differences"]]
    return table.assign(differences=by_seed)


def _latex(table: pd.DataFrame, below: list[str]) -> str:
    """Return the table for LaTeX: five columns that fit the width of a page, a heading per family, notes below."""
    several = table["experiment"].nunique() > 1
    lines = [
        r"% needs \usepackage{array, booktabs}",
        r"\begin{table*}",
        r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{_escape(below[0])}}}",
        rf"\label{{tab:{NAME}}}",
        r"\begin{tabular}{@{}>{\raggedright\arraybackslash}p{0.36\linewidth}lrrr@{}}",
        r"\toprule",
        r"contrast & difference, 95 \% interval & P(better) & p (Holm) & n \\",
    ]
    for family in dict.fromkeys(table["family"]):
        lines += [r"\midrule", rf"\multicolumn{{5}}{{@{{}}l}}{{\emph{{{_escape(family)}}}}} \\"]
        for row in table[table["family"] == family].itertuples():
            place = f"{row.experiment}: " if several else ""
            numbers = f"{_mean(row)} {_interval(row)}" if not math.isnan(row.low) else _mean(row)
            cells = [_escape(place + row.contrast), _math(numbers), _probability(row.p_better), _p(row.p_holm)]
            cells[2:] = [_escape(cell) for cell in cells[2:]]
            lines.append(" & ".join([*cells, f"{row.n} of {row.planned}"]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\par\smallskip\raggedright {_escape(note)}" for note in below[1:]]
    return "\n".join([*lines, r"\end{table*}"]) + "\n"


def _mean(row: Any) -> str:
    if row.n == 0:
        return _MISSING
    if math.isnan(row.low):
        return "identical" if row.shows.startswith("identical") else number(row.mean, digits_for(row.mean))
    return number(row.mean, digits_for(row.low, row.high))


def _interval(row: Any) -> str:
    if math.isnan(row.low):
        return _MISSING
    digits = digits_for(row.low, row.high)
    return f"[{number(row.low, digits)}, {number(row.high, digits)}]"


def _probability(value: float) -> str:
    if math.isnan(value):
        return _MISSING
    return ">0.99" if value > 0.99 else "<0.01" if value < 0.01 else f"{value:.2f}"


def _p(value: float) -> str:
    return _MISSING if math.isnan(value) else p_value(value)


def _math(text: str) -> str:
    """Set numbers with a minus sign instead of a hyphen."""
    return _escape(text).replace("-", r"$-$") if text != _MISSING else text


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
