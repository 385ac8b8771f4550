"""Contrasts of a study, as a table and as lists of what they show. Used by docs/generate.py."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
from claimed import listed, seeds_text
from findings import named, table

from capsbench.analysis import contrasts as contrasts_of_runs
from capsbench.analysis.contrasts import MARK_POST_HOC, digits_for, interval_of_difference, not_in_intervals, number
from capsbench.analysis.statistics import FEWEST
from capsbench.analysis.tables.text import with_minus_signs
from capsbench.study import catalogue, load_plan

SAME_NOTE = (
    " ≈: the same error, within a tenth of the second's: two one-sided t tests are below 0.05, also after Holm's "
    "correction."
)
POST_HOC_NOTE = f" {MARK_POST_HOC}: post hoc, declared when the errors of both were known."


def contrasts(reference: Path, study: str, *families: str) -> str:
    """Return the committed contrasts of a study, of all families or some: a row each, a column per experiment."""
    return f"{contrast_rows(reference, study, *families)}\n\n{contrasts_note(reference, study, *families)}"


def contrast_rows(reference: Path, study: str, *families: str) -> str:
    """Return the table of `contrasts`, with remarks on single rows below it."""
    shown = chosen(reference, study, families)
    columns = _titles(shown)
    rows = [["error of the first minus that of the second", *columns.values()]]
    for contrast, cells in shown.groupby("contrast", sort=False):
        row = [str(contrast)]
        for data_set in columns:
            here = cells[cells["data_set"] == data_set]
            row.append("" if here.empty else difference(here.iloc[0]))
        rows.append(row)
    words = shown.reindex(columns=["contrast", "data_set", "dropped", "stuck"]).astype(object).fillna("")
    where = {name: f" ({title})" if len(columns) > 1 else "" for name, title in columns.items()}
    left_out = [f"{row.contrast}{where[row.data_set]}: {row.dropped}" for row in words.itertuples() if row.dropped]
    remarks = dict.fromkeys(
        [*left_out, *(each for several in words["stuck"] if several for each in several.split("; "))]
    )
    below = " ".join(f"{remark[0].upper()}{remark[1:]}." for remark in remarks)
    return f"{table(rows)}\n\n{below}".strip()


def contrasts_note(reference: Path, study: str, *families: str) -> str:
    """Say how the rows of `contrast_rows` are to be read."""
    shown = chosen(reference, study, families)
    plan = load_plan(reference / study / "study.yaml")
    return (
        f"Points of test error, negative where the first is better: mean over {seeds_text(shown['n'])} seeds paired, "
        f"with 95 % t intervals, which are about seeds: {not_in_intervals(plan, set(shown['experiment']))}. Bold: zero "
        "lies outside the interval, also after Holm's correction within the contrast's family, and no side stayed at "
        "chance."
        f"{SAME_NOTE if any(map(is_same, shown.to_dict('records'))) else ''}"
        f"{POST_HOC_NOTE if any(map(is_post_hoc, shown.to_dict('records'))) else ''}"
    )


def chosen(reference: Path, study: str, families: tuple[str, ...]) -> pd.DataFrame:
    """Return the contrasts of some families, of all where none is named. Raises ValueError for an unknown one."""
    found = read_contrasts(reference, study)
    if missing := set(families) - set(found["family"]):
        raise ValueError(f"no family of contrasts {sorted(missing)[0]}")
    return found[found["family"].isin(families or found["family"])]


def difference(row: Any) -> str:
    """Put a row of `read_contrasts` as a cell: mean and interval, bold for a difference, ≈ for the same error."""
    mark = MARK_POST_HOC if is_post_hoc(row) else ""
    if row["low"] != row["low"]:
        return with_minus_signs(str(row["shows"])) + mark
    mean = number(row["mean"], digits_for(row["low"], row["high"]))
    text = f"{mean} {interval_of_difference(row['low'], row['high'])}"
    if is_shown(row):
        return f"**{text}**{mark}"
    if is_same(row):
        return f"≈ {text}{mark}"
    return f"{text}{mark}, {int(row['at_chance'])} at chance" if row["at_chance"] else text + mark


def is_shown(row: Any) -> bool:
    """Tell whether a row of `read_contrasts` shows a difference, see `capsbench.analysis.contrasts.is_shown`."""
    return contrasts_of_runs.is_shown(SimpleNamespace(**row))


def is_same(row: Any) -> bool:
    """Tell whether a row of `read_contrasts` shows that both are the same, see `capsbench.analysis.contrasts.is_same`.

    A row that was not tested for it is not.
    """
    return contrasts_of_runs.is_same(SimpleNamespace(**{"p_same": math.nan, **row}))


def is_post_hoc(row: Any) -> bool:
    """Tell whether a row was declared when the errors of both were known; a row that was not declared is not."""
    return bool(row.get("post_hoc") == 1)  # nan where rows were never declared


def is_uncorrected(row: Any) -> bool:
    """Tell whether zero lies outside the interval, but not after Holm's correction; and no side stayed at chance."""
    outside = contrasts_of_runs.excludes_zero(SimpleNamespace(**row))
    return outside and not row["at_chance"] and not is_shown(row)


