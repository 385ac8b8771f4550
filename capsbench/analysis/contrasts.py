"""Contrasts between variants, seed by seed: numbers, and a sentence that claims no more than they carry.

Two runs at the same seed see the same initial draws, order of images and augmentation, so a difference at equal seeds
is free of most of the spread between seeds.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pandas as pd

from capsbench.analysis.margins import TENTH
from capsbench.analysis.statistics import PairedSummary, holm, p_of_same, summarise, summarise_pairs
from capsbench.run.match import ROUNDING, TOLERANCE
from capsbench.study import Contrast, Plan

SIGNIFICANT = 0.05  # of an adjusted p value
POST_HOC = "post hoc"
MARK_POST_HOC = "‡"
_UNMATCHED = "unmatched"
_ENDS = {
    "diverged": "diverged", "failed": "failed", "running": "is still running", "missing": "is missing",
    "interrupted": "was interrupted", "damaged": "is damaged",
    _UNMATCHED: "is not matched in familiar error", "not attacked": "was not attacked",
}  # fmt: skip
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
COLUMNS = [
    "family", "experiment", "data_set", "contrast", "a", "b", "n", "planned", "dropped", "error_a", "error_b", "mean",
    "std", "low", "high", "p_better", "p", "p_holm", "margin", "p_same_raw", "p_same", "tests", "differences", "shows",
    "unofficial", "stuck", "at_chance", "post_hoc",
]  # fmt: skip


def compare(contrasts: Sequence[Contrast], runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per contrast: the test error of `a` minus that of `b` in points of %, over the seeds that have both.

    n of planned seeds; dropped: the seeds without a difference, with the reason and the variant; error_a, error_b:
    the mean errors of both over the n seeds; mean, std, low and high: of the differences, with the 95 % t interval of
    their mean; p_better: the probability that in a fresh pair of runs the error of `a` is below that of `b`; p: of
    the paired t test; p_holm: adjusted within the family, for its `tests` contrasts that have a p; margin: within how
    many points the two count as the same, a tenth of the mean error of `b`; p_same: that they do, adjusted in the
    same way; p_same_raw: the same before that, see `p_of_same`; differences: by seed; shows: a sentence; unofficial:
    files that are not the official ones; stuck: which variants never left chance in training, and in how many seeds;
    at_chance: the seeds in which either did. Their errors are in the numbers, but such a difference is not a shown
    one, see `is_shown`; post_hoc: declared when the errors of both were known. See `summarise_pairs` for where there
    is no interval and no p.

    Args:
        contrasts: of a plan.
        runs: from `collect`, or runs.csv of a reference. Columns `label` and `stuck_at_chance` may be missing.

    Raises:
        KeyError: a variant has no run in its experiment.
    """
    rows = [_row(contrast, runs) for contrast in contrasts]
    for family in dict.fromkeys(row["family"] for row in rows):
        members = [row for row in rows if row["family"] == family]
        tests = sum(not math.isnan(row["p"]) for row in members)
        adjusted = zip(*(holm([row[p] for row in members]) for p in ("p", "p_same")), strict=True)
        for row, (p_holm, p_same) in zip(members, adjusted, strict=True):
            row |= {"p_holm": p_holm, "p_same": p_same, "tests": tests}
    table = pd.DataFrame(rows, columns=COLUMNS)
    within = [row.margin if is_same(row) else 0.0 for row in table.itertuples()]
    table["shows"] = [
        sentence(row["summary"], row["p_holm"], row["tests"], row["dropped"], row["stuck"], same_within)
        for row, same_within in zip(rows, within, strict=True)
    ]
    return table


def contrasts_of_begun(plan: Plan, runs: pd.DataFrame) -> list[Contrast]:
    """Return the contrasts of a study but for those of experiments of which no run was made, if others have runs."""
    begun = set(runs.loc[runs["status"] != "missing", "experiment"]) or set(plan.data)
    return [contrast for contrast in plan.contrasts if contrast.experiment in begun]


