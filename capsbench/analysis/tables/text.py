"""The text of a table: numbers as people read them, and the notes below."""

import itertools
import math
import string
from typing import Any

import numpy as np
import pandas as pd

from capsbench.analysis.tables.methods import MISSING
from capsbench.analysis.tables.paper import NOT_COMPARABLE

_FAMILIAR, _PER_DIGIT, _OURS = "familiar (error %)", "per-digit (error %)", "ours (error %)"


def for_people(table: pd.DataFrame) -> pd.DataFrame:
    """Turn numbers into text: mean ± std, [low, high], n of N; a cell that has not run is "-".

    The reason why a row is not comparable goes into a note below the table: see `notes`.
    """
    marks = {why: f"not comparable ({letter})" for why, letter in _reasons(table).items()}
    daggers = _footnotes(table)
    rows = list(table.itertuples())
    text = pd.DataFrame(
        {
            "data": [r.data + daggers.get(r.unofficial, "") for r in rows],
            "experiment": table["experiment"].replace("", MISSING),
            "method": table["method"],
            "variant": [r.label if r.planned else MISSING for r in rows],
            "routing": table["routing"],
            "reconstruction": table["reconstruction"],
            _FAMILIAR: [_plus_minus(r.familiar_mean, r.familiar_std) for r in rows],
            "published familiar": [_number(r.published_familiar, "g") for r in rows],
            _OURS: [_mean_std(r) for r in rows],
            "95 % interval": [_interval(r) for r in rows],
            "n": [_count(r) for r in rows],
            "published": table["published"].fillna(MISSING),
            "difference": [_number(v, "+.2f") for v in table["difference"]],
            "verdict": [marks.get(_why(v), v) for v in table["verdict"]],
            _PER_DIGIT: [_plus_minus(r.per_digit_mean, r.per_digit_std) for r in rows],
            "parameters": [_number(v, ",.0f") for v in table["parameters"]],
            "time per run": [_duration(v) for v in table["seconds"]],
        }
    )
    return _columns_that_say_something(text, (table["planned"] > 0).to_numpy())


def _columns_that_say_something(text: pd.DataFrame, ours: "np.ndarray[Any, np.dtype[np.bool_]]") -> pd.DataFrame:
    """Drop columns without any value, and the names of experiment and variant where other columns tell rows apart.

    ours: whether a row is one of ours.
    """
    if (text[ours].groupby("data")["experiment"].nunique() == 1).all():
        text = text.drop(columns="experiment")
    told_apart = ["data", "experiment", "method", "routing", "reconstruction"]
    if not text[ours].duplicated([c for c in told_apart if c in text]).any():
        text = text.drop(columns="variant")
    text = text.drop(columns=[c for c in (_FAMILIAR, "published familiar", _PER_DIGIT) if set(text[c]) <= {MISSING}])
    if _PER_DIGIT in text:  # so that the two scores cannot be confused
        text = text.rename(columns={_OURS: "ours (error %; of pairs: pair-exact)"})
    if _FAMILIAR in text or "published familiar" in text:
        text = text.rename(columns={_OURS: "ours (test, error %)"})
    return text


def notes(table: pd.DataFrame) -> list[str]:
    """Return the notes below the table.

    Why rows are not comparable, unofficial files, runs stuck at chance, familiar errors that were matched, and the
    papers' caveats.
    """
    below = [f"({letter}) {why}." for why, letter in _reasons(table).items()]
    for lines, mark in _footnotes(table).items():
        files = ", ".join(line.split(": md5 ")[0] for line in lines.split("; "))
        below.append(f"{mark} not the official files (runs.csv has their checksums): {files}.")
    below += [_stuck_note(row) for row in table.itertuples() if row.stuck]
    below += [_matching_note(row) for row in table.itertuples() if row.matched_to]
    caveats = dict.fromkeys(
        f"{row.published}{'' if row.planned else f' ({row.label})'}: {row.caveat}"
        for row in table.itertuples()
        if row.caveat
    )
    if caveats:
        below.append("Remarks on published values: " + ". ".join(caveats) + ".")
    return below


def _stuck_note(row: Any) -> str:
    runs = "run" if row.stuck == 1 else "runs"
    text = f"Stuck at chance: {row.stuck} {runs} of {_name(row)}, whose training error never left that of guessing."
    others = "; for the others see runs.csv" if row.stuck > 1 else ""
    return f"{text} The routing to the classes there, {row.diagnostics}{others}." if row.diagnostics else text


def _matching_note(row: Any) -> str:
    """Say what a row was matched to, and how well."""
    text = f"Matched: {_name(row)} was to stop at the familiar error of {row.matched_to} of the same seed"
    if math.isnan(row.overshoot):
        return f"{text}; no result yet."
    size = f"{abs(row.overshoot):.2f} points"
    text += f"; overshoot {size} on average" if row.overshoot >= 0 else f"; it ended {size} above it on average"
    return f"{text}; {row.unmatched}." if row.unmatched else f"{text}."


def _name(row: Any) -> str:
    return f"{row.label} ({row.experiment})"


def _why(verdict: str) -> str:
    return verdict.removeprefix(NOT_COMPARABLE) if verdict.startswith(NOT_COMPARABLE) else ""


def _reasons(table: pd.DataFrame) -> dict[str, str]:
    """Return the reasons why rows are not comparable and the letter of each, in the order of the rows."""
    found = dict.fromkeys(why for why in map(_why, table["verdict"]) if why)
    letters = (a + b for a in ("", *string.ascii_lowercase) for b in string.ascii_lowercase)  # a .. z, aa, ab ..
    return dict(zip(found, letters, strict=False))


def _footnotes(table: pd.DataFrame) -> dict[str, str]:
    """Return the lines about unofficial files and the mark of the rows that rest on them."""
    found = dict.fromkeys(lines for lines in table["unofficial"] if lines)
    return dict(zip(found, (mark * n for n in itertools.count(1) for mark in "†‡"), strict=False))


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
    if not row.planned:
        return MISSING
    text = f"{row.n} of {row.planned}"
    for kind in ("diverged", "failed"):
        if number := getattr(row, kind):
            text += f", {number} {kind}"
    return text + (f", {row.stuck} stuck at chance" if row.stuck else "")


def _number(value: float, form: str) -> str:
    return MISSING if math.isnan(value) else format(value, form)


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
