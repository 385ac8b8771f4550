"""Holds the differences that the docs' prose names against the committed contrasts. Used by docs/generate.py.

Most numbers of the docs stand in generated blocks. Prose repeats some of their intervals, as `[−2.1, +1.1]`, "2.1 to
3.4 points higher" or "by 2.1 to 3.4", and would keep them when runs are trained again. Each must be, rounded, the
interval of a committed contrast or claim, or one that a block has. Sentences that say what else their ranges are
(PASSED_OVER) are not looked at. Which contrast it is, and whether the words have its direction, is not checked.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pandas as pd

NUMBER = r"\d+(?:\.\d+)?"
INTERVAL = re.compile(rf"\[([−+]{NUMBER}),\s+([−+]{NUMBER})(?:[;,]\s[^\]]*)?\]")
RANGE = re.compile(
    rf"(?<![\d.,])(?P<by>by\s+)?(?=[\d.]*\.\d|\S+\s+to\s+\d+\.\d)({NUMBER})\s+to\s+({NUMBER})(?![\d.]*\d|\s*%)"
    r"(?(by)|\s+(?:points?|higher|lower|more|fewer|less|above|below|ahead|behind|better|worse)\b)",
    re.I,
)
BLOCK = re.compile(r"<!-- begin .*?<!-- end \w+ -->", re.S)
SENTENCE = re.compile(
    r"(?:(?<=[.:?])|(?<=[.:?][*)\"])|(?<=[.:?]\*\*))\s+(?=[A-Z0-9*\[`(])|\n\s*\n|\n(?=\s*(?:[-*] |\||\d+\. ))"
)
PASSED_OVER = re.compile(
    r"\(by\s+hand|no\s+contrast\s+was\s+declared|trained\s+before|was\s+taken\s+out|is\s+such\s+an\s+interval|"
    r"(?:every|each|five|four|one)\s+seeds?\b|all\s+twenty|other\s+four|share\s+their\s+images|of\s+each\s+other|by\s+another",
    re.I,
)
DECIMALS = (0, 1, 2, 3)

Ends = tuple[str, str]


def unfounded(text: str, found: set[Ends]) -> Iterator[tuple[int, str]]:
    """Find what the prose of a page names as a difference and no contrast has.

    Args:
        text: the page, with its blocks.
        found: the intervals that there are, see `intervals`.

    Yields:
        The line and the range, as it stands there.
    """
    prose = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    begin = 0
    for end in [*(gap.end() for gap in SENTENCE.finditer(prose)), len(prose)]:
        sentence = prose[begin:end]
        if not PASSED_OVER.search(sentence):
            for match in (*INTERVAL.finditer(sentence), *RANGE.finditer(sentence)):
                low, high = (_plain(end) for end in match.groups()[-2:])
                if not {(low, high), (f"-{high}", f"-{low}")} & found:
                    yield prose[: begin + match.start()].count("\n") + 1, " ".join(match[0].split())
        begin = end


def intervals(reference: Path, pages: Iterable[str]) -> set[Ends]:
    """Return the ends of all intervals of committed contrasts and claims, and of those in the blocks of some pages.

    They are text, to as many decimals as prose may have, with a sign where they are negative.
    """
    blocks = [block for page in pages for block in BLOCK.findall(page)]
    found = {(_plain(low), _plain(high)) for block in blocks for low, high in INTERVAL.findall(block)}
    for path in (*reference.glob("*/tables/contrasts.csv"), *reference.glob("*/tables/claims.csv")):
        for low, high in pd.read_csv(path, low_memory=False)[["low", "high"]].dropna().to_numpy(float):
            found |= {(f"{low:.{digits}f}", f"{high:.{digits}f}") for digits in DECIMALS}
    return found


def _plain(number: str) -> str:
    return number.replace("−", "-").lstrip("+")