def is_shown(row: Any) -> bool:
    """Tell whether a row of `compare` shows a difference between networks that learn.

    Zero lies outside the interval, Holm's correction leaves p below 0.05, and neither side stayed at chance in any
    seed: a mean over networks that learnt and others that did not says how often they fail.
    """
    return excludes_zero(row) and bool(row.p_holm < SIGNIFICANT) and not row.at_chance


def is_same(row: Any) -> bool:
    """Tell whether a row of `compare` shows that networks that learn have the same error, within its margin.

    No difference was shown, and two one-sided tests leave p below 0.05, after Holm's correction too.
    """
    return bool(row.p_same < SIGNIFICANT) and not row.at_chance and not is_shown(row)


def is_identical(row: Any) -> bool:
    """Tell whether both sides of a row of `compare` have the same error in every seed."""
    return bool(row.mean == 0 and row.std == 0)


def excludes_zero(row: Any) -> bool:
    """Tell whether zero lies outside the interval of a row; False where there is none."""
    return bool(row.low > 0 or row.high < 0)


def at_chance_text(row: Any) -> str:
    """Say in how many seeds of a row of `compare` a side stayed at chance; empty where none did."""
    return f"at chance in {row.at_chance} of {row.planned} seeds" if row.at_chance else ""


def titles_of(plan: Plan) -> dict[str, str]:
    """Return what each experiment is called: the title of its data set, its own name where several share that."""
    titles = {name: data.facts.title for name, data in plan.data.items()}
    counts = Counter(titles.values())
    return {name: title if counts[title] == 1 else name for name, title in titles.items()}


def not_in_intervals(plan: Plan, experiments: Collection[str] | None = None) -> str:
    """Say what intervals over seeds do not hold: the test images, and training images that all seeds share.

    experiments: those with the intervals; left out: all of the study.
    """
    titles = {name: title for name, title in titles_of(plan).items() if experiments is None or name in experiments}
    drawn = [title for name, title in titles.items() if plan.data[name].split == "per_seed"]
    if not drawn:
        return "neither the choice of the training images nor that of the test images is in them"
    if len(drawn) == len(titles):
        return "the draw of the training images is in them, the choice of the test images is not"
    return (
        f"the choice of the test images is not in them, and the draw of the training images only for {', '.join(drawn)}"
    )


def family_title(plan: Plan, family: str) -> str:
    """Return what a family is called; one that stands for an axis of a grid has the label of its variant."""
    base, _, axis = family.partition(": ")
    variant = plan.study.variants.get(base)
    if not axis or variant is None:
        return family.replace("_", " ")
    return f"{variant.label or base}: {axis.replace('.', ' ').replace('_', ' ')}"


def sentence(
    found: PairedSummary, p_holm: float, tests: int, dropped: str = "", stuck: str = "", same_within: float = 0.0
) -> str:
    """Say what the error of the first is against the second's, no stronger than the interval and the family allow.

    Args:
        found: the differences, first minus second.
        p_holm: the adjusted p value, nan where there is none.
        tests: the contrasts of the family that have a p value.
        dropped: seeds without a difference and why, empty if there are none.
        stuck: which variants stayed at chance and how often, empty if none did; no direction is said then.
        same_within: the margin in points if the two were shown to be the same within it, otherwise 0.
    """
    text = _sentence(found, p_holm, tests, dropped, bool(stuck), same_within)
    return f"{text}; {stuck}" if stuck else text


