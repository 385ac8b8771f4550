"""What a study shows, in a few sentences that are no stronger than their intervals.

Everything is said from numbers: contrasts by their intervals and Holm's correction, claims and published values by
their verdicts. The order is that of the study, which asks its largest question first, and not that of the results.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.claims import ClaimResult, Here, claims_of
from capsbench.analysis.contrasts import (
    POST_HOC,
    compare,
    contrasts_of_begun,
    count_in_words,
    digits_for,
    excludes_zero,
    family_title,
    interval_of_difference,
    is_same,
    is_shown,
    margin_text,
    not_in_intervals,
    number,
    p_value,
    titles_of,
)
from capsbench.analysis.correct_bits import Correct
from capsbench.analysis.measures import Measures
from capsbench.analysis.outcomes import (
    OUTCOMES,
    OutcomeGrid,
    asked_rows,
    at_chance,
    family_grid,
    is_open,
    kept,
    outcomes,
    question_grid,
    too_few,
)
from capsbench.analysis.statistics import FEWEST
from capsbench.analysis.table_names import table_names
from capsbench.analysis.verdicts import DECIDED
from capsbench.study import Plan

MOST_DATA = 4  # data sets that the scope names
MOST_ITEMS = 3  # that a sentence lists; the tables have the others
ONE_BY_ONE = 15  # contrasts; with more, each family is told in a line
MOST_FAMILIES = 20
MOST_OPEN = 20  # contrasts that the page shows at once; the families after them are opened by a click
_DIRECTION = {"supported": "supported in its direction", "contradicted": "contradicted in its direction"}


@dataclass(frozen=True)
class Finding:
    """One sentence. heading: what its items have in common. more: what is not listed, empty where all is.

    short: the items are a few words each, and need no line of their own. grid: what the page shows in place of the
    items. all_items: what the page lists where there are more than `items`. behind: for each, what the page shows when
    it is clicked, of the first `unfolded` at once; text output leaves that out.
    """

    heading: str
    items: tuple[str, ...] = ()
    more: str = ""
    short: bool = False
    grid: OutcomeGrid | None = None
    all_items: tuple[str, ...] = ()
    behind: tuple[OutcomeGrid, ...] = ()
    unfolded: int = 0

    def __str__(self) -> str:
        """Return the sentence."""
        parts = [*self.items, self.more] if self.more else self.items
        return f"{self.heading}{': ' if parts else ''}{'; '.join(parts)}."


def conclusion(
    plan: Plan, runs: pd.DataFrame, measures: Measures | None = None, correct: Correct | None = None
) -> list[str]:
    """Return what was shown, what was not, and what cannot be compared with the papers, a sentence each.

    Args:
        plan: the study.
        runs: from `collect` or `read_runs`.
        measures: what protocols found; claims about attacks rest on them.
        correct: which test items the runs got right; claims about drawn pairs of digits rest on it, see `check_claims`.
    """
    return [str(found) for found in findings(plan, runs, measures, correct)]


def findings(
    plan: Plan, runs: pd.DataFrame, measures: Measures | None = None, correct: Correct | None = None
) -> list[Finding]:
    """Return the sentences of `conclusion` in parts; those about contrasts are left out where there are none.

    Claims are named where the study has their table: a study of what surprises may leave it out. They come first in a
    study that tests more of them than it has contrasts.
    """
    there = cells(plan, runs)
    claims = claims_of(plan, runs, there, measures or {}, correct) if "claims" in table_names(plan) else []
    of_claims, of_values = list(_of_claims(claims, titles_of(plan))), _of_values(there, titles_of(plan))
    of_contrasts = list(findings_of_contrasts(plan, runs))
    tested = sum(claim.verdict != "not tested" for claim in claims)
    own = [*of_claims, *of_contrasts] if tested > len(plan.contrasts) else [*of_contrasts, *of_claims]
    return [*own, *of_values]


def findings_of_contrasts(
    plan: Plan, runs: pd.DataFrame, most: int = MOST_ITEMS, where: str = "below"
) -> Iterable[Finding]:
    """Give the sentences about contrasts; each lists so many of them, and says where the others are."""
    titles = titles_of(plan)
    table = compare(contrasts_of_begun(plan, runs), runs)
    rows = list(table.itertuples())
    if not rows:
        return
    few = [row for row in rows if row.n < FEWEST]
    if len(few) == len(rows):
        yield Finding(f"Nothing can be said yet: {_of(0, rows)} have results of {FEWEST} seeds on both sides")
        return
    if plan.study.questions:
        yield _questions(plan, rows)
    if plan.study.questions or len(rows) > ONE_BY_ONE:
        yield from _by_family(plan, rows, where)
        return
    shown, same, stuck, rest = (kept(rows, outcome) for outcome in (is_shown, is_same, at_chance, is_open))
    names = {row.Index: _name(row, titles, table) for row in rows}
    if shown:
        heading = f"A difference in test error was shown in {_of(len(shown), rows)}, {_correction(rows)}"
        yield _listed(heading, [f"{names[row.Index]}: {row.shows}" for row in shown], most=most, where=where)
    if same:
        heading = f"The two were shown to have the same test error, within a tenth, in {_of(len(same), rows)}"
        yield _listed(heading, [f"{names[row.Index]}: {row.shows}" for row in same], most=most, where=where)
    if stuck:
        heading = f"In {_of(len(stuck), rows)} a variant stayed at chance in some seeds"
        heading += ", so that the difference says nothing of networks that learn"
        yield _listed(heading, [f"{names[row.Index]}: {_stuck(row)}" for row in stuck], most=most, where=where)
    if rest:
        neither = "Neither a difference nor the same error" if same else "No difference"
        heading = f"{neither} was shown in {_of(len(rest), rows)} (error of the first minus that of the second)"
        yield _listed(heading, [f"{names[row.Index]}: {_not_shown(row)}" for row in rest], most=most, where=where)
    if few:
        heading = f"Nothing can be said yet of {_of(len(few), rows)}: fewer than {FEWEST} seeds have both results"
        yield Finding(heading)


def _questions(plan: Plan, rows: Sequence[Any]) -> Finding:
    """Tell the contrasts that the study asks about first, below their questions."""
    grid = question_grid(asked_rows(plan, rows), titles_of(plan))
    texts = {part[0]: "; ".join(replace(grid, parts=(part,)).texts()) for part in grid.parts}
    items = (f"{question}{'' if question.endswith('?') else ':'} {text}" for question, text in texts.items())
    heading = "Test error of the first minus that of the second, mean in points, negative where the first is better"
    return Finding(heading, tuple(items), "; ".join(grid.meanings()), grid=grid)


def _by_family(plan: Plan, rows: Sequence[Any], where: str) -> Iterable[Finding]:
    """Tell many contrasts: how many came out in which way, and the same in a line for each family.

    A study with questions has told those that it asks about; text output then leaves the families out.
    """
    counts = {name: len(kept(rows, outcome)) for name, outcome in OUTCOMES.items()}
    differ = counts["higher"] + counts["lower"]
    in_all = " in all" if plan.study.questions else ""
    parts = [f"{len(rows)} contrasts{in_all}: a difference in test error was shown in {differ or 'none'}"]
    parts += [f"{_IN_ALL.get(name, name)} in {counts[name]}" for name in list(OUTCOMES)[2:] if counts[name]]
    heading = ", ".join([*parts, *too_few(rows)])
    if not plan.study.questions:
        heading += "; by family (higher: the first errs more; means in points)"
    titles = titles_of(plan)
    families = {name: [row for row in rows if row.family == name] for name in dict.fromkeys(row.family for row in rows)}
    lines = [f"{family_title(plan, name)}{post_hoc_share(own)}: {outcomes(own)}" for name, own in families.items()]
    found = _listed(heading, lines, "families", MOST_FAMILIES, where)
    if plan.study.questions:
        found = Finding(heading, more=f"{len(families)} families {where}")
    grids = tuple(family_grid(own, titles) for own in families.values())
    shown = itertools.accumulate(len(grid.lines) for grid in grids)
    unfolded = 0 if plan.study.questions else max(1, sum(count <= MOST_OPEN for count in shown))
    yield replace(found, all_items=tuple(lines), behind=grids, unfolded=unfolded)
    corrected = _correction(rows)
    if zero := sum(excludes_zero(row) for row in kept(rows, is_open)):
        corrected += f", which leaves {zero} undecided though their interval leaves out zero"
    if late := sum(row.post_hoc for row in rows):
        corrected += f"; {late} {'is' if late == 1 else 'are'} {POST_HOC}: declared when the errors of both were known"
    yield Finding(f"The contrasts are {corrected}")


def post_hoc_share(rows: Sequence[Any]) -> str:
    """Say how many contrasts of a family are post hoc, in brackets; nothing where none is."""
    late = sum(row.post_hoc for row in rows)
    return "" if not late else f" ({POST_HOC})" if late == len(rows) else f" ({late} of {len(rows)} {POST_HOC})"


_IN_ALL = {  # what it is called beside "a difference in test error was shown"
    "the same within a tenth": "the same error within a tenth",
    "identical": "identical errors",
    "at chance in some seeds": "a network at chance in some seeds",
}


def scope(plan: Plan, runs: pd.DataFrame) -> str:
    """Say what all sentences are about: data, how much of them, the length of the trainings, seeds, and intervals."""
    titles = titles_of(plan)
    begun = set(runs.loc[runs["status"] != "missing", "experiment"]) or set(plan.data)
    parts = [f"{titles[name]} ({_trained_on(plan, runs, name)})" for name in plan.data if name in begun]
    if (rest := len(parts) - MOST_DATA) > 1:
        parts = [*parts[:MOST_DATA], f"{rest} more data sets"]
    seeds = len({run.seed for run in plan.runs})
    return (
        f"{'; '.join(parts)}; {count_in_words(seeds)} seed{'s' * (seeds != 1)}. Intervals are over seeds: "
        f"{not_in_intervals(plan)}."
    )


def _trained_on(plan: Plan, runs: pd.DataFrame, experiment: str) -> str:
    here = [run for run in plan.runs if run.experiment == experiment]
    facts = [f"{_range(run.data.trained_images for run in here)} training images"]
    pairs = [run.data.options.train_pairs for run in here if hasattr(run.data.options, "train_pairs")]
    facts += [f"{_range(pairs)} pairs per epoch"] if pairs else []
    lengths = {name: [getattr(run.training, name) or 0 for run in here] for name in ("epochs", "steps")}
    facts += [
        f"{_range(filter(None, of))} {name if max(of) > 1 else name[:-1]}" for name, of in lengths.items() if any(of)
    ]
    lines = runs.loc[runs["experiment"] == experiment, "unofficial"] if "unofficial" in runs else []
    if any(isinstance(line, str) and line for line in lines):
        facts.append("not the official files")
    return ", ".join(facts)


def _range(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def _correction(rows: Sequence[Any]) -> str:
    """Say what Holm's correction is for: the contrasts of a family, and neither all nor one that stands alone."""
    tests = {row.family: row.tests for row in rows if row.tests}
    alone = sum(count == 1 for count in tests.values())
    if alone == len(tests):
        return "not corrected, as no family has several contrasts"
    where = "each of " * (len(tests) > 1) + (f"{len(tests)} families" if len(tests) > 1 else "their family")
    of_one = f" ({alone} of one contrast {'is' if alone == 1 else 'are'} not corrected)" if alone else ""
    return f"corrected (Holm) within {where}{of_one}"


