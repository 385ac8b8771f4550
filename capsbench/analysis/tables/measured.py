"""The table of a protocol beyond the error: its numbers for each network, beside the test error."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from capsbench.analysis.cells import Cell
from capsbench.analysis.measures import Measures
from capsbench.analysis.statistics import summarise
from capsbench.analysis.table_names import MEASURED
from capsbench.analysis.tables.model import Grid, Row, Table, grid
from capsbench.analysis.tables.overview import headings
from capsbench.analysis.tables.source import Source
from capsbench.analysis.tables.text import MISSING, error_text
from capsbench.registry import PROTOCOLS


def measured_table(table: str, source: Source) -> Table:
    """Return a row per network of each experiment in which a protocol found something.

    Args:
        table: its name.
        source: the study, its runs and what the protocols found.
    """
    name = table.removeprefix(MEASURED)
    protocol, measures = PROTOCOLS[name], source.measures
    shows: Mapping[str, str] = protocol.facts["shows"]
    heads = headings(source)
    grids, rows_of_csv, reasons, said = [], [], dict[str, list[str]](), dict[str, list[str]]()
    for experiment in source.plan.study.experiments:
        rows = []
        for cell in (cell for cell in source.cells if cell.experiment == experiment):
            found = [measures[key][name] for key in cell.keys if name in measures.get(key, {})]
            ended = [result for result in found if result["status"] == "ok"]
            for reason in dict.fromkeys(r.get("reason", "") for r in found if r["status"] != "ok"):
                reasons.setdefault(reason, []).append(f"{cell.label} ({experiment})")
            for text, count in Counter(text for result in ended for text in _in_words(result)).items():
                which = "" if count == cell.planned else f", {count} of {cell.planned}"
                said.setdefault(text, []).append(f"{cell.label} ({experiment}{which})")
            rows_of_csv.append(_numbers(cell, ended, shows))
            if ended:
                rows.append(_row(cell, ended, shows))
        if rows:
            columns = ("network", "test error (%)", *shows.values(), "n")
            grids.append(grid(heads[experiment] if len(source.plan.data) > 1 else "", columns, rows))
    caption = (
        f"Study '{source.plan.study.name}', protocol '{name}'. {_first_sentence(protocol.factory.__doc__)} Mean ± "
        "standard deviation over the seeds; n: seeds with a result."
    )
    grids = grids or [Grid("", ("network",), ())]
    in_words = [f"{text[0].upper()}{text[1:]}: {', '.join(networks)}." for text, networks in said.items()]
    notes = (*_settings(name, measures), *in_words, *_reasons(reasons))
    return Table(
        table, protocol.title[0].upper() + protocol.title[1:], caption, tuple(grids), notes, pd.DataFrame(rows_of_csv)
    )


def _row(cell: Cell, found: Sequence[Mapping[str, Any]], shows: Mapping[str, str]) -> Row:
    texts = (spread_text(_values(found, key)) for key in shows)
    return Row((cell.label, error_text(cell), *texts, f"{len(found)} of {cell.planned}"), cell.keys)


def _values(found: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    values = [result.get(key) for result in found]
    return [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]


def spread_text(values: Sequence[float]) -> str:
    """Return "12.34 ± 0.41", with three decimals where all is below one; "-" for no values."""
    if not values:
        return MISSING
    found = summarise(values)
    digits = 3 if max(map(abs, values)) < 1 else 2 if max(map(abs, values)) < 1000 else 0
    texts = [f"{number:,.{digits}f}" for number in (found.mean, found.std) if not math.isnan(number)]
    return " ± ".join(text if text.strip("0.,-") else "0" for text in texts).replace("-", "−")


def _numbers(cell: Cell, found: Sequence[Mapping[str, Any]], shows: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "experiment": cell.experiment, "data": cell.data_set, "variant": cell.variant, "label": cell.label,
        "test_error": cell.summary.mean, "n": len(found), "planned": cell.planned,
    }  # fmt: skip
    for key in shows:
        summary = summarise(_values(found, key))
        row |= {key: summary.mean, f"{key}_std": summary.std}
    return row


def _in_words(result: Mapping[str, Any]) -> list[str]:
    """Return what a result says besides numbers: what a layer has become, or that the machine was busy."""
    warning = result.get("conditions", {}).get("warning", "").split(":")[0]
    return [*result.get("in_words", ()), *([warning] if warning else ())]


def _settings(name: str, measures: Measures) -> list[str]:
    """Say under which options the protocol measured, and over how many images where that is not all of them."""
    settings = dict.fromkeys(
        ", ".join(f"{key} {value}" for key, value in result["options"].items() if value is not None)
        for found in measures.values()
        if (result := found.get(name, {})).get("options")
    )
    return [f"Options: {'; or '.join(settings)}."] if settings else []


def _reasons(reasons: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"Not applicable to {', '.join(cells)}: {reason}." for reason, cells in reasons.items()]


def _first_sentence(text: str | None) -> str:
    lines = " ".join((text or "").split("\n\n")[0].split())
    return lines.split(", see `")[0].rstrip(".") + "." if lines else ""
