"""What a study came to, as tables and sentences for the terminal."""

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.conclusion import findings_of_contrasts
from capsbench.analysis.tables.overview import headings
from capsbench.analysis.tables.source import Source
from capsbench.analysis.tables.text import MISSING, count_text, error_text, interval_text
from capsbench.study import Plan

WIDTH = 100
MOST_CONTRASTS = 12  # that a sentence lists; the page has the others
_SHORTEST = 22  # label
_HEADS = ("network", "error (%)", "verdict", "n")


def terminal_summary(plan: Plan, runs: pd.DataFrame, page: Path | None = None, command: str = "") -> str:
    """Return a table per experiment (label, error, verdict, runs), what contrasts show, and where the page is.

    Lines are at most 100 columns wide, but for that with the page.

    Args:
        plan: the study.
        runs: from `collect` or `read_runs`.
        page: of the study; results/STUDY/report.html where it is left out.
        command: that writes the page; 'capsbench report STUDY' where it is left out.
    """
    there = cells(plan, runs)
    heads = headings(Source(plan, runs, there, ()))
    lines = []
    rows = {name: [_texts(cell) for cell in there if cell.experiment == name] for name in heads}
    widths = _widths([_HEADS, *(row for each in rows.values() for row in each)])
    for name, each in rows.items():
        title = heads[name] if heads[name] == name else f"{name}: {heads[name]}"
        lines += ["", _short(title, WIDTH), _line(_HEADS, widths), *(_line(row, widths) for row in each)]
    for found in findings_of_contrasts(plan, runs, MOST_CONTRASTS, "on the page"):
        items = [*found.items, found.more] if found.more else found.items
        lines += ["", *textwrap.wrap(f"{found.heading}{':' if items else '.'}", WIDTH)]
        for item in items:
            lines += textwrap.wrap(item, WIDTH, initial_indent="- ", subsequent_indent="  ")
    ended = sum(len(cell.errors) for cell in there)
    lines += ["", f"{ended} of {len(plan.runs)} runs have a result. All results, and how to read them:"]
    page = page or Path("results") / plan.study.name / "report.html"
    command = command or f"capsbench report {plan.path}"
    lines.append(str(page) if page.exists() else f"no page yet; '{command}' writes {page}")
    return "\n".join(lines[1:]) + "\n"


def _texts(cell: Cell) -> tuple[str, ...]:
    low, high = cell.summary.error_interval
    interval = "" if math.isnan(low) else f" {interval_text(low, high)}"
    verdict = MISSING if cell.verdict.word == "no published value" else str(cell.verdict)
    return cell.label, error_text(cell) + interval, verdict, count_text(cell).replace(" at chance", "")


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the widths of the columns; labels are cut down until all fit, numbers never are."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for n, least in ((0, _SHORTEST), (2, len("undecided: 1000 seeds")), (3, len("10 of 10"))):
        over = sum(widths) + 2 * (len(widths) - 1) - WIDTH
        widths[n] = max(min(widths[n], least), widths[n] - max(0, over))
    return widths


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(_short(text, width).ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