def _stuck(row: Any) -> str:
    return "; ".join(filter(None, (str(row.stuck).replace(" stayed at chance", " at chance"), row.dropped)))


def _not_shown(row: Any) -> str:
    """Give the interval, and no direction."""
    if math.isnan(row.low):
        return str(row.shows)
    digits = digits_for(row.low, row.high)
    text = f"between {number(row.low, digits)} and {number(row.high, digits)} points"
    if excludes_zero(row):
        text += f", which does not hold after Holm's correction for {row.tests} contrasts (p = {p_value(row.p_holm)})"
    return "; ".join([f"{text} ({count_in_words(row.n)} seeds, paired)", *filter(None, (row.dropped,))])


def _of_claims(claims: Sequence[ClaimResult], titles: Mapping[str, str]) -> Iterable[Finding]:
    tested = [claim for claim in claims if claim.verdict in ("supported", "contradicted", "undecided")]
    if tested:
        yield _listed("The papers' claims", [_claim(claim) for claim in tested])
    yield from _at_this_scale([claim for claim in claims if claim.verdict == "not comparable"], titles)


def _of_values(found: Sequence[Cell], titles: Mapping[str, str]) -> Iterable[Finding]:
    beside = [cell for cell in found if cell.published is not None and cell.verdict.word != "not run"]
    if not beside:
        yield Finding("No published value stands beside a result of this study")
        return
    decided = [cell for cell in beside if cell.verdict.word in DECIDED]
    undecided = [cell for cell in beside if cell.verdict.word == "undecided"]
    if decided:
        words = [
            f"{'the ' * (cell.verdict.word == 'same')}{cell.verdict}"
            + (f" ({cell.verdict.reason})" if cell.verdict.reason else "")
            for cell in decided
        ]
        lines = [f"{cell.label} ({titles[cell.experiment]}): {word}" for cell, word in zip(decided, words, strict=True)]
        yield _listed(f"Test error compared with {_values(len(decided), beside)}", lines)
    if undecided:
        lines = [f"{cell.label} ({titles[cell.experiment]}){_because(cell)}" for cell in undecided]
        yield _listed(f"Undecided against {_values(len(undecided), beside)}", lines)
    yield from _not_comparable(beside)