def effects(reference: Path, study: str) -> str:
    """Say which options of a study of ablations had an effect, which made no difference, and which are open."""
    found = read_contrasts(reference, study)
    tested = found[found["n"] >= FEWEST]
    titles = _titles(tested)
    shown, same, others = [], [], []
    for contrast, cells in tested.groupby("contrast", sort=False):
        rows = cells.to_dict("records")
        clear = [row for row in rows if is_shown(row)]
        equal = [titles[row["data_set"]] for row in rows if is_same(row)]
        open_ = [titles[row["data_set"]] for row in rows if not (is_shown(row) or is_same(row))]
        rest = "; ".join(
            f"{said} on {listed(names)}" for said, names in (("the same", equal), ("undecided", open_)) if names
        )
        if clear:
            where = ", ".join(f"{difference(row).replace('**', '')} on {titles[row['data_set']]}" for row in clear)
            shown.append((_direction(clear), f"- {contrast}: {where}{f'; {rest}' if rest else ''}"))
        elif equal:
            same.append(f"{contrast}: {rest}")
        else:
            others.append(str(contrast))
    count = (
        f"{tested['contrast'].nunique()} options, {seeds_text(tested['n'])} seeds on {listed(list(titles.values()))}."
    )
    lists = [*_list("The same error, within a tenth", same), *_list("No effect that these seeds could show", others)]
    return "\n\n".join([f"**{count}**", *_lists(shown), *lists])


def _lists(shown: list[tuple[str, str]]) -> Iterator[str]:
    for direction in ("A higher error", "A lower error", "Higher on one, lower on another"):
        if lines := [line for said, line in shown if said == direction]:
            yield f"{direction}:\n\n" + "\n".join(lines)


def _list(title: str, names: list[str]) -> list[str]:
    return [f"{title}:\n\n" + "\n".join(f"- {name}" for name in names)] if names else []


def _direction(rows: list[Any]) -> str:
    if all(row["mean"] > 0 for row in rows):
        return "A higher error"
    return "A lower error" if all(row["mean"] < 0 for row in rows) else "Higher on one, lower on another"


def read_contrasts(reference: Path, study: str) -> pd.DataFrame:
    """Read the committed contrasts of a study, with what they have shown."""
    return pd.read_csv(reference / study / "tables" / "contrasts.csv", keep_default_na=False, na_values=[""])


def _titles(found: pd.DataFrame) -> dict[str, str]:
    """Return the titles of the data sets, with what files are not the official ones."""
    files = {row.data_set: row.unofficial if isinstance(row.unofficial, str) else "" for row in found.itertuples()}
    return {name: named(catalogue()[name].title, said) for name, said in files.items()}
