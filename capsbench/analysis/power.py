"""What a number of seeds can show: how wide intervals are, and which spread between seeds a verdict bears."""

import math
from collections.abc import Iterator

import pandas as pd
from scipy.special import stdtrit

from capsbench.analysis.cells import cells
from capsbench.analysis.published import PUBLISHED_IN, Published, counterpart
from capsbench.analysis.statistics import FEWEST, Summary
from capsbench.analysis.verdicts import MOST_SEEDS, Target, decide
from capsbench.study import Plan

_LARGEST_STD = 100.0  # points


def half_width(n: int, confidence: float = 0.95) -> float:
    """Return the half width of the t interval of a mean over n seeds, in standard deviations; nan below three."""
    if n < FEWEST:
        return math.nan
    return float(stdtrit(n - 1, (1 + confidence) / 2)) / math.sqrt(n)


def largest_spread(n: int, target: Target) -> float:
    """Return the largest standard deviation between n seeds at which our mean, equal to the paper's, is "same".

    In points; nan below three seeds, 0 where the paper's own spread leaves no room.
    """
    if n < FEWEST:
        return math.nan
    low, high = 0.0, _LARGEST_STD
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _is_same(n, middle, target) else (low, middle)
    return low


def seeds_for_same(std: float, target: Target) -> int | None:
    """Return the fewest seeds at which our mean, equal to the paper's, is "same"; None where 100 do not suffice.

    Args:
        std: standard deviation between seeds, points.
        target: the published value.
    """
    return next((n for n in range(FEWEST, MOST_SEEDS + 1) if _is_same(n, std, target)), None)


def before_the_runs(plan: Plan) -> list[str]:
    """Say what the seeds of a study can show before any run: a line on intervals, then one per experiment."""
    n = len(plan.study.seeds)
    if n < FEWEST:
        seeds = "1 seed gives" if n == 1 else f"{n} seeds give"
        return [f"{seeds} no interval, and nothing can be concluded; 3 are the least for one"]
    lines = [
        f"{n} seeds: 95 % intervals of ±{half_width(n):.2f} standard deviations, of errors between seeds or, in a "
        "contrast, of differences at equal seeds"
    ]
    for experiment, values in _values_by_experiment(plan).items():
        spreads = [largest_spread(n, Target.of(value)) for value in values]
        margins = sorted({value.margin for value in values})
        lines.append(
            f"{experiment}: margin {_range(margins)} points; 'same' needs a standard deviation between seeds below "
            f"{_range(sorted(spreads))}, and a mean that is the published one"
            + ("; 0: the published spread leaves no room" if 0 in spreads else "")
        )
    return lines


def after_the_runs(plan: Plan, runs: pd.DataFrame) -> pd.DataFrame:
    """Return what the seeds at hand show, a row per cell with an interval.

    Columns: experiment, label, n, std and half_width of the test error in points; margin of the published value, and
    seeds_for_same: the fewest seeds at which this spread allows "same"; nan and None where there is no value.
    """
    rows = []
    for cell in cells(plan, runs):
        if cell.summary.n < FEWEST:
            continue
        value = cell.published if not cell.deviations else None  # what cannot be compared needs no more seeds
        rows.append(
            {
                "experiment": cell.experiment, "label": cell.label, "n": cell.summary.n, "std": cell.summary.std,
                "half_width": cell.summary.half_width, "margin": math.nan if value is None else value.margin,
                "seeds_for_same": None if value is None else seeds_for_same(cell.summary.std, Target.of(value)),
            }
        )  # fmt: skip
    columns = ["experiment", "label", "n", "std", "half_width", "margin", "seeds_for_same"]
    return pd.DataFrame(rows, columns=columns)


def in_words(plan: Plan, runs: pd.DataFrame) -> list[str]:
    """Say what the seeds at hand show: a line per experiment, and one per cell beside a published value."""
    rows = after_the_runs(plan, runs)
    lines = []
    for experiment, found in rows.groupby("experiment", sort=False):
        widths, counts = found["half_width"], sorted(set(found["n"]))
        seeds = " to ".join(map(str, counts if len(counts) < 2 else (counts[0], counts[-1])))
        lines.append(f"{experiment}, {seeds} seeds: intervals of ±{_range([widths.min(), widths.max()])} points")
        for row in found[found["margin"].notna()].to_dict("records"):
            needed = row["seeds_for_same"]
            enough = "101" if needed is None or math.isnan(needed) else f"{needed:.0f}"
            lines.append(
                f"{experiment}, {row['label']}: with a standard deviation of {row['std']:.2g} between seeds, 'same' "
                f"within a margin of {row['margin']:.2g} points takes at least {enough} seeds"
            )
    return lines


def _is_same(n: int, std: float, target: Target) -> bool:
    return decide(Summary(n, target.error, std, math.nan), target) == "same"


def _values_by_experiment(plan: Plan) -> dict[str, list[Published]]:
    found: dict[str, dict[str, Published]] = {}
    for experiment, value in _beside(plan):
        found.setdefault(experiment, {})[value.id] = value
    return {experiment: list(values.values()) for experiment, values in found.items()}


def _beside(plan: Plan) -> Iterator[tuple[str, Published]]:
    for run in plan.runs:
        value = counterpart(run, PUBLISHED_IN[run.table]) if run.seed == plan.study.seeds[0] else None
        if value is not None:
            yield run.experiment, value


def _range(values: list[float]) -> str:
    low, high = (f"{value:.2g}" for value in (values[0], values[-1]))
    return low if low == high else f"{low} to {high}"