def _at_this_scale(apart: Sequence[ClaimResult], titles: Mapping[str, str]) -> Iterable[Finding]:
    """Say what became of the papers' claims with networks and trainings that are not the papers'."""
    if not apart:
        return
    came_out: dict[Here, str] = {
        "as claimed": "came out as claimed", "the opposite": "came out against the paper",
        "undecided": "stayed undecided",
    }  # fmt: skip
    start = "Tested at a smaller scale or on other data than the papers' own, "
    claims = len({claim.claim.id for claim in apart})
    named = "one claim" if claims == 1 else f"{claims} claims"
    what = named if claims == len(apart) else f"{len(apart)} tests of {named}"
    for here, words in came_out.items():
        found = [claim for claim in apart if claim.here == here]
        if found:
            count = "the one claim" if len(apart) == 1 else f"{len(found)} of {what}"
            lines = [] if here == "undecided" else [_claim(claim, titles) for claim in found]
            yield replace(_listed(f"{start}{count} {words}", lines), all_items=tuple(lines))
            start = ""


def _not_comparable(beside: Sequence[Cell]) -> Iterable[Finding]:
    apart = [cell for cell in beside if cell.verdict.word == "not comparable"]
    if not apart:
        return
    if len(beside) == 1:
        heading = "The one result with a published value beside it cannot be compared with it"
    elif len(apart) == len(beside):
        heading = f"None of the {len(beside)} results with a published value beside them can be compared with it"
    else:
        heading = f"{len(apart)} of {len(beside)} results with a published value beside them cannot be compared with it"
    reasons = Counter(reason for cell in apart for reason in (cell.deviations or (cell.verdict.reason,)))
    of = f" of {len(apart)}" if len(apart) > 1 else ""
    lines = [reason + (f" ({count}{of})" if of else "") for reason, count in reasons.most_common()]
    yield replace(_listed(heading, lines, "differences from the papers' protocols"), short=True)


