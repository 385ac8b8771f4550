"""How figures look: one column of a paper wide, and each method with one colour in all figures of a study.

Colour never stands alone: every method also has its marker, every variant its dashes and fill, so that grey prints and
colour-blind readers lose nothing.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import matplotlib
import seaborn as sns
from matplotlib.lines import Line2D

from capsbench.study import Plan, Run
from capsbench.study.plots import iterations_of

WIDTH = 3.3  # inches: a column of a page with two
PIXELS_PER_INCH = 300  # of png files
PAGE = 6.9  # both columns
FONT, SMALL = 7.0, 6.5  # points
INK, QUIET, FAINT = "0.1", "0.45", "0.75"  # text and means, what is beside the point, lines behind the data

# Okabe and Ito's colours but for yellow, which a white page swallows; after them two of Tol's and a brown
_COLOURS = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#882255", "#999933", "#7F5B2E",
]  # fmt: skip
_MARKERS = ["o", "s", "^", "D", "v", "P", "X", "p", "<", "h", ">"]  # one more than colours: 110 methods differ
_FILLS = ["full", "none", "left", "right", "bottom", "top"]
_DASHES: list[Any] = ["-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1))]
_RC: dict[Any, Any] = {
    "font.family": ["sans-serif"], "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same everywhere
    "font.size": FONT, "axes.titlesize": FONT, "axes.labelsize": FONT, "legend.fontsize": SMALL,
    "xtick.labelsize": SMALL, "ytick.labelsize": SMALL, "axes.linewidth": 0.6, "grid.linewidth": 0.4,
    "grid.color": "0.88", "axes.edgecolor": "0.4", "axes.grid": True, "axes.axisbelow": True,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "lines.linewidth": 1.1, "lines.markersize": 4.0, "patch.linewidth": 0.5,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.minor.width": 0.4, "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5, "ytick.major.size": 2.5, "xtick.minor.size": 1.5, "ytick.minor.size": 1.5,
    "xtick.major.pad": 2.0, "ytick.major.pad": 2.0, "axes.labelpad": 2.0,
}  # fmt: skip

P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Draw in the style of all figures, whatever style the caller has set."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        with matplotlib.rc_context(sns.axes_style("ticks") | _RC):
            return draw(*args, **kwargs)

    return drawn


@dataclass(frozen=True)
class Look:
    """What a variant looks like. Its method, a number, decides colour and marker."""

    method: int
    color: str
    marker: str
    fill: str
    dash: Any

    def points(self) -> dict[str, Any]:
        """Return the keywords of `plot` for its markers; white where they are not filled, so that lines end there."""
        return {
            "color": self.color, "marker": self.marker, "fillstyle": self.fill, "markeredgewidth": 0.8,
            "markerfacecoloralt": "white", **({"markerfacecolor": "white"} if self.fill == "none" else {}),
        }  # fmt: skip

    def line(self) -> dict[str, Any]:
        """Return the keywords of `plot` for its line with markers."""
        return self.points() | {"linestyle": self.dash}


def looks(plan: Plan) -> dict[str, Look]:
    """Return the look of each variant of a study, the same in all its figures and whatever has run.

    Variants of one method (see `methods`) differ in fill and dashes by their numbers of routing iterations.
    """
    found: dict[str, Look] = {}
    members: dict[int, list[int | None]] = {}  # numbers of iterations that a method has
    options = {run.variant: run.options for run in reversed(plan.runs)}
    for variant, method in methods(plan).items():
        numbers = members.setdefault(method, [])
        if (iterations := iterations_of(options[variant])) not in numbers:
            numbers.append(iterations)
        place = numbers.index(iterations)
        found[variant] = Look(
            method, _COLOURS[method % len(_COLOURS)], _MARKERS[method % len(_MARKERS)], _FILLS[place % len(_FILLS)],
            _DASHES[(method + place) % len(_DASHES)],
        )  # fmt: skip
    return found


def methods(plan: Plan) -> dict[str, int]:
    """Return the number of the method that each variant is, counted in the order of the study.

    Variants that differ in the number of routing iterations alone are one method. So are those with the same label, but
    for that number, that share no experiment, such as a CNN of which each data set has its own.
    """
    runs: dict[str, dict[str, Run]] = {}
    for run in plan.runs:
        runs.setdefault(run.variant, {}).setdefault(run.experiment, run)
    members: list[list[Mapping[str, Run]]] = []  # of each method, the runs of its variants
    found = {}
    for variant, own in runs.items():
        same = (n for n, others in enumerate(members) if all(_are_one_method(own, other) for other in others))
        found[variant] = next(same, len(members))
        if found[variant] == len(members):
            members.append([])
        members[found[variant]].append(own)
    return found


def method_name(label: str) -> str:
    """Return the label of a variant without its number of routing iterations."""
    return re.sub(r"(, |-|_| )(routing )?iterations ?\d+", "", label) or label


def handle(look: Look, label: str, line: bool = True) -> Line2D:
    """Return what a legend shows of a variant."""
    return Line2D([], [], label=label, **(look.line() if line else look.points() | {"linestyle": ""}))


def _are_one_method(own: Mapping[str, Run], other: Mapping[str, Run]) -> bool:
    """Compare labels, or networks without iterations and, where an experiment has both variants, trainings."""
    first, second = next(iter(own.values())), next(iter(other.values()))
    if method_name(first.label) == method_name(second.label) and not own.keys() & other.keys():
        return True
    if _network(first) != _network(second):
        return False
    return all(run.training == other[experiment].training for experiment, run in own.items() if experiment in other)


def _network(run: Run) -> str:
    return json.dumps([run.model, dict(_without_iterations(run.options))], sort_keys=True, default=str)


def _without_iterations(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if name != "iterations":
            yield name, dict(_without_iterations(value)) if isinstance(value, Mapping) else value
