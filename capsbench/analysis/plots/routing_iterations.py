"""Error and training time by routing iterations, two panels per experiment."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from capsbench.analysis.plots.panels import Panel, bounds_of, interval, lay_out, make_log, nothing, spans_much, title_of
from capsbench.analysis.plots.style import Look, handle, looks, method_name, methods, styled
from capsbench.analysis.statistics import summarise
from capsbench.study import Plan
from capsbench.study.plots import iterations_of

_ERROR, _TIME = "test_error", "milliseconds"
_HEIGHT = 1.35


@dataclass(frozen=True)
class _Line:
    """A method in an experiment: its runs, with several numbers of iterations."""

    name: str
    look: Look
    runs: pd.DataFrame

    @property
    def legend(self) -> str:
        """The name, and how many runs never left chance."""
        stuck = sum(value in (True, "True") for value in self.runs.get("stuck_at_chance", ()))
        return self.name + f" ({stuck} of {len(self.runs)} runs stuck at chance)" * bool(stuck)


@styled
def plot_routing_iterations(plan: Plan, results: Path | None, runs: pd.DataFrame) -> Figure:
    """Test error and training time per image by routing iterations, of networks that have several numbers of them."""
    done = runs[runs["status"] == "ok"].copy()
    done["iterations"] = [iterations_of(plan.run(key).options) for key in done["key"]]
    done = done[done["iterations"].notna()]
    done[_TIME] = 1000 / done["images_per_second"].astype(float)
    shown = [(experiment, _lines(plan, own)) for experiment, own in done.groupby("experiment", sort=False)]
    shown = [(experiment, lines) for experiment, lines in shown if lines]
    if not shown:
        return nothing("no experiment has runs of one network with several numbers of routing iterations")
    panels = [
        Panel(title_of(plan, str(experiment), runs), _HEIGHT, legend=[handle(x.look, x.legend) for x in lines])
        for experiment, lines in shown
    ]
    figure, axes = lay_out(
        panels, columns=2, left=0.6, gap=0.52,
        note="Every seed; of errors the mean over the seeds with its 95 % interval, of times the median.",
    )  # fmt: skip
    for row, (_, lines) in zip(axes, shown, strict=True):
        _draw(row[0], lines, _ERROR, "test error (%)")
        _draw(row[1], lines, _TIME, "training (ms per image)")
    return figure


def _lines(plan: Plan, own: pd.DataFrame) -> list[_Line]:
    numbers, styles = methods(plan), looks(plan)
    lines = []
    for _, part in own.groupby([numbers[variant] for variant in own["variant"]], sort=False):
        if part["iterations"].nunique() == 1:
            continue
        first = part.iloc[0]
        lines.append(_Line(method_name(first["label"]), styles[_first_of(numbers, first["variant"])], part))
    return lines


def _first_of(numbers: dict[str, int], variant: str) -> str:
    """Return the variant that gives a method its look, whichever of its variants have run."""
    return next(name for name, number in numbers.items() if number == numbers[variant])


def _draw(axis: Any, lines: list[_Line], column: str, label: str) -> None:
    every = [float(value) for line in lines for value in line.runs[column]]
    is_log = spans_much(every)
    bounds = [bound for line in lines for bound in _bounds(line)] if column == _ERROR else []
    low, high = min([*every, *bounds]), max([*every, *bounds])
    if is_log:
        axis.set_ylim(0.88 * max(low, 0.6 * min(every)), 1.14 * high)
        make_log(axis, "y")
    else:
        edge = 0.06 * ((high - low) or high or 1.0)
        axis.set_ylim(0 if column == _TIME else max(low - edge, 0), high + edge)
    numbers = sorted({int(value) for line in lines for value in line.runs["iterations"]})
    spread = 0.035 * (numbers[-1] - numbers[0])
    for place, line in enumerate(lines):
        _draw_line(axis, line, column, spread * (place - (len(lines) - 1) / 2) / max(len(lines) - 1, 1) * 2)
    axis.set_xlim(numbers[0] - 0.12 * (numbers[-1] - numbers[0]), numbers[-1] + 0.12 * (numbers[-1] - numbers[0]))
    axis.set_xticks(range(numbers[0], numbers[-1] + 1) if numbers[-1] - numbers[0] < 8 else numbers)
    axis.set(xlabel="routing iterations", ylabel=label.replace(")", ",\nlog scale)") if is_log else label)


def _draw_line(axis: Any, line: _Line, column: str, aside: float) -> None:
    """Draw a method, a little to the side, so that methods with like values do not hide one another."""
    means = {number: summarise(list(part[column])) for number, part in line.runs.groupby("iterations")}
    places = [float(number) + aside for number in means]
    axis.plot(
        line.runs["iterations"].astype(float) + aside, line.runs[column], marker=line.look.marker, linestyle="",
        color=line.look.color, alpha=0.35, markersize=2.6, markeredgewidth=0, zorder=2, label="seeds",
    )  # fmt: skip
    middles = [found.mean for found in means.values()]
    if column == _TIME:  # a machine that did other work for a while would move a mean
        middles = [float(part[column].median()) for _, part in line.runs.groupby("iterations")]
    axis.plot(places, middles, zorder=4, label=line.name, **line.look.line())
    for place, found in zip(places, means.values(), strict=True):
        if column == _ERROR and (bounds := bounds_of(found)) is not None:
            limits = axis.get_ylim()
            interval(axis, place, bounds, limits, upright=True, color=line.look.color, linewidth=0.8)


def _bounds(line: _Line) -> list[float]:
    found = [bounds_of(summarise(list(part[_ERROR]))) for _, part in line.runs.groupby("iterations")]
    return [bound for bounds in found if bounds is not None for bound in bounds]
