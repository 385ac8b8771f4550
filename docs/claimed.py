"""What the papers claim beside what a study's runs show, as few words as it takes. Used by docs/generate.py."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from findings import TITLES, table

from capsbench.analysis.contrasts import digits_for, interval_of_difference, number
from capsbench.analysis.statistics import FEWEST
from capsbench.study import catalogue

REAL = tuple(TITLES)  # experiments on the papers' own data, or images generated from them
BRIEFLY = (
    "Points of test error, the first network minus the second: mean over {seeds} seeds paired, with the 95 % t "
    "interval. A difference holds after Holm's correction for all tests of a difference; "
    '"about the same" means that the 90 % interval, which is narrower, lies within the margin.'
)
_DECIDED = ("as claimed", "the opposite")
BOTH = "Verdicts that differ by data set and margin"
BELOW = """
Paper: error of the first network minus that of the second; "the same" where it says that they do not differ. Ours:
the same at equal seeds, in points of test error (of error under attack for claims about attacks), mean over
{seeds} seeds with the 95 % t interval; where pairs of digits or attacked images are drawn, the error of that draw is
in it too. "As claimed" and "the opposite" are said where the interval lies on one side of zero, after Holm's
correction for all claims of the table too; of "the same" where the 90 % interval lies within, or beyond, the
margin. "Undecided": neither could be shown. Networks and trainings are not the papers' (the
[full table]({full}) has what differs), so
that this is no verdict on the papers.
"""


def claimed(reference: Path, study: str, form: str = "") -> str:
    """Return a row per claim: the paper's difference, ours on stand-ins, and ours on the papers' own data.

    form: `brief` lists those that came out as claimed or the opposite, and counts the others.
    """
    found = pd.read_csv(reference / study / "tables" / "claims.csv", keep_default_na=False, na_values=[""])
    if form == "brief":
        return "\n\n".join([_counted(found), *_bullets(found), BRIEFLY.format(seeds=seeds_text(found["n"]))])
    rows = [["claim", "paper", "on stand-ins", "on MNIST and what is made of it"]]
    for _, here in found.groupby("claim", sort=False):
        first = here.iloc[0]
        sides = [here[here["experiment"].isin(REAL) == real] for real in (False, True)]
        rows.append([
            f"{first['wording'].rstrip('.')} ({first['paper']})", _published(first),
            *("<br>".join(_shown(row) for row in side.to_dict("records")) for side in sides),
        ])  # fmt: skip
    full = f"../../results/reference/{study}/tables/claims.md"
    return f"{_counted(found)}\n\n{table(rows)}\n{BELOW.format(seeds=seeds_text(found['n']), full=full)}".rstrip()


def seeds_text(counts: Iterable[float]) -> str:
    """Say how many seeds rows have: "5", "4 or 5", "3 to 5"; rows without any do not count."""
    found = sorted({int(count) for count in counts} - {0})
    return f"{found[0]} to {found[-1]}" if len(found) > 2 else " or ".join(map(str, found))


def _counted(found: pd.DataFrame) -> str:
    """Say how many claims came out which way."""
    tested = found[found["here"].notna()]
    counts = tested["here"].value_counts().to_dict()
    said = [f"{counts[word]} {word}" for word in ("as claimed", "the opposite", "undecided") if word in counts]
    return f"**{len(tested)} tests of {tested['claim'].nunique()} claims: {listed(said)}.**"


def _bullets(found: pd.DataFrame) -> Iterator[str]:
    """List the claims that came out as claimed, those that came out the opposite, and those that did both."""
    listed_below: dict[str, list[str]] = {"As claimed": [], "The opposite": [], BOTH: []}
    for wording, here in found[found["here"].isin(_DECIDED)].groupby("wording", sort=False):
        outcomes = set(here["here"])
        title = BOTH if len(outcomes) > 1 else outcomes.pop().capitalize()
        tests = "; ".join(_where(row, with_outcome=title == BOTH) for row in here.to_dict("records"))
        listed_below[title].append(f"- {str(wording).rstrip('.')} ({here.iloc[0]['paper']}): {tests}.")
    return (f"{title}:\n\n" + "\n".join(claims) for title, claims in listed_below.items() if claims)


def _where(row: Any, with_outcome: bool) -> str:
    """Name difference and data of a test: "−1.50 [−2.00, −1.00] on MNIST"; what came out of it if it is asked for."""
    title = catalogue()[row["experiment"]].title if row["experiment"] in catalogue() else row["experiment"]
    said = f"{_shown(row).split(': ')[1]} on {TITLES.get(row['experiment'], title)}"
    return f"{row['here']} with {said}" if with_outcome else said


def listed(parts: Sequence[str]) -> str:
    """Return "a, b and c"."""
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)


def _published(row: Any) -> str:
    if row["expected"] == "same":
        return "the same"
    if pd.isna(row["published_difference"]):
        return "lower"
    unit = " %" if row["unit"] == "percent" else ""
    return f"{number(row['published_difference'], None)}{unit}"


def _shown(row: Any) -> str:
    if not isinstance(row["here"], str) or not row["n"]:
        return "not run"
    word = f"**{row['here']}**" if row["here"] != "undecided" else "undecided"
    why = row["why"] if isinstance(row["why"], str) else ""
    if "Holm" in why:
        word += " after Holm's correction"
    short = "" if row["n"] == row["planned"] else f", {row['n']:.0f} of {row['planned']:.0f} seeds"
    if row["mean"] == 0 and pd.isna(row["low"]) and row["n"] >= FEWEST:
        return f"{word}: equal in every seed{short}"
    if pd.isna(row["low"]) or (why and "Holm" not in why):
        return f"{word}: {why or 'fewer than three seeds'}{short}"
    mean = number(row["mean"], digits_for(row["low"], row["high"]))
    margin = f", margin {row['margin']:.2g}" if row["expected"] == "same" and not pd.isna(row["margin"]) else ""
    return f"{word}: {mean} {interval_of_difference(row['low'], row['high'])}{margin}{short}"