def _claim(result: ClaimResult, titles: Mapping[str, str] | None = None) -> str:
    """Write a claim and the difference here, with its verdict, or, where titles are given, the data that it is on."""
    claim, found = result.claim, result.found
    verdict = "" if titles else f"{_DIRECTION.get(result.verdict, result.verdict)}: "
    text = f"{verdict}“{claim.wording.rstrip('.')}” ({claim.paper}, {claim.place})"
    text += f", on {titles[result.experiment]}" if titles and result.experiment else ""
    if found is None or math.isnan(found["low"]):
        return text
    digits = digits_for(found["low"], found["high"])
    ours = f"{number(found['mean'], digits)} {interval_of_difference(found['low'], found['high'])} points"
    size = "" if claim.difference is None else f", in the paper {number(claim.difference, None)}"
    unit = "" if claim.difference is None else " % of the second" if claim.unit == "percent" else " points"
    text += f"; here the difference in error is {ours}{size}{unit}"
    if found["sampling_error"]:
        text += ", in an interval that holds the draw of the test items too"
    if not math.isnan(found["margin"]):
        text += f", held against a margin of {margin_text(found['margin'])} points without a correction"
    return f"{text}; {result.reason}" if result.verdict == "undecided" and result.reason else text


def _because(cell: Cell) -> str:
    if cell.verdict.seeds_needed:
        return f": {cell.verdict.seeds_needed} seeds would decide if mean and spread stay as they are"
    return f": {cell.verdict.reason}" if cell.verdict.reason else ""


def _listed(
    heading: str, lines: Sequence[str], kind: str = "", most: int = MOST_ITEMS, where: str = "below"
) -> Finding:
    rest = len(lines) - most
    more = f"{rest} more{' ' + kind if kind else ''} {where}" if rest > 0 else ""
    return Finding(heading, tuple(lines[:most]), more)


def _name(row: Any, titles: Mapping[str, str], table: pd.DataFrame) -> str:
    notes = [titles[row.experiment]] if table["experiment"].nunique() > 1 else []
    notes += [POST_HOC] if row.post_hoc else []
    return f"{row.contrast} ({', '.join(notes)})" if notes else str(row.contrast)


def _of(count: int, rows: Sequence[Any]) -> str:
    return f"{count} of {len(rows)} contrast{'s' * (len(rows) > 1)}"


def _values(count: int, beside: Sequence[Cell]) -> str:
    return "the one published value" if len(beside) == 1 else f"{count} of {len(beside)} published values"
