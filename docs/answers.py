"""The questions that the first page answers, from the contrasts of the committed studies. Used by docs/generate.py.

An answer is prose with places for what contrasts have shown:

    {KEY@DATA>}    a higher error, after Holm's correction: "0.56 to 0.92", the interval
    {KEY@DATA<}    a lower error, after Holm's correction: the same
    {KEY@DATA>?}   a higher error that does not hold after Holm's correction; {KEY@DATA<?} a lower one
    {KEY@DATA=}    no difference was shown: "[−0.21, +0.19]"

A contrast that shows something else than its place says stops the generator, so that no answer outlives its numbers.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from contrasted import is_shown, is_uncorrected, read_contrasts
from findings import named
from PIL import Image, PngImagePlugin

from capsbench.analysis.contrasts import digits_for, interval_of_difference
from capsbench.analysis.plots.contrasts import side_by_side
from capsbench.analysis.plots.files import save_figure
from capsbench.analysis.plots.forest import Row
from capsbench.analysis.plots.style import styled
from capsbench.study import catalogue

PLACE = re.compile(r"\{(?P<key>\w+)@(?P<data>[\w-]+?)(?P<shows>[<>]\??|=)\}")
MEANING = {
    ">": "a higher error",
    "<": "a lower error",
    ">?": "a higher error that does not hold after Holm's correction",
    "<?": "a lower error that does not hold after Holm's correction",
    "=": "no difference",
    "": "nothing: a network stayed at chance, or there are too few seeds",
}
DRAWN = ("mnist", "smallnorb", "multimnist")  # data sets of the figure


@dataclass(frozen=True)
class Contrast:
    """A contrast of a committed study, and what the figure calls it below the title of its question."""

    study: str
    name: str
    label: str


@dataclass(frozen=True)
class Question:
    """A question, its title in the figure, the answer, and the contrasts that places name by KEY.

    also: places that must hold for the answer to stand, and are not printed.
    """

    asks: str
    title: str
    answer: str
    contrasts: dict[str, Contrast]
    also: str = ""


QUESTIONS = (
    Question(
        "Is CapsNet better than a CNN of its size? Not here.",
        "CapsNet against a CNN of its size",
        "Its error is {cnn@mnist>} points higher on MNIST and {cnn@smallnorb>} on smallNORB; with decoder, "
        "{decoder@multimnist>} on MultiMNIST. After 30 epochs it is {long@mnist>} points higher on MNIST and "
        "{long@smallnorb>} on smallNORB. With residual features in place of its first convolution, no difference was "
        "shown on MNIST {residual@mnist=}.",
        {
            "cnn": Contrast(
                "cpu", "CapsNet with dynamic routing (3 iterations) against a CNN of its size", "15 epochs"
            ),
            "decoder": Contrast("cpu", "CapsNet with decoder against a CNN of its size", "15 epochs, with decoder"),
            "long": Contrast("diagnostics", "CapsNet against a CNN of its size, both after 30 epochs", "30 epochs"),
            "residual": Contrast(
                "diagnostics",
                "CapsNet with residual features against the CNN of CapsNet's size",
                "15 epochs, residual features",
            ),
        },
    ),
    Question(
        "Is routing better than equal couplings? Some routings are, on MNIST.",
        "Routings, each under its own loss, against equal couplings",
        "There dynamic routing errs {dynamic@mnist<} points less, EM routing {em@mnist<} and Heinsen's "
        "{heinsen@mnist<}; sparse and self-routing err more. On smallNORB no routing was shown to err less under its "
        "own loss. With loss and children equal too, self-routing errs {self@smallnorb<} points less on smallNORB and "
        "{self@mnist>} more on MNIST.",
        {
            "dynamic": Contrast("cpu", "dynamic (3 iterations) against uniform routing", "dynamic (3 iterations)"),
            "em": Contrast(
                "cpu", "EM (3 iterations) against uniform routing, each under its own loss", "EM (3 iterations)"
            ),
            "heinsen": Contrast("cpu", "Heinsen against uniform routing, each under its own loss", "Heinsen"),
            "bayes": Contrast(
                "cpu", "variational Bayes against uniform routing, each under its own loss", "variational Bayes"
            ),
            "inverted": Contrast(
                "cpu", "inverted dot-product against uniform routing, each under its own loss", "inverted dot-product"
            ),
            "attention": Contrast("cpu", "attention against uniform routing", "attention"),
            "sparse": Contrast("cpu", "sparse against uniform routing", "sparse"),
            "other": Contrast("cpu", "self-routing against uniform routing, each under its own loss", "self-routing"),
            "self": Contrast(
                "diagnostics",
                "self-routing against uniform routing, equal children and loss",
                "self-routing, both with its children and loss",
            ),
        },
        also="{sparse@mnist>} {other@mnist>} {bayes@mnist<?} {inverted@mnist<?} {attention@mnist=} "
        "{dynamic@smallnorb=} {em@smallnorb>?} {heinsen@smallnorb=} {sparse@smallnorb=} {other@smallnorb>} "
        "{attention@smallnorb=} {bayes@smallnorb>?} {inverted@smallnorb=}",
    ),
    Question(
        "EM or dynamic routing? EM on MNIST, dynamic on smallNORB.",
        "EM against dynamic routing",
        "Both with three iterations under the spread loss, EM routing errs {spread@mnist<} points less on MNIST; on "
        "smallNORB, after 30 epochs, {spread_long@smallnorb>} points more. On MultiMNIST, both under the margin loss, "
        "its error is {pairs@multimnist>} points higher at our default inverse temperature; at ten times that, no "
        "difference was shown {warm@multimnist=}.",
        {
            "own": Contrast(
                "cpu",
                "EM (3 iterations) against dynamic routing (3), each under its paper's loss",
                "3 iterations, each under its paper's loss",
            ),
            "own_long": Contrast(
                "diagnostics",
                "EM (3) against dynamic routing (3), each under its paper's loss, 30 epochs",
                "the same after 30 epochs",
            ),
            "spread": Contrast(
                "cpu",
                "EM (3 iterations) against dynamic routing (3), both under the spread loss",
                "3 iterations, both under the spread loss",
            ),
            "spread_long": Contrast(
                "diagnostics",
                "EM (3) against dynamic routing (3), both under the spread loss, 30 epochs",
                "the same after 30 epochs",
            ),
            "pairs": Contrast(
                "cpu",
                "EM (2 iterations) against dynamic routing (3), both with decoder and margin loss",
                "EM with 2 iterations, both with decoder and margin loss",
            ),
            "warm": Contrast(
                "diagnostics",
                "EM at inverse temperature 0.2 against dynamic routing, both with margin loss",
                "the same at ten times the inverse temperature",
            ),
        },
        also="{spread@smallnorb>?} {own@mnist<?} {own@smallnorb>?} {own_long@smallnorb>}",
    ),
    Question(
        "Do more iterations help? Three do on MNIST.",
        "Iterations of routing",
        "Dynamic routing with three errs {three@mnist<} points less there than with one; no difference was shown on "
        "smallNORB {three@smallnorb=} or MultiMNIST {decoder@multimnist=}, nor for five against three on MNIST "
        "{five@mnist=}. EM routing needs two: with one it errs {em@mnist<} points more on MNIST and "
        "{em@smallnorb<} on smallNORB.",
        {
            "three": Contrast("cpu", "dynamic routing: three iterations against one", "dynamic, 3 against 1"),
            "decoder": Contrast(
                "cpu",
                "dynamic routing with decoder: three iterations against one",
                "dynamic with decoder, 3 against 1",
            ),
            "five": Contrast("cpu", "dynamic routing: five iterations against three", "dynamic, 5 against 3"),
            "em": Contrast("cpu", "EM routing: two iterations against one", "EM, 2 against 1"),
        },
        also="{decoder@mnist<} {decoder@smallnorb=} {five@smallnorb=}",
    ),
    Question(
        "Does the decoder help? That was not shown.",
        "Decoder",
        "With it, the error differs by {dynamic@mnist=} points on MNIST and {dynamic@smallnorb=} on smallNORB. On "
        "MultiMNIST it is {dynamic@multimnist<?} lower, which does not hold after Holm's correction. These decoders "
        "have hardly learnt to draw.",
        {"dynamic": Contrast("cpu", "dynamic routing: with a decoder against without", "with against without")},
    ),
    Question(
        "Are newer capsule networks better than a ResNet-20? Two are, with about twice its parameters.",
        "Newer capsule networks against a ResNet-20",
        "Efficient-CapsNet errs {efficient@mnist<} points less on MNIST and, with batch norm and ReLU in place of its "
        "authors' instance norm and leaky ReLU, {relu@smallnorb<} less on smallNORB; the self-routing CapsNet "
        "{self@smallnorb<} less there than a ResNet-20 of its backbone's widths.",
        {
            "efficient": Contrast(
                "cpu", "Efficient-CapsNet against a ResNet-20 of less than half its size", "Efficient-CapsNet"
            ),
            "relu": Contrast(
                "diagnostics",
                "Efficient-CapsNet with ReLU and batch norm against a ResNet-20",
                "Efficient-CapsNet with ReLU and batch norm",
            ),
            "self": Contrast(
                "diagnostics",
                "self-routing CapsNet against a ResNet-20 of its backbone's widths",
                "self-routing CapsNet, ResNet-20 of its widths",
            ),
        },
        also="{efficient@smallnorb>}",
    ),
)


def answers(reference: Path) -> str:
    """Return a line per question. Raises ValueError for a contrast that does not show what its answer says."""
    found = _read(reference)
    return "\n".join(f"- **{question.asks}** {_answer(question, found)}" for question in QUESTIONS)


def draw_answers(reference: Path, picture: Path, check: bool) -> bool:
    """Draw all contrasts of the questions, if the picture shows other numbers; returns whether it does.

    check: only look.
    """
    titles, layouts = _rows(_read(reference))
    digest = hashlib.sha256(repr((titles, layouts)).encode()).hexdigest()
    if picture.exists() and Image.open(picture).info.get("Rows") == digest:
        return False
    if not check:
        _, svg = save_figure(styled(side_by_side)(titles, layouts), picture.parent, picture.stem)
        svg.unlink()
        told = PngImagePlugin.PngInfo()
        told.add_text("Rows", digest)
        drawn = Image.open(picture)
        drawn.save(picture, optimize=True, dpi=drawn.info["dpi"], pnginfo=told)
    return True


def _read(reference: Path) -> dict[str, pd.DataFrame]:
    studies = {contrast.study for question in QUESTIONS for contrast in question.contrasts.values()}
    return {study: read_contrasts(reference, study) for study in sorted(studies)}


def _answer(question: Question, found: dict[str, pd.DataFrame]) -> str:
    def filled(place: re.Match[str]) -> str:
        contrast = question.contrasts[place["key"]]
        row = _find(found, contrast, place["data"])
        if row is None:
            raise ValueError(f"no result of '{contrast.name}' on {place['data']} in {contrast.study}")
        if (shows := _shows(row)) != place["shows"]:
            raise ValueError(
                f"'{contrast.name}' on {place['data']} shows {MEANING[shows]}, and the answer to '{question.asks}' "
                f"says {MEANING[place['shows']]}: write that answer anew, in docs/answers.py"
            )
        return interval_of_difference(row["low"], row["high"]) if shows == "=" else _range(row)

    PLACE.sub(filled, question.also)
    return PLACE.sub(filled, question.answer)


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
    if is_uncorrected(row):
        return f"{sign}?"
    return "" if isinstance(row["stuck"], str) or row["low"] != row["low"] else "="


def _range(row: Any) -> str:
    """Return "0.56 to 0.92": an interval without its sign."""
    ends = sorted(abs(row[end]) for end in ("low", "high"))
    digits = digits_for(row["low"], row["high"])
    return f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"


def _rows(found: dict[str, pd.DataFrame]) -> tuple[list[str], list[list[Row]]]:
    """Return the titles of the figure's panels, and the rows of each."""
    titles, layouts = [], []
    for data in DRAWN:
        rows: list[Row] = []
        copies = set()
        for question in QUESTIONS:
            rows.append(Row(question.title, heading=True))
            for contrast in question.contrasts.values():
                row = _find(found, contrast, data)
                if row is None:
                    rows.append(Row(contrast.label, quiet=True))
                    continue
                copies.add(row["unofficial"] if isinstance(row["unofficial"], str) else "")
                rows.append(
                    Row(
                        contrast.label, mean=row["mean"], low=row["low"], high=row["high"],
                        points=list(_by_seed(row)), filled=is_shown(row),
                    )
                )  # fmt: skip
        titles.append(named(catalogue()[data].title, max(copies, default="")))
        layouts.append(rows)
    return titles, layouts


def _by_seed(row: Any) -> Iterator[float]:
    """Yield the differences of "0: -0.37; 1: -0.35"."""
    for part in str(row["differences"]).split("; "):
        yield float(part.split(": ")[1])
