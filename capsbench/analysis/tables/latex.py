"""A table for LaTeX: floats that fit a page, or one of its two columns.

The widths of texts are estimated, a little too wide, from those of Computer Modern. A table that fits as it is keeps
its natural columns; else the widest columns wrap. What is longer than a page goes on in another float.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from capsbench.analysis.tables.model import Grid, Row, Table
from capsbench.analysis.tables.text import MISSING, with_minus_signs

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$",
    "†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}", "¶": r"\P{}",
    "−": "$-$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "|": r"$|$",
    "µ": r"$\mu$", "→": r"$\to$", "²": "$^2$", "√": r"$\sqrt{}$", "°": r"$^\circ$", "…": r"\dots{}", '"': "''",
    "\u00a0": "~", "“": "``", "”": "''", "’": "'", "–": "--",
}  # fmt: skip
_PREAMBLE = r"% needs \usepackage{array, booktabs}"
# points: of a page and of a column in an article in two columns, a little less than these are
_PAGE, _COLUMN = 462.0, 222.0
_SEPARATION = 6.0  # between two columns
_SIZES = {r"\footnotesize": 1.0, r"\scriptsize": 0.9, r"\tiny": 0.72}
_LINES = 50  # of a float, and as many more for notes as _SPARE; others do not fit a page below the caption
_SPARE = 4
_LITTLE = 12.0  # what a column lacks, in points, where it rather does not wrap than leave more to others
_LOOSE = 1.15  # a text that wraps takes as much more than its width
_NUMBER = re.compile(r"[-−+<>]?[\d.,]+( %)?|-")
_WIDTHS = {**dict.fromkeys("ilj.,;:'|! ", 2.6), **dict.fromkeys("fjrts()[]/-I", 3.6), **dict.fromkeys("mwMW%+=<>", 8.2)}


def latex(table: Table) -> str:
    """Return the floats of a table, all under one label."""
    floats = _floats(table)
    single = len(floats) == 1 and all(_natural(each) <= _COLUMN for each in table.printed) and len(table.notes) <= 3
    environment = "table" if single else "table*"
    lines = [_PREAMBLE]
    for n, parts in enumerate(floats):
        lines += [
            rf"\begin{{{environment}}}[tbp]",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}\setlength{\belowcaptionskip}{4pt}",
        ]
        title = escape(table.title if n == 0 else f"{table.title} (continued)")
        lines += [r"\addtocounter{table}{-1}"] if n else []
        lines += [rf"\caption{{{title}}}", *([rf"\label{{tab:{table.name}}}"] if n == 0 else [])]
        for part in parts:
            lines += [_note(part)] if isinstance(part, str) else part.lines(_COLUMN if single else _PAGE)
        lines += [rf"\end{{{environment}}}"]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Return text as LaTeX sets it: signs in math, minus signs before numbers."""
    return "".join(_SPECIAL.get(letter, letter) for letter in with_minus_signs(text))


