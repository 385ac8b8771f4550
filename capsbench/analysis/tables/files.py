"""The files of a table: numbers as csv, text as Markdown and LaTeX."""

from pathlib import Path

import pandas as pd

from capsbench.analysis.collect import collect, write_runs
from capsbench.analysis.tables.contrasts import write_contrasts
from capsbench.analysis.tables.paper import caption, paper_table
from capsbench.analysis.tables.text import for_people, notes
from capsbench.run.folder import write_whole
from capsbench.study import Plan


def write_tables(plan: Plan, results: Path) -> dict[str, list[Path]]:
    """Write runs.csv and all tables of a study below results/STUDY/; returns the paths by table."""
    folder = results / plan.study.name
    runs = collect(plan, results)
    write_runs(runs, folder / "runs.csv")
    contrasts = {"contrasts": write_contrasts(plan, runs, folder / "tables")} if plan.contrasts else {}
    return {
        name: write_table(paper_table(name, plan, runs), name, folder / "tables", caption(name, plan))
        for name in plan.tables
    } | contrasts


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


def _write_text(path: Path, text: str) -> None:
    write_whole(path, lambda aside: aside.write_text(text, encoding="utf-8"))


def _escape(text: str) -> str:
    return text.replace("%", r"\%").replace("_", r"\_").replace("&", r"\&")
