"""What the papers claim of two networks, held against our runs of the same two at equal seeds."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd
from scipy.special import stdtr, stdtrit

from capsbench.analysis.attacked import attack_text, error_of_choice, under_attack
from capsbench.analysis.cells import Cell, cells
from capsbench.analysis.contrasts import SIGNIFICANT, compare, p_value
from capsbench.analysis.correct_bits import Correct, unlike
from capsbench.analysis.margins import margin_of
from capsbench.analysis.measures import Measures
from capsbench.analysis.published import claims, deviations, is_side, of_either
from capsbench.analysis.published_format import read_file
from capsbench.analysis.published_values import Network, Published, PublishedClaim
from capsbench.analysis.resampling import times_wrong
from capsbench.analysis.statistics import FEWEST, holm
from capsbench.analysis.verdicts import ENDED
from capsbench.registry import flat_options
from capsbench.study import Contrast, Plan

NEITHER = "its networks are not here"  # why a claim is not tested
SIZE_WITHIN = 1.5  # by which factor the parameters of two networks may miss what a claim says of them
Here = Literal["as claimed", "the opposite", "undecided", ""]
ClaimVerdict = Literal["supported", "contradicted", "undecided", "not comparable", "not tested"]
_VERDICTS: dict[Here, ClaimVerdict] = {
    "as claimed": "supported", "the opposite": "contradicted", "undecided": "undecided", "": "not tested",
}  # fmt: skip


@dataclass(frozen=True)
class ClaimResult:
    """A claim of a paper beside what our runs say.

    experiment, a, b: where both networks of the claim were found, as variants; None where they were not. found: the row
    of `compare` for a minus b, with the sampling error of drawn test items in its interval and its p, with p_holm
    adjusted for the claims of the study, and with the margin of "the same" in points; None without a pair. here: what
    it shows of these two networks, which need not be the paper's; why: that of an "undecided" which the interval alone
    does not give. verdict: on the paper's claim.
    reason: why the verdict is not a plain one, in one line.
    """

    claim: PublishedClaim
    experiment: str | None
    a: str | None
    b: str | None
    found: Mapping[str, Any] | None
    here: Here
    why: str
    verdict: ClaimVerdict
    reason: str = ""


def check_claims(
    plan: Plan, runs: pd.DataFrame, measures: Measures | None = None, correct: Correct | None = None
) -> list[ClaimResult]:
    """Return a result per claim and experiment that has both of its networks; one without a pair for other claims.

    as claimed: the 95 % interval of the paired difference lies on the side that the paper claims, or, for "the same",
    the 90 % interval lies within the margin. the opposite: it lies on the other side, or beyond the margin. What is
    said of a claimed difference holds after Holm's correction for all such claims that the study tests. Neither is said
    where fewer than 80 % of the seeds have both. The first is a claim "supported" and the second one "contradicted"
    where both networks and their trainings are the paper's, and "not comparable" where a side deviates.

    Of several pairs that a claim could be about, those without a run at chance come first, then the one that differs
    least. A claim about sizes is not tested by networks whose sizes are not within a factor of `SIZE_WITHIN` of what it
    says, nor one about equal familiar error by networks of which neither was stopped at that of the other.

    Args:
        plan: the study.
        runs: from `collect` or `read_runs`.
        measures: what protocols found; claims about attacks rest on them.
        correct: which test items the runs got right, for the error that comes from the draw of pairs of digits; without
            it, and under attack, that of two independent tests stands for it, an upper bound.
    """
    return claims_of(plan, runs, cells(plan, runs), measures or {}, correct)


def claims_of(
    plan: Plan, runs: pd.DataFrame, there: Sequence[Cell], measures: Measures, correct: Correct | None = None
) -> list[ClaimResult]:
    """Do the same as `check_claims`, with the cells at hand."""
    found, bad = [], unlike(correct, runs).keys()
    for claim in claims():
        pairs = _pairs(claim, there)
        beside = [_beside_the_claim(claim, *pair) for pair in pairs]
        pairs = [pair for pair, why in zip(pairs, beside, strict=True) if not why]
        if claim.attack is not None:
            attacked = under_attack(runs, measures, claim.attack)
            pairs = [pair for pair in pairs if any(_was_attacked(attacked, cell) for cell in pair)]
            tested = [_checked(claim, *pair, plan, attacked, _of_choice(attacked, runs, *pair)) for pair in pairs]
        else:
            tested = [_checked(claim, a, b, plan, runs, _of_the_draw(a, b, correct, bad)) for a, b in pairs]
        tested += [ClaimResult(claim, None, None, None, None, "", "", "not tested", why) for why in beside if why]
        found += tested or [_untested(claim, there)]
    return _corrected(found)


def _was_attacked(attacked: pd.DataFrame, cell: Cell) -> bool:
    return bool((attacked["key"].isin(cell.keys) & (attacked["status"] == "ok")).any())


def _of_choice(attacked: pd.DataFrame, runs: pd.DataFrame, a: Cell, b: Cell) -> float:
    """Return the standard error in points that comes from the choice of attacked images, as `_of_two_tests` has it."""
    return _of_two_tests(*(error_of_choice(attacked, runs, cell.experiment, cell.variant) for cell in (a, b)))


def _of_the_draw(a: Cell, b: Cell, correct: Correct | None, bad: Set[str]) -> float:
    """Return the standard error in points of the difference of two cells that comes from the draw of the test items.

    Pairs of digits are drawn one by one, and both networks see the same. bad: runs whose items are not known.
    """
    bound = _of_two_tests(a.sampling_error, b.sampling_error)
    if bound == 0 or correct is None or a.experiment in correct.mixed:
        return bound
    sides = [{int(key.rpartition("seed")[2]): key for key in cell.keys} for cell in (a, b)]
    seeds = [seed for seed in a.errors if seed in b.errors]
    keys = [[side[seed] for seed in seeds] for side in sides]
    if not seeds or any(key in bad or key not in correct.right for side in keys for key in side):
        return bound
    first, second = (times_wrong([correct.right[key] for key in side])[0] for side in keys)
    differences = 100 * (first - second) / len(seeds)  # of each item, the seeds averaged
    return float(differences.std(ddof=1)) / math.sqrt(len(differences))


def _of_two_tests(first: float, second: float) -> float:
    """Return the standard error of a difference of two errors that hold their own, as if the tests were independent.

    Both networks see the same items, and what one finds hard the other rather does too. So the error of the difference
    is at most that of two independent tests, whose variances add up; only networks that avoid each other's mistakes
    could have more. How much less it is, two error rates do not tell.
    """
    return math.hypot(first, second)


def _corrected(results: Sequence[ClaimResult]) -> list[ClaimResult]:
    """Adjust the p values of the claims that a difference decides, and take back what does not hold after that."""
    decided = [r.claim.expected == "lower" and r.here != "" and not r.why for r in results]
    p_values = [float(r.found["p"]) if r.found and d else math.nan for r, d in zip(results, decided, strict=True)]
    corrected = []
    for result, p in zip(results, holm(p_values), strict=True):
        found = None if result.found is None else {**result.found, "p_holm": p}
        result = replace(result, found=found)
        if result.here in ("as claimed", "the opposite") and p >= SIGNIFICANT:
            why = f"not after Holm's correction for {sum(decided)} tests (p = {p_value(p)})"
            result = replace(result, here="undecided", why=why)
            if result.verdict != "not comparable":
                result = replace(result, verdict="undecided", reason=why)
        corrected.append(result)
    return corrected


def _pairs(claim: PublishedClaim, there: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """Return the two cells of a claim in each experiment: of several, those that have learnt, and differ least."""
    sides = [[c for c in there if is_side(c.run, c.published, network)] for network in (claim.first, claim.second)]
    found = []
    for experiment in dict.fromkeys(cell.experiment for cell in sides[0]):
        candidates = [
            (a, b) for a in sides[0] for b in sides[1] if a.experiment == b.experiment == experiment and a is not b
        ]
        if candidates:
            found.append(min(candidates, key=lambda pair: _rank(claim, *pair)))
    return found


def _rank(claim: PublishedClaim, a: Cell, b: Cell) -> tuple[bool, bool, int]:
    return bool(_beside_the_claim(claim, a, b)), bool(a.stuck or b.stuck), _distance(a, b)


def _distance(a: Cell, b: Cell) -> int:
    """Count in how many options and numbers of training two cells differ."""
    first, second = ({**flat_options(c.run.options), **dict(c.run.training), "model": c.run.model} for c in (a, b))
    return sum(first.get(name) != second.get(name) for name in {*first, *second})


def _beside_the_claim(claim: PublishedClaim, a: Cell, b: Cell) -> str:
    """Say why two networks are not what a claim is about, as to sizes and familiar errors; empty where they are."""
    ratio = b.parameters / a.parameters  # nan before a run
    if claim.times_parameters and abs(math.log(ratio / claim.times_parameters)) > math.log(SIZE_WITHIN):
        claimed = "as many" if claim.times_parameters == 1 else f"{claim.times_parameters:g} times as many"
        return f"{b.label} has {ratio:.2g} times the parameters of {a.label}, not {claimed}"
    if claim.equal_familiar and a.run.training.match != b.variant and b.run.training.match != a.variant:
        return f"neither {a.label} nor {b.label} was stopped at the familiar error of the other"
    return ""


def _untested(claim: PublishedClaim, there: Sequence[Cell]) -> ClaimResult:
    if claim.attack is not None:
        reason = "no errors under attack"
    else:
        here = [any(is_side(c.run, c.published, side) for c in there) for side in (claim.first, claim.second)]
        both = "its two networks stand in no experiment together"
        reason = both if all(here) else "one of its networks is not here" if any(here) else NEITHER
    return ClaimResult(claim, None, None, None, None, "", "", "not tested", reason)


def _checked(claim: PublishedClaim, a: Cell, b: Cell, plan: Plan, runs: pd.DataFrame, sampling: float) -> ClaimResult:
    """Compare two cells. runs: with the errors that the claim is about; sampling: the error of drawn test items."""
    contrast = Contrast("claims", a.experiment, a.variant, b.variant)
    row = _widened(compare([contrast], runs).to_dict("records")[0], sampling)
    place = (claim, a.experiment, a.variant, b.variant, row)
    if row["n"] == 0 and not all(cell.errors or cell.diverged or cell.failed for cell in (a, b)):
        return ClaimResult(*place, "", "", "not tested", "not run")
    row["margin"] = _margin(claim, a, b, runs) if claim.expected == "same" else math.nan
    here, why = _shown(claim, row, row["margin"])
    if reasons := _reasons(claim, a, b, plan):
        return ClaimResult(*place, here, why, "not comparable", reasons)
    return ClaimResult(*place, here, why, _VERDICTS[here], why)


def _widened(row: Mapping[str, Any], sampling: float) -> dict[str, Any]:
    """Add the sampling error of drawn test items to the interval and to p."""
    known = {**row, "sampling_error": sampling}
    if sampling == 0 or math.isnan(row["low"]):
        return known
    half, error = _half_width(known, 0.95), _standard_error(known)
    p = 2 * float(stdtr(row["n"] - 1, -abs(row["mean"]) / error))
    return {**known, "low": row["mean"] - half, "high": row["mean"] + half, "p": p}


def _standard_error(row: Mapping[str, Any]) -> float:
    """Return that of the mean difference: of the seeds, and of the test items."""
    of_seeds = 0.0 if math.isnan(row["std"]) else row["std"] / math.sqrt(row["n"])
    return math.hypot(of_seeds, row["sampling_error"])


def _half_width(row: Mapping[str, Any], confidence: float) -> float:
    return float(stdtrit(row["n"] - 1, (1 + confidence) / 2)) * _standard_error(row)


def _shown(claim: PublishedClaim, row: Mapping[str, Any], margin: float) -> tuple[Here, str]:
    if row["n"] < ENDED * row["planned"]:
        return "undecided", f"{row['n']} of {row['planned']} seeds have both; {row['dropped']}"
    if row["n"] < FEWEST:
        return "undecided", f"{row['n']} seed{'s' * (row['n'] > 1)}: no interval"
    if row["stuck"]:
        return "undecided", row["stuck"]
    if math.isnan(row["low"]) and not (claim.expected == "same" and row["mean"] == 0):
        return "undecided", row["shows"]
    if claim.expected == "same":
        return _same(row, margin), ""
    return "as claimed" if row["high"] < 0 else "the opposite" if row["low"] > 0 else "undecided", ""


def _same(row: Mapping[str, Any], margin: float) -> Here:
    """Judge "about the same" by two one-sided tests at 5 %."""
    if abs(row["mean"]) + _half_width(row, 0.9) <= margin:
        return "as claimed"
    return "the opposite" if abs(row["mean"]) - _half_width(row, 0.95) > margin else "undecided"


def _margin(claim: PublishedClaim, a: Cell, b: Cell, runs: pd.DataFrame) -> float:
    """Return what counts as the same, in points: that of a published value of the claim, on the data of the paper.

    Elsewhere the rule of published values is taken from the second network here: a tenth of its error or five test
    images, whichever is more.
    """
    values = [side.value for side in (claim.second, claim.first) if side.value is not None]
    if values and claim.attack is None and b.data_set == values[0].data_set:
        return values[0].margin
    rows = runs[runs["key"].isin(b.keys) & (runs["status"] == "ok")]
    if rows.empty:
        return 0.0
    return margin_of(float(rows["test_error"].mean()), float(rows["test_images"].iloc[0]))


def _reasons(claim: PublishedClaim, a: Cell, b: Cell, plan: Plan) -> str:
    """Say what keeps the pair from being that of the paper; what both share is said once."""
    first, second = _deviations(a, claim.first, plan), _deviations(b, claim.second, plan)
    of_b = f"matched to {b.variant}: "  # what is said of b itself below
    first = [reason for reason in first if not (reason.startswith(of_b) and reason.removeprefix(of_b) in second)]
    both = {of_either(reason) for reason in first} & {of_either(reason) for reason in second}
    shared = [reason for reason in first if of_either(reason) in both]
    if claim.attack is not None:
        shared.append(f"{attack_text(claim.attack)}, and the paper does not say of which range")
    own = [f"{cell.label}: {reason}" for cell, reasons in ((a, first), (b, second)) for reason in reasons
           if of_either(reason) not in both]  # fmt: skip
    return "; ".join([*shared, *own])


def _deviations(cell: Cell, network: Network, plan: Plan) -> list[str]:
    if network.value is not None:
        return list(cell.deviations)
    claimed = Published(
        id="", paper="", table="", method="", data_set=read_file().protocols[network.protocol].data_set,
        error=math.nan, rounding=0.0, margin=0.0, printed="", unit="error", protocol=network.protocol,
        model=network.model, options=network.options, all_options=network.options,
    )  # fmt: skip
    found = deviations(cell.run, claimed, plan)
    if cell.matching is not None and cell.matching.problem:
        found.append(cell.matching.problem)
    return [*found, *(["not the official files"] if cell.unofficial else [])]
