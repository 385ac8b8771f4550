"""The table of claims: what the papers say of two networks, and what our runs say."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from capsbench.analysis.claims import NEITHER, ClaimResult
from capsbench.analysis.contrasts import number, p_value, titles_of
from capsbench.analysis.published_values import PublishedClaim
from capsbench.analysis.tables.model import Grid, Notes, Row, Table, grid
from capsbench.analysis.tables.pairs import claimed_text, difference_text, verdict_text
from capsbench.analysis.tables.source import Source
from capsbench.analysis.tables.text import MISSING

_COLUMNS = ("claim", "paper", "ours", "ours is", "verdict", "p (Holm)", "compared", "n")

_KEPT = [name for name in _COLUMNS if name not in ("ours is", "p (Holm)")]  # also where no row has one


def claims_table(source: Source) -> Table:
    """Return the claims about the data sets of a study: those with both networks here, then the others."""
    notes = Notes()
    tested = [result for result in source.claims if result.a is not None]
    attacks = [result for result in source.claims if result.claim.attack is not None and result.a is None]
    untested = [r for r in source.claims if r.a is None and r.reason != NEITHER and r not in attacks]
    rows = [_row(result, source, notes) for result in tested]
    grids = [grid("", _COLUMNS, rows, keep=_KEPT)] if tested else []
    if untested:
        others_here = tuple(Row((r.claim.wording, _of_paper(r.claim), r.reason)) for r in untested)
        grids.append(Grid("not tested here", ("claim", "paper", "why"), others_here))
    others = len(source.claims) - len(tested) - len(untested) - len(attacks)
    also = [f"{others} more claims are about networks that this study has not."] if others else []
    if attacks:
        also.append(f"{len(attacks)} claims are about errors under attack; the protocol 'adversarial' measures these.")
    caption = (
        f"Study '{source.plan.study.name}'. Paper: error of the first network minus that of the second. Ours: the same "
        "at equal seeds, in points of %, with the 95 % t interval of the mean, which for pairs of digits and under "
        "attack holds the sampling error of the pairs or images that were drawn. Supported: the interval lies on the "
        "side that the paper claims, also after Holm's correction for all claims with a p here; of 'the same': the "
        "90 % interval lies within a tenth of the published error or five test images (of the second network's, where "
        "the data are not the paper's). Not comparable: a network or its training is not the paper's, so that ours "
        "says nothing for or against it; what ours is by the same rules stands beside it. "
        "n: seeds with both, out of the planned ones."
    )
    title = "What the papers claim, and what these runs show"
    return Table("claims", title, caption, tuple(grids), (*notes.lines(), *also), _numbers(source.claims))


def _row(result: ClaimResult, source: Source, notes: Notes) -> Row:
    claim, found = result.claim, result.found or {}
    assert result.experiment is not None and result.a is not None and result.b is not None
    a, b = (source.cell(result.experiment, variant) for variant in (result.a, result.b))
    ours = difference_text(found)
    if found["n"] and not math.isnan(found.get("margin", math.nan)):
        ours += f", same within {found['margin']:.2g}"
    paired = [b.errors[seed] for seed in found["differences"]]
    if claim.unit == "percent" and any(paired):
        ours += f" ({number(100 * found['mean'] * len(paired) / sum(paired), 0)} %)"
    several = len(source.plan.data) > 1
    compared = (f"{titles_of(source.plan)[result.experiment]}: " if several else "") + f"{a.label} against {b.label}"
    verdict = verdict_text(result, notes)
    of_ours = notes.marked(result.here, result.why) if result.verdict == "not comparable" else MISSING
    texts = (
        claim.wording, _of_paper(claim), ours, of_ours, verdict,
        MISSING if math.isnan(found["p_holm"]) else p_value(found["p_holm"]), compared,
        f"{found['n']} of {found['planned']}",
    )  # fmt: skip
    return Row(texts, (*a.keys, *b.keys))


def _of_paper(claim: PublishedClaim) -> str:
    return f"{claimed_text(claim)} ({claim.paper}, {claim.place})"


def _numbers(results: Sequence[ClaimResult]) -> pd.DataFrame:
    return pd.DataFrame([_line(result) for result in results], columns=_NUMBERS)


_NUMBERS = [
    "claim", "paper", "place", "wording", "expected", "published_difference", "unit", "experiment", "a", "b", "n",
    "planned", "mean", "std", "low", "high", "margin", "p", "p_holm", "here", "why", "verdict", "reason", "differences",
]  # fmt: skip


def _line(result: ClaimResult) -> dict[str, Any]:
    claim, found = result.claim, result.found or {}
    by_seed = "; ".join(f"{seed}: {d:.10g}" for seed, d in found.get("differences", {}).items())
    return {
        "claim": claim.id, "paper": claim.paper, "place": claim.place, "wording": claim.wording,
        "expected": claim.expected, "unit": claim.unit,
        "published_difference": math.nan if claim.difference is None else claim.difference,
        "experiment": result.experiment or "", "a": result.a or "", "b": result.b or "",
        **{name: found.get(name, 0 if name in ("n", "planned") else math.nan)
           for name in ("n", "planned", "mean", "std", "low", "high", "margin", "p", "p_holm")},
        "here": result.here, "why": result.why, "verdict": result.verdict, "reason": result.reason,
        "differences": by_seed,
    }  # fmt: skip