@dataclass(frozen=True)
class _Tabular:
    """Grids with the same columns, set as one: their headings stand between the rows.

    right: which columns are set flush right.
    """

    grids: tuple[Grid, ...]
    right: tuple[bool, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return self.grids[0].columns

    @property
    def rows(self) -> list[Row]:
        return [row for each in self.grids for row in each.rows]

    def lines(self, available: float) -> list[str]:
        size, widths = _fit(self.columns, self.rows, available)
        kinds = [
            "lr"[right] if width is None else _wrapping(width / available, "raggedleft" if right else "raggedright")
            for width, right in zip(widths, self.right, strict=True)
        ]
        found = [rf"{{{size}" if size != r"\footnotesize" else "{"]
        found += [rf"\begin{{tabular}}{{@{{}}{''.join(kinds)}@{{}}}}", r"\toprule"]
        found.append(_cells(self.columns))
        for each in self.grids:
            found.append(r"\midrule")
            if each.heading:
                found.append(rf"\multicolumn{{{len(self.columns)}}}{{@{{}}l}}{{\emph{{{escape(each.heading)}}}}} \\")
            apart = [r"\addlinespace[2pt]"] if any(widths) else []  # rows of several lines would run together
            for n, row in enumerate(each.rows):
                found += [*(apart if n else []), _cells(row.texts)]
        return [*found, r"\bottomrule", r"\end{tabular}\par}", r"\medskip"]


def _wrapping(share: float, ragged: str) -> str:
    return rf">{{\{ragged}\arraybackslash}}p{{{share:.3f}\linewidth}}"


def _cells(texts: Sequence[str]) -> str:
    # a row that begins with [ would be taken for an option of the line before
    cells = [escape(_unbroken(text)) for text in texts]
    return ("{}" if cells[0].startswith("[") else "") + " & ".join(cells) + r" \\"


def _unbroken(text: str) -> str:
    """Keep on one line what is one number: an interval, a mean with its spread, a count out of another, a pair."""
    text = re.sub(r"(?<=\d), (?=[-−+]?[\d.]+\])", ",\u00a0", text)
    return re.sub(r"(?<=\d) (±|of|/|−) (?=\d)", "\u00a0\\1\u00a0", text)


def _note(text: str) -> str:
    breakable = re.sub(r"(\\_|(?<=\w)/)", r"\1\\allowbreak{}", escape(text))
    return rf"{{\raggedright {breakable}\par}}\smallskip"


def _floats(table: Table) -> list[list[_Tabular | str]]:
    """Share out grids and notes over as many floats as they need."""
    floats: list[list[_Tabular | str]] = [[]]
    left = float(_LINES)
    for grids in _alike(table.printed):
        pending: list[Grid] = []
        left -= 3
        fitted = _fit(grids[0].columns, [row for each in grids for row in each.rows], _PAGE)
        right = _flush_right(grids)
        for each in grids:
            kept: list[Row] = []
            left -= 1 + bool(each.heading)
            for row in each.rows:
                height = _height(row, *fitted)
                if left < height:
                    pending += [Grid(each.heading, each.columns, tuple(kept))] if kept else []
                    if pending:
                        floats[-1].append(_Tabular(tuple(pending), right))
                    floats.append([])
                    pending, kept, left = [], [], float(_LINES - 4)
                kept.append(row)
                left -= height
            pending.append(Grid(each.heading, each.columns, tuple(kept)))
        floats[-1].append(_Tabular(tuple(pending), right))
    for note in (table.caption, *table.notes):
        height = 1.3 + _width(note) // _PAGE
        if left + _SPARE < height:
            floats.append([])
            left = float(_LINES)
        floats[-1].append(note)
        left -= height
    return floats


def _alike(grids: Sequence[Grid]) -> list[list[Grid]]:
    """Put neighbours with the same columns together."""
    found: list[list[Grid]] = []
    for each in grids:
        if found and found[-1][0].columns == each.columns:
            found[-1].append(each)
        else:
            found.append([each])
    return found


def _flush_right(grids: Sequence[Grid]) -> tuple[bool, ...]:
    """Say which columns hold numbers, over all floats that they are shared out to; dashes alone are none."""
    columns = list(zip(*(row.texts for each in grids for row in each.rows), strict=True))
    found = [all(map(_NUMBER.fullmatch, column)) and set(column) != {MISSING} for column in columns]
    return tuple(found) or (False,) * len(grids[0].columns)


def _height(row: Row, size: str, widths: Sequence[float | None]) -> float:
    """Return the lines that a row takes."""
    wrapped = [_width(text) * _SIZES[size] / width for text, width in zip(row.texts, widths, strict=True) if width]
    return max([1.0, *(1 + int(_LOOSE * lines) for lines in wrapped)]) + (0.2 if wrapped else 0.0)


def _fit(columns: Sequence[str], rows: Sequence[Row], available: float) -> tuple[str, list[float | None]]:
    """Return the size of the letters, and the width of each column that wraps; None for those that keep theirs."""
    texts = [columns, *(row.texts for row in rows)]
    for size, factor in _SIZES.items():
        natural = [factor * max(map(_width, column)) for column in zip(*texts, strict=True)]
        words = [factor * max(_width(word) for text in column for word in _unbroken(text).split(" "))
                 for column in zip(*texts, strict=True)]  # fmt: skip
        budget = available - _SEPARATION * (len(columns) - 1)
        if sum(natural) <= budget:
            return size, [None] * len(columns)
        widths = _wrapped(natural, words, budget)
        if widths is not None:
            return size, [None if width >= whole else width for width, whole in zip(widths, natural, strict=True)]
    share = budget / sum(words)  # too many columns for any letters: let them wrap where they must
    return size, [word * share for word in words]


def _wrapped(natural: Sequence[float], words: Sequence[float], budget: float) -> list[float] | None:
    """Return widths that take as few lines as the budget allows, with as few columns that wrap as these lines allow.

    None where the longest words are wider than the budget.
    """
    floor = 0.7 * budget / len(natural)  # a short column is not wrapped for a little more of a long one
    least = [min(width, max(word, floor)) for width, word in zip(natural, words, strict=True)]
    least = least if sum(least) <= budget else list(words)
    if sum(least) > budget:
        return None
    widths, lines = least, 2
    while lines < _LINES:
        needed = [min(width, max(low, _LOOSE * width / lines)) for width, low in zip(natural, least, strict=True)]
        if sum(needed) <= budget:
            widths = needed
            break
        lines += 1
    wanting = [width - given for width, given in zip(natural, widths, strict=True)]
    left = budget - sum(widths)
    for n in sorted(range(len(widths)), key=wanting.__getitem__):
        if wanting[n] > min(left, _LITTLE):
            break
        left -= wanting[n]
        widths[n], wanting[n] = natural[n], 0.0
    share = min(1.0, left / sum(wanting))
    return [given + share * more for given, more in zip(widths, wanting, strict=True)]


def _natural(each: Grid) -> float:
    texts = [each.columns, *(row.texts for row in each.rows)]
    widths = [max(map(_width, column)) for column in zip(*texts, strict=True)]
    return sum(widths) + _SEPARATION * (len(widths) - 1)


def _width(text: str) -> float:
    """Estimate the width of a text in footnotesize, in points."""
    letters = with_minus_signs(text)
    return sum(_WIDTHS.get(letter, 6.8 if letter.isupper() or not letter.isascii() else 4.7) for letter in letters)