def _sentence(
    found: PairedSummary, p_holm: float, tests: int, dropped: str, at_chance: bool, same_within: float
) -> str:
    seeds = f"{count_in_words(found.n)} seed{'' if found.n == 1 else 's'}"
    left_out = f"; dropped: {dropped}" if dropped else ""
    if found.n == 0:
        return f"no seed to compare{left_out}"
    basis = f"({seeds}, paired{left_out})"
    if found.identical:
        where = "the one seed" if found.n == 1 else f"all {seeds}"
        return f"identical in {where}{left_out}"
    if math.isnan(found.low):
        mean = number(found.mean, digits_for(found.mean))
        if found.constant:
            return f"{mean} points in every seed: no interval without a spread {basis}"
        return f"{mean} points: too few seeds for an interval {basis}"
    digits = digits_for(found.low, found.high)
    unshown = f"not shown after Holm's correction for {tests} contrasts (p = {p_value(p_holm)})"
    if at_chance or same_within or found.low <= 0 <= found.high:
        low, high = (number(value, digits) for value in (found.low, found.high))
        said = f"the same within {margin_text(same_within)} points: " if same_within else "no difference was shown: "
        said = "" if at_chance else said
        apart = "" if at_chance or found.low <= 0 <= found.high else f"; a difference was {unshown}"
        return f"{said}between {low} and {high} points {basis}{apart}"
    near, far = sorted((abs(found.low), abs(found.high)))
    direction = "lower" if found.mean < 0 else "higher"
    said = f"error of the first {direction} by {near:.{digits}f} to {far:.{digits}f} points {basis}"
    if p_holm >= SIGNIFICANT:
        said += f"; {unshown}"
    return said


def digits_for(*values: float) -> int:
    """Return the decimals that show an interval, or a number: 3 where it is narrow, more where a bound reads 0."""
    width = max(values) - min(values) if len(values) > 1 else math.inf
    digits = 3 if width < 0.1 else 2
    while digits < 6 and any(value and not round(value, digits) for value in values):
        digits += 1
    return digits


def number(value: float, digits: int | None = 2) -> str:
    """Write a difference with its sign, the minus sign and no hyphen; 0 has none. digits: None: those that it has."""
    if digits is None:
        return f"{value:+g}".replace("-", "−")
    return f"{value:+.{digits}f}".replace("-", "−") if round(value, digits) else f"{0:.{digits}f}"


def interval_of_difference(low: float, high: float) -> str:
    """Write an interval with the digits that it needs: "[−0.57, +0.03]"."""
    digits = digits_for(low, high)
    return f"[{number(low, digits)}, {number(high, digits)}]"


def margin_text(margin: float) -> str:
    """Write a margin in points with the two digits that count: "0.19", "3.3"."""
    return f"{margin:.2g}"


def p_value(p: float) -> str:
    """Write a p value with two digits that count, never as 0."""
    return "<0.001" if p < 0.001 else f"{p:.2g}"


def label_of(a: str, b: str) -> str:
    """Name a contrast by the labels of its variants; what they share is said once, where they differ part by part.

    "CapsNet, decoder, iterations 3" and "CapsNet, decoder, iterations 1" make
    "CapsNet, decoder: iterations 3 against 1".
    """
    separator = ", " if ", " in a and ", " in b else "-"
    first, second = (label.split(separator) for label in (a, b))
    shared = [x for x, y in zip(first, second, strict=False) if x == y]
    own = [(x, y) for x, y in zip(first, second, strict=False) if x != y]
    if len(first) != len(second) or len(own) != 1 or not shared:
        return f"{a} against {b}"
    values = [re.fullmatch(r"(\D+?) ?([\d.]+)", value) for value in own[0]]
    if values[0] and values[1] and values[0][1] == values[1][1]:
        return f"{', '.join(shared)}: {values[0][1]} {values[0][2]} against {values[1][2]}"
    return f"{', '.join(shared)}: {own[0][0]} against {own[0][1]}"


