"""The answers of the first page and of docs/answers.md, from committed contrasts. Used by docs/generate.py.

docs/questions.py has the questions, and the places in their answers that are filled here. A contrast that shows
something else than its place says stops the generator, so that no answer outlives its numbers.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from at_test import one_iteration_at_test
from contrasted import difference, is_post_hoc, is_same, is_shown, is_uncorrected, read_contrasts
from findings import TITLES, named, table
from fitted import on_validation_images
from picture import draw_anew
from question import AT_TEST, ON_VALIDATION, Contrast, Question
from questions import QUESTIONS

from capsbench.analysis.contrasts import MARK_POST_HOC, digits_for, interval_of_difference, margin_text
from capsbench.analysis.measures import NAME as MEASURES
from capsbench.analysis.plots.contrasts import side_by_side
from capsbench.analysis.plots.forest import Row
from capsbench.analysis.plots.style import styled

PLACE = re.compile(r"\{(?P<key>\w+)@(?P<data>[\w-]+?)(?P<shows>[<>]\??|=|~|!)\}")
MEANING = {
    ">": "a higher error",
    "<": "a lower error",
    ">?": "a higher error that does not hold after Holm's correction",
    "<?": "a lower error that does not hold after Holm's correction",
    "=": "no difference",
    "~": "the same error, within a tenth",
    "!": "nothing: a network stayed at chance",
    "": "nothing: there are too few seeds",
}
CELL = re.compile(r"(\w+)@([\w-]+)(†?)")
DAGGER = "†"
REMARK = f"{DAGGER}: shown in its family, but not in a larger one that was used or tried."
FULL = 5  # seeds; a cell from fewer says so


def answers(reference: Path, *studies: str) -> str:
    """Return a line per question.

    studies: all that the questions are about, so that `capsbench verify` compares the block that names them; after
    them `brief` for the answers in words alone, `table` for a table of their contrasts.

    Raises ValueError for other studies, and for a contrast that does not show what its answer says.
    """
    found = _read(reference)
    form = studies[-1] if studies[-1:] in (("brief",), ("table",)) else ""
    if sorted(studies[: -1 if form else None]) != sorted(found):
        raise ValueError(f"the answers are from {' and '.join(found)}")
    full = [_answer(question, found) for question in QUESTIONS]
    if form == "table":
        return _table(found)
    told = [question.brief for question in QUESTIONS] if form else full
    return "\n".join(f"- **{question.asks}** {answer}" for question, answer in zip(QUESTIONS, told, strict=True))


def draw_answers(reference: Path, picture: Path, check: bool) -> bool:
    """Draw all contrasts of the questions, if the picture shows other numbers; returns whether it does.

    check: only look.
    """
    titles, layouts = _rows(_read(reference))
    remark = REMARK if any(DAGGER in row.mark for rows in layouts for row in rows) else ""
    return draw_anew(picture, (titles, layouts, remark), lambda: styled(side_by_side)(titles, layouts, remark), check)


def _read(reference: Path) -> dict[str, pd.DataFrame]:
    """Return the contrasts of all studies that the questions name, with those at test and on validation images."""
    studies = {contrast.study for question in QUESTIONS for contrast in question.contrasts.values()}
    found = {}
    for study in sorted(studies):
        found[study] = read_contrasts(reference, study)
        if (reference / study / MEASURES).exists():
            at_test = one_iteration_at_test(reference, study)
            at_test = at_test.assign(contrast=at_test["contrast"] + AT_TEST)
            found[study] = pd.concat([found[study], at_test], ignore_index=True)
        if any(of.study == study and of.name.endswith(ON_VALIDATION) for q in QUESTIONS for of in q.contrasts.values()):
            validated = on_validation_images(reference, study)
            validated = validated.assign(contrast=validated["contrast"] + ON_VALIDATION)
            found[study] = pd.concat([found[study], validated], ignore_index=True)
    return found


def _compared(found: dict[str, pd.DataFrame]) -> Iterator[tuple[Question, str, dict[str, tuple[Any, str]]]]:
    """Yield each row of figure and table: its question, what is compared, and by data set a contrast and its dagger."""
    for question in QUESTIONS:
        for compared, places in question.rows.items():
            cells = {}
            for key, data, dagger in CELL.findall(places):
                contrast = _find(found, question.contrasts[key], data)
                if contrast is None:
                    raise ValueError(f"no result of '{question.contrasts[key].name}' on {data}")
                cells[data] = contrast, dagger
            yield question, compared, cells


def _titles(found: dict[str, pd.DataFrame]) -> dict[str, str]:
    """Return the data sets that the rows have, and what they are called."""
    titles: dict[str, str] = {}
    for _, _, cells in _compared(found):
        for data, (contrast, _) in cells.items():
            copy = contrast["unofficial"] if isinstance(contrast["unofficial"], str) else ""
            titles.setdefault(data, named(TITLES[data], copy))
    return {data: titles[data] for data in TITLES if data in titles}


def _table(found: dict[str, pd.DataFrame]) -> str:
    """Return contrasts, a column per data set, below the titles of their questions."""
    titles = _titles(found)
    lines = [["error of the first minus that of the second", *titles.values()]]
    for question, own in itertools.groupby(_compared(found), key=lambda row: row[0]):
        lines.append([f"**{question.title}**", *[""] * len(titles)])
        for _, compared, cells in own:
            lines.append([compared, *(_cell(*cells[data]) if data in cells else "" for data in titles)])
    return table(lines)


def _cell(contrast: Any, dagger: str) -> str:
    # a cell may be broken before its "[" alone
    shown = difference(contrast).replace("≈ ", "≈\u00a0").replace(", ", ",\u00a0")
    return shown + dagger + ("" if contrast["n"] >= FULL else f" (n={contrast['n']})")


def _answer(question: Question, found: dict[str, pd.DataFrame]) -> str:
    """Return the answer with its places filled, and a list below it; all places are checked, printed or not."""

    def filled(place: re.Match[str]) -> str:
        contrast = question.contrasts[place["key"]]
        row = _find(found, contrast, place["data"])
        if row is None:
            raise ValueError(f"no result of '{contrast.name}' on {place['data']} in {contrast.study}")
        if (shows := _shows(row)) != place["shows"]:
            raise ValueError(
                f"'{contrast.name}' on {place['data']} shows {MEANING[shows]}, and the answer to '{question.asks}' "
                f"says {MEANING[place['shows']]}: write that answer anew, in docs/questions.py"
            )
        if shows == "!" and place.string is not question.also:
            raise ValueError(f"'{contrast.name}' on {place['data']}: a network stayed at chance; do not print it")
        if shows == "~":
            return f"{interval_of_difference(row['low'], row['high'])[:-1]}; ±{margin_text(row['margin'])}]"
        return interval_of_difference(row["low"], row["high"]) if shows == "=" else _range(row)

    answer, more, also = (PLACE.sub(filled, text) for text in (question.answer, question.more, question.also))
    if left := re.search(r"\{.*?\}|[{}]", answer + more + also):
        raise ValueError(f"{left[0]} in the answer to '{question.asks}' is no place; docs/question.py has their forms")
    return answer + "".join(f"\n    - {line}" for line in more.splitlines())


def _find(found: dict[str, pd.DataFrame], contrast: Contrast, data: str) -> Any:
    """Return the row of a contrast on a data set, None where there is none. Raises ValueError for two."""
    rows = found[contrast.study]
    rows = rows[(rows["contrast"] == contrast.name) & (rows["data_set"] == data)]
    if len(rows) > 1:
        raise ValueError(f"{len(rows)} results of '{contrast.name}' on {data} in {contrast.study}")
    return None if rows.empty else rows.iloc[0]


def _shows(row: Any) -> str:
    """Return what a contrast has shown, as a place has it; empty where nothing can be said."""
    sign = ">" if row["mean"] > 0 else "<"
    if is_shown(row):
        return sign
    if is_same(row):
        return "~"
    if is_uncorrected(row):
        return f"{sign}?"
    if row["at_chance"]:
        return "!"
    return "" if row["low"] != row["low"] else "="


def _range(row: Any) -> str:
    """Return "0.56 to 0.92": an interval without its sign."""
    ends = sorted(abs(row[end]) for end in ("low", "high"))
    digits = digits_for(row["low"], row["high"])
    return f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"


def _rows(found: dict[str, pd.DataFrame]) -> tuple[list[str], list[list[Row]]]:
    """Return the titles of the figure's panels, and the rows of each."""
    titles = _titles(found)
    layouts = []
    for data in titles:
        rows: list[Row] = []
        for question, own in itertools.groupby(_compared(found), key=lambda row: row[0]):
            rows.append(Row(question.title, heading=True))
            rows += [_row(compared, *cells.get(data, (None, ""))) for _, compared, cells in own]
        layouts.append(rows)
    return [*titles.values()], layouts


def _row(compared: str, contrast: Any, dagger: str) -> Row:
    if contrast is None:
        return Row(compared, quiet=True)
    return Row(
        compared, mean=contrast["mean"], low=contrast["low"], high=contrast["high"], points=list(_by_seed(contrast)),
        filled=is_shown(contrast), same=is_same(contrast), mark=dagger + MARK_POST_HOC * is_post_hoc(contrast),
        margin=0.0 if contrast["p_same"] != contrast["p_same"] else contrast["margin"],
    )  # fmt: skip


def _by_seed(row: Any) -> Iterator[float]:
    """Yield the differences of "0: -0.37; 1: -0.35"."""
    for part in str(row["differences"]).split("; "):
        yield float(part.split(": ")[1])
