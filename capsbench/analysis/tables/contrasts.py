"""The table of contrasts: variants of a study compared at equal seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from capsbench.analysis.contrasts import (
    POST_HOC,
    compare,
    contrasts_of_begun,
    digits_for,
    family_title,
    interval_of_difference,
    not_in_intervals,
    number,
    p_value,
    titles_of,
)
from capsbench.analysis.outcomes import CHANCE, SAME, outcome_of
from capsbench.analysis.tables.model import Grid, Row, Table, file_names
from capsbench.analysis.tables.text import MISSING, precision_lines, probability_text
from capsbench.study import Contrast, Plan

NAME = "contrasts"
_MOST_NAMES = 2  # in a note; more are counted
SHOWS = "what it shows"
_IS = {SAME: "the same", "undecided": MISSING, CHANCE: "at chance"}
_COLUMNS = (
    "contrast",
    "errors",
    "difference, 95 % interval",
    "first is",
    "P(better)",
    "p (Holm)",
    "p (same)",
    "n",
    SHOWS,
)


def contrasts_table(plan: Plan, runs: pd.DataFrame) -> Table:
    """Return a row per contrast of a study, a grid per family.

    Args:
        plan: a study with contrasts.
        runs: from `collect` or `read_runs`.
    """
    contrasts = contrasts_of_begun(plan, runs)
    table = compare(contrasts, runs)
    return Table(
        NAME, "Differences in test error at equal seeds (points), negative where the first is better",
        contrasts_caption(plan), contrast_grids(plan, contrasts, table), tuple(contrasts_notes(plan, table)),
        _numbers(table),
        left_out=(SHOWS,) if table["dropped"].any() or table["at_chance"].any() else ("n", SHOWS),
    )  # fmt: skip


def contrast_grids(plan: Plan, contrasts: Sequence[Contrast], table: pd.DataFrame) -> tuple[Grid, ...]:
    """Return a grid per family of contrasts, from the rows of `compare`; names tell the data where these vary."""
    titles = titles_of(plan) if table["experiment"].nunique() > 1 else {}
    return tuple(
        Grid(
            family_title(plan, family), _COLUMNS,
            tuple(_row(row, titles.get(row.experiment, "")) for row in table[table["family"] == family].itertuples()),
        )
        for family in dict.fromkeys(contrast.family for contrast in contrasts)
    )  # fmt: skip


def _row(row: Any, title: str) -> Row:
    numbers = f"{_mean(row)} {_interval(row)}" if not math.isnan(row.low) else _mean(row)
    name = (f"{title}: " if title else "") + row.contrast + (f" ({POST_HOC})" if row.post_hoc else "")
    word = outcome_of(row)
    count = f"{row.n} of {row.planned}" + (f", {row.at_chance} at chance" if row.at_chance else "")
    errors = f"{row.error_a:.2f} − {row.error_b:.2f}" if row.n else MISSING
    return Row(
        (
            name,
            errors,
            numbers,
            _IS.get(word, word),
            probability_text(row.p_better),
            _p(row.p_holm),
            _p(row.p_same),
            count,
            row.shows,
        )
    )


def contrasts_caption(plan: Plan) -> str:
    """Say what the table shows and how to read it, in one paragraph."""
    return (
        f"Study '{plan.study.name}'. Differences in test error at equal seeds, the first variant minus the second, "
        "in points of %: negative where the first is better, beside the mean errors of both in %. Mean over the "
        "seeds and the 95 % t interval of that mean. First is: what its error was shown to be, higher, lower or "
        "the same, or why nothing is shown. P(better): the probability, by the t distribution, that in a fresh "
        "pair of runs the error of the first is below that of the second. p: paired t test, two-sided; p (Holm): "
        "adjusted for the contrasts of the family that have a p, so that a family of one is not corrected, and no "
        "family for the others. p (same): of two one-sided paired t tests that the first's error lies within a "
        "tenth of the second's, adjusted likewise. A contrast with a run at chance shows neither. n, left out in "
        "print where none is missing: seeds with a result of both variants, out of the planned seeds. Intervals "
        f"are not adjusted, and they are about seeds: {not_in_intervals(plan)}."
    )


def contrasts_notes(plan: Plan, table: pd.DataFrame) -> list[str]:
    """Return the notes below the table: seeds that were dropped, data that are not the papers', unofficial files."""
    families = set(table["family"])
    planned = dict.fromkeys(contrast.experiment for contrast in plan.contrasts if contrast.family in families)
    later = [titles_of(plan)[name] for name in planned if name not in set(table["experiment"])]
    below = [f"No run was made yet of {', '.join(later)}."] if later else []
    if table["post_hoc"].any():
        below.append(
            "Post hoc: the contrast was declared when the errors of both variants were known. No correction accounts "
            "for such a choice."
        )
    if table["dropped"].any():
        below.append("Seeds that were left out: " + ". ".join(_dropped(table, titles_of(plan))) + ".")
        if table["dropped"].str.contains("diverged").any():
            below.append(
                "A run that diverges is a result of its variant: where such seeds were left out, the difference is "
                "about the seeds in which neither did."
            )
    titles = titles_of(plan)
    stuck = table[table["at_chance"] > 0]
    if len(stuck):
        said = dict.fromkeys(f"{titles[row.experiment]}: {row.stuck}" for row in stuck.itertuples())
        below.append(
            f"{'. '.join(said)}. A difference over such seeds says how often training fails, and nothing of networks "
            "that learn: it does not count as shown."
        )
    precisions = {run.variant: run.training.precision for run in plan.runs}
    below += precision_lines({name: precisions[name] for name in [*table["a"], *table["b"]]})
    for experiment in dict.fromkeys(table["experiment"]):
        title = titles[experiment]
        data = plan.data[experiment].facts
        if data.paper != data.name:
            prefix = "" if title == data.title else f"{title}: "
            below.append(f"{prefix}{data.title} in the place of {data.paper}; what it shows need not hold there.")
        lines = [line for lines in table.loc[table["experiment"] == experiment, "unofficial"] for line in _split(lines)]
        if lines:
            below.append(f"{title}: not the official files (runs.csv has their checksums): {file_names(lines)}.")
    return below


def _dropped(table: pd.DataFrame, titles: Mapping[str, str]) -> list[str]:
    """Say which contrasts lack seeds and why; those that lack them for the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for row in table.itertuples():
        if row.dropped:
            by_reason.setdefault(str(row.dropped), []).append(f"{row.contrast} ({titles[row.experiment]})")
    return [
        f"{', '.join(names) if len(names) <= _MOST_NAMES else f'{len(names)} contrasts'}: {reason}"
        for reason, names in by_reason.items()
    ]


def _split(lines: str) -> list[str]:
    return lines.split("; ") if lines else []


def _numbers(table: pd.DataFrame) -> pd.DataFrame:
    """Write the differences of the seeds as text, "0: -0.37; 1: -0.35"; numbers in a csv have hyphens."""
    by_seed = ["; ".join(f"{seed}: {d:.10g}" for seed, d in found.items()) for found in table["differences"]]
    return table.assign(differences=by_seed, shows=table["shows"].str.replace("−", "-"))


def _mean(row: Any) -> str:
    if row.n == 0:
        return MISSING
    if math.isnan(row.low):
        return "identical" if row.shows.startswith("identical") else number(row.mean, digits_for(row.mean))
    return number(row.mean, digits_for(row.low, row.high))


def _interval(row: Any) -> str:
    if math.isnan(row.low):
        return MISSING
    return interval_of_difference(row.low, row.high)


def _p(value: float) -> str:
    return MISSING if math.isnan(value) else p_value(value)