def _row(contrast: Contrast, runs: pd.DataFrame) -> dict[str, Any]:
    cells = [_cell(runs, contrast.experiment, variant) for variant in (contrast.a, contrast.b)]
    labels = [cell["label"].iloc[0] if "label" in cell else cell["variant"].iloc[0] for cell in cells]
    ends = [_ends(cell) for cell in cells]
    seeds = sorted({*ends[0], *ends[1]})
    dropped: Counter[str] = Counter()
    pairs: dict[int, tuple[float, float]] = {}
    for seed in seeds:
        found = [end.get(seed, "missing") for end in ends]
        if any(isinstance(end, str) for end in found):
            dropped[_why(labels, found)] += 1
        else:
            pairs[seed] = (float(found[0]), float(found[1]))
    stuck, at_chance = _stuck(cells, labels, len(seeds))
    first, second = ([pair[side] for pair in pairs.values()] for side in (0, 1))
    summary = summarise_pairs(first, second)
    return {
        "family": contrast.family, "experiment": contrast.experiment, "data_set": cells[0]["data_set"].iloc[0],
        "contrast": contrast.name or label_of(*labels), "a": contrast.a, "b": contrast.b,
        "n": summary.n, "planned": len(seeds),
        "dropped": "; ".join(f"{why} in {n} seed{'s' * (n > 1)}" for why, n in dropped.items()),
        "error_a": summarise(first).mean, "error_b": summarise(second).mean,
        "mean": summary.mean, "std": summary.std, "low": summary.low, "high": summary.high,
        "p_better": summary.better, "p": summary.p, "summary": summary,
        "margin": summarise(second).mean / TENTH, "p_same": (p_same := p_of_same(first, second)), "p_same_raw": p_same,
        "differences": {seed: a - b for seed, (a, b) in pairs.items()},
        "unofficial": "; ".join(_unofficial(cells)), "stuck": stuck, "at_chance": at_chance,
        "post_hoc": contrast.post_hoc,
    }  # fmt: skip


def _why(labels: Sequence[str], ends: Sequence[float | str]) -> str:
    """Say in words why a seed has no difference."""
    words = [_ENDS.get(end, end) if isinstance(end, str) else "" for end in ends]
    if words[0] == words[1]:
        return "both " + words[0].replace("is ", "are ")
    return " and ".join(f"{label} {word}" for label, word in zip(labels, words, strict=True) if word)


def _cell(runs: pd.DataFrame, experiment: str, variant: str) -> pd.DataFrame:
    found = runs[(runs["experiment"] == experiment) & (runs["variant"] == variant)]
    if found.empty:
        raise KeyError(f"no run of {experiment}/{variant}")
    return found


def _ends(cell: pd.DataFrame) -> Mapping[int, float | str]:
    """Return the test error of each seed, or in words why there is none to compare."""
    return {run["seed"]: _end(run) for run in cell.to_dict("records")}


def _end(run: Mapping[str, Any]) -> float | str:
    if run["status"] != "ok":
        return str(run["status"])
    overshoot = run.get("overshoot", math.nan)  # of a run that is matched to another
    known = isinstance(overshoot, float) and not math.isnan(overshoot)
    matched = known or isinstance(run.get("matched_to"), str)
    allowed = run.get("match_tolerance", math.nan)
    allowed = TOLERANCE if math.isnan(allowed) else allowed
    unmatched = matched and not (known and abs(overshoot) <= allowed + ROUNDING)
    return _UNMATCHED if unmatched else float(run["test_error"])


def _stuck(cells: Sequence[pd.DataFrame], labels: Sequence[str], planned: int) -> tuple[str, int]:
    """Say in how many seeds each variant stayed at chance, and count the seeds in which either did."""
    seeds = [
        set(cell.loc[cell["stuck_at_chance"].isin([True, "True"]), "seed"]) if "stuck_at_chance" in cell else set()
        for cell in cells
    ]
    said = [
        f"{label} stayed at chance in {len(own)} of {planned} seeds"
        for label, own in zip(labels, seeds, strict=True) if own
    ]  # fmt: skip
    return "; ".join(said), len(set.union(*seeds))


def _unofficial(cells: Sequence[pd.DataFrame]) -> list[str]:
    lines = [line for cell in cells if "unofficial" in cell for line in cell["unofficial"].dropna()]
    return list(dict.fromkeys(part for line in lines for part in line.split("; ") if part))


def count_in_words(n: int) -> str:
    """Write a small number as a word."""
    return _WORDS[n] if n < len(_WORDS) else str(n)
