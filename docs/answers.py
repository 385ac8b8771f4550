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
from at_test import one_iteration_at_test
from contrasted import is_shown, is_uncorrected, read_contrasts
from findings import named
from PIL import Image, PngImagePlugin

from capsbench.analysis.contrasts import digits_for, interval_of_difference
from capsbench.analysis.measures import NAME as MEASURES
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
AT_TEST = ": one iteration at test"  # VARIANT + this names a row of docs/at_test.py
DRAWN = ("mnist", "smallnorb", "multimnist")  # data sets of the figure


@dataclass(frozen=True)
class Contrast:
    """A contrast of a committed study.

    label: what the figure calls it, below the title of its question; empty: it is not drawn.
    """

    study: str
    name: str
    label: str


@dataclass(frozen=True)
class Question:
    """A question, its title in the figure, the answer, and the contrasts that places name by KEY.

    answer: what README says. more: what the site's first page says after it.
    also: places that must hold for the answer to stand, and are not printed.
    """

    asks: str
    title: str
    answer: str
    contrasts: dict[str, Contrast]
    more: str = ""
    also: str = ""


QUESTIONS = (
    Question(
        "Is CapsNet better than a CNN of its size? Not with its own features.",
        "CapsNet against a CNN of its size",
        "Its error is {cnn@mnist>} points higher on MNIST, {cnn@smallnorb>} on smallNORB and, with decoder, "
        "{decoder@multimnist>} on MultiMNIST; after 30 epochs {long@mnist>} on MNIST and {long@smallnorb>} on "
        "smallNORB. With residual features, a small residual network with batch norm in place of its first "
        "convolution, no difference was shown on MNIST {residual@mnist=} or smallNORB {residual@smallnorb=}. On "
        "MultiMNIST its error is then {pairs@multimnist<} points lower than the CNN's, but not shown to be lower than "
        "that of a ResNet-20 {resnet@multimnist=}.",
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
            "pairs": Contrast(
                "diagnostics",
                "CapsNet with decoder and residual features against the CNN of CapsNet's size",
                "15 epochs, residual features, with decoder",
            ),
            "decayed": Contrast(
                "diagnostics",
                "CapsNet with decoder and residual features against that CNN, whose rate decays",
                "",
            ),
            "resnet": Contrast(
                "diagnostics",
                "CapsNet with decoder and residual features against a ResNet-20",
                "the same against a ResNet-20",
            ),
        },
        more="Where the learning rate of the CNN on MultiMNIST decays as on other data, CapsNet with residual "
        "features is {decayed@multimnist<} points ahead of it.",
    ),
    Question(
        "Is routing better than equal couplings (uniform routing)? Some routings are, on MNIST.",
        "Routings, each under its own loss, against equal couplings",
        "Each under its own loss, dynamic routing has an error {dynamic@mnist<} points lower there, EM routing "
        "{em@mnist<} and Heinsen's {heinsen@mnist<}; sparse and self-routing have a higher one. On smallNORB, each "
        "under its own loss, none was shown to have a lower error. With residual features the lead of dynamic routing "
        "on MNIST was not shown {features@mnist=}.",
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
                "both with self-routing's capsules and loss: self-routing",
            ),
            "features": Contrast("diagnostics", "residual features: dynamic against uniform routing", ""),
            "random": Contrast("diagnostics", "dynamic routing (3 iterations) against random couplings", ""),
            "draw": Contrast(
                "diagnostics", "dynamic routing (3 iterations) against random couplings, another draw", ""
            ),
            "first": Contrast("diagnostics", "random couplings against equal couplings", "random couplings"),
            "second": Contrast(
                "diagnostics",
                "random couplings, another draw, against equal couplings",
                "random couplings, another draw",
            ),
        },
        more="On smallNORB that of self-routing is {other@smallnorb>} points higher, but {self@smallnorb<} lower than "
        "that of equal couplings with its loss and its primary capsules. Couplings drawn once at random have on MNIST "
        "an error {random@mnist<} points higher than dynamic routing.",
        also="{features@smallnorb=} {sparse@mnist>} {other@mnist>} {bayes@mnist<?} {inverted@mnist<?} "
        "{attention@mnist=} {dynamic@smallnorb=} {em@smallnorb>?} {heinsen@smallnorb=} {sparse@smallnorb=} "
        "{attention@smallnorb=} {bayes@smallnorb>?} {inverted@smallnorb=} {self@mnist>} {draw@mnist<} "
        "{random@smallnorb=} {draw@smallnorb=} {first@mnist=} {first@smallnorb=} {second@mnist=} {second@smallnorb=}",
    ),
    Question(
        "EM or dynamic routing? That depends on the data, the loss and the length of training.",
        "EM against dynamic routing",
        "With three iterations each, both under the spread loss, EM's error is {spread@mnist<} points lower on MNIST "
        "and, after 30 epochs, {spread_long@smallnorb>} higher on smallNORB. On MultiMNIST EM with two iterations has "
        "an error {pairs@multimnist>} points higher, both with decoder and margin loss; at ten times our inverse "
        "temperature no difference was shown {warm@multimnist=}.",
        {
            "own": Contrast(
                "cpu",
                "EM (3 iterations) against dynamic routing (3), each under its paper's loss",
                "3 iterations, each under its paper's loss",
            ),
            "hot": Contrast(
                "diagnostics",
                "EM (3) at 0.2 against dynamic routing (3), each under its paper's loss",
                "the same at ten times the inverse temperature",
            ),
            "own_long": Contrast(
                "diagnostics",
                "EM (3) against dynamic routing (3), each under its paper's loss, 30 epochs",
                "each under its paper's loss, 30 epochs",
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
                "EM (2) against dynamic (3), with decoder, margin loss",
            ),
            "warm": Contrast(
                "diagnostics",
                "EM at inverse temperature 0.2 against dynamic routing, both with margin loss",
                "the same at ten times the inverse temperature",
            ),
        },
        more="Each under its paper's loss, EM's error is {own@mnist<?} points lower on MNIST, which does not hold "
        "after Holm's correction but does at ten times our inverse temperature ({hot@mnist<}), and after 30 epochs "
        "{own_long@smallnorb>} higher on smallNORB. After 15 epochs neither difference on smallNORB holds.",
        also="{spread@smallnorb>?} {own@smallnorb>?} {hot@smallnorb>?}",
    ),
    Question(
        "Do more iterations help? In training on MNIST, three of dynamic routing do.",
        "Iterations of routing",
        "One iteration is the same as equal couplings, so this is the difference given above; on smallNORB and "
        "MultiMNIST none was shown. The couplings that come out are nearly equal, and where the same networks are "
        "tested with one iteration no difference was shown: {test@mnist=} points on MNIST, {test@smallnorb=} on "
        "smallNORB. EM routing needs a second iteration at its paper's loss and our inverse temperature: its error is "
        "{em@mnist<} points lower on MNIST and {em@smallnorb<} on smallNORB than with one. With one, "
        "at an inverse temperature of 0.2, not 0.001, and under cross-entropy, no difference from dynamic routing with "
        "three was shown: {sharp@mnist=} on MNIST, {sharp@smallnorb=} on smallNORB.",
        {
            "three": Contrast("cpu", "dynamic routing: three iterations against one", ""),
            "decoder": Contrast(
                "cpu",
                "dynamic routing with decoder: three iterations against one",
                "dynamic with decoder, 3 against 1",
            ),
            "five": Contrast("cpu", "dynamic routing: five iterations against three", "dynamic, 5 against 3"),
            "em": Contrast("cpu", "EM routing: two iterations against one", "EM, 2 against 1"),
            "sharp": Contrast(
                "diagnostics",
                "EM, one iteration, cross-entropy at 0.2, against dynamic routing, margin loss",
                "EM (1), cross-entropy, inverse temperature 0.2, against dynamic (3)",
            ),
            "test": Contrast("cpu", f"capsnet-iterations3{AT_TEST}", "trained with dynamic (3), tested with 1"),
            "em_test": Contrast("cpu", f"capsnet_em-iterations3{AT_TEST}", ""),
            "heinsen_test": Contrast("cpu", f"capsnet_others-heinsen{AT_TEST}", ""),
        },
        more="Three against one in training and at test: {three@smallnorb=} on smallNORB, {decoder@multimnist=} with "
        "decoder on MultiMNIST; five against three: {five@mnist=} on MNIST. Networks trained with three iterations of "
        "EM or Heinsen routing [fail with one at test](results.md#one-iteration-at-test).",
        also="{em_test@mnist>} {em_test@smallnorb>} {heinsen_test@mnist>} {heinsen_test@smallnorb>} {three@mnist<} "
        "{decoder@mnist<} {decoder@smallnorb=} {five@smallnorb=}",
    ),
    Question(
        "Do capsules carry over to affine digits? Not as well as CNNs.",
        "From translated to affine digits",
        "Trained on translated digits and tested on affine images generated from MNIST, CapsNet has an error "
        "{cnn@affnist-generated>} points higher than a CNN of its size and {resnet@affnist-generated>} higher than a "
        "ResNet-20. Dynamic routing was not shown to be better there than equal couplings "
        "{uniform@affnist-generated=}. Under EM routing one seed of five loses three classes. With an inverse "
        "temperature of 0.02 in the class layer too, none does, and the error is {whole@affnist-generated<?} points "
        "lower than under dynamic routing, each under its paper's loss, which does not hold after Holm's correction.",
        {
            "cnn": Contrast("cpu", "CapsNet with dynamic routing (3 iterations) against a CNN of its size", ""),
            "resnet": Contrast("cpu", "CapsNet with dynamic routing (3 iterations) against a ResNet-20", ""),
            "uniform": Contrast("cpu", "dynamic (3 iterations) against uniform routing, without a decoder", ""),
            "em": Contrast("cpu", "EM (2 iterations) against dynamic routing (3), each under its paper's loss", ""),
            "whole": Contrast(
                "cpu", "EM (2) with 0.02 in the class layer against dynamic (3), each under its loss", ""
            ),
            "spread": Contrast("cpu", "EM (2) with 0.02 in the class layer against dynamic (3), both spread loss", ""),
            "decoder": Contrast("cpu", "CapsNet with decoder against a CNN of its size", ""),
            "near": Contrast(
                "diagnostics", "CapsNet against a CNN of its size: digits no farther out than in training", ""
            ),
        },
        more="Most of the difference from the CNN is on digits that lie farther out than those of training: with one "
        "iteration of routing and none farther out it is {near@affnist-generated>} points ([affine "
        "digits](surprises.md#affine-digits)).",
        also="{decoder@affnist-generated>} {em@affnist-generated=} {spread@affnist-generated=}",
    ),
    Question(
        "Does the decoder help? That was not shown.",
        "With a decoder against without",
        "Under dynamic routing the error with it differs by {dynamic@mnist=} points on MNIST and {dynamic@smallnorb=} "
        "on smallNORB, under EM routing with two iterations by {em@mnist=} and {em@smallnorb=}. On MultiMNIST, under "
        "dynamic routing, it is {dynamic@multimnist<?} lower, which does not hold after Holm's correction. On MNIST "
        "these decoders have hardly learnt to draw.",
        {
            "dynamic": Contrast("cpu", "dynamic routing: with a decoder against without", "dynamic routing"),
            "em": Contrast("cpu", "EM routing: with a decoder against without", "EM routing, 2 iterations"),
        },
    ),
    Question(
        "Are newer capsule networks better than a ResNet-20? That depends on the data and on details.",
        "Newer capsule networks against a ResNet-20",
        "Efficient-CapsNet has an error {efficient@mnist<} points lower on MNIST; on smallNORB its error is "
        "{efficient@smallnorb>} points higher as its authors have it, and {relu@smallnorb<} lower with batch norm and "
        "ReLU, tried after that; its multiply-adds are four times those of the ResNet-20. That of the self-routing "
        "CapsNet is {self@smallnorb<} points lower on smallNORB than that of a ResNet-20 as wide as its features. The "
        "ResNet-20 has about half the parameters in each of these.",
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
    ),
)


