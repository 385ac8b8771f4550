"""What a question of the first page and of docs/answers.md consists of. docs/questions.py has the questions.

An answer is prose with places for what contrasts have shown:

    {KEY@DATA>}    a higher error, after Holm's correction: "0.56 to 0.92", the interval
    {KEY@DATA<}    a lower error, after Holm's correction: the same
    {KEY@DATA>?}   a higher error that does not hold after Holm's correction; {KEY@DATA<?} a lower one
    {KEY@DATA=}    no difference was shown: "[−0.21, +0.19]"
    {KEY@DATA~}    the same error, within a tenth: "[−0.69, +0.51; ±1.5]", the interval and the tenth
    {KEY@DATA!}    a network stayed at chance in some seeds; only in what is not printed
"""

from dataclasses import dataclass, field

AT_TEST = ": one iteration at test"  # VARIANT + this names a row of docs/at_test.py
ON_VALIDATION = ": on validation images"  # CONTRAST + this names one that was not declared, see docs/fitted.py


@dataclass(frozen=True)
class Contrast:
    """A contrast of a committed study."""

    study: str
    name: str


@dataclass(frozen=True)
class Question:
    """A question, its title in figure and table, the answer, and the contrasts that places name by KEY.

    brief: the answer of README, without numbers, which stands as long as all places of the others do.
    answer: that of docs/answers.md, with more after it in a line per point.
    also: places that must hold for the answer to stand, and are not printed.
    rows: of figure and table, below the title: what is compared -> "KEY@DATA KEY@DATA", a cell each; a † after DATA is
        shown.
    """

    asks: str
    title: str
    brief: str
    answer: str
    contrasts: dict[str, Contrast]
    more: str = ""
    also: str = ""
    rows: dict[str, str] = field(default_factory=dict)