def answers(reference: Path, *studies: str) -> str:
    """Return a line per question.

    studies: all that the questions are about, so that `capsbench verify` compares the block that names them; `brief`
    after them leaves out what the questions have as `more`.

    Raises ValueError for other studies, and for a contrast that does not show what its answer says.
    """
    found = _read(reference)
    brief = studies[-1:] == ("brief",)
    if sorted(studies[: -1 if brief else None]) != sorted(found):
        raise ValueError(f"the answers are from {' and '.join(found)}")
    return "\n".join(f"- **{question.asks}** {_answer(question, found, brief)}" for question in QUESTIONS)


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
    """Return the contrasts of all studies that the questions name, and those between one iteration and more at test."""
    studies = {contrast.study for question in QUESTIONS for contrast in question.contrasts.values()}
    found = {}
    for study in sorted(studies):
        found[study] = read_contrasts(reference, study)
        if (reference / study / MEASURES).exists():
            at_test = one_iteration_at_test(reference, study)
            at_test = at_test.assign(contrast=at_test["contrast"] + AT_TEST)
            found[study] = pd.concat([found[study], at_test], ignore_index=True)
    return found


def _answer(question: Question, found: dict[str, pd.DataFrame], brief: bool) -> str:
    """Return the answer with its places filled; all places of the question are checked, printed or not."""

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

    answer, more, _ = (PLACE.sub(filled, text) for text in (question.answer, question.more, question.also))
    return answer if brief or not more else f"{answer} {more}"


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
            drawn = [contrast for contrast in question.contrasts.values() if contrast.label]
            rows += [Row(question.title, heading=True)] if drawn else []
            for contrast in drawn:
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
