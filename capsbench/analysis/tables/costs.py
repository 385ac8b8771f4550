"""What networks cost: parameters, multiply-adds, and the time and memory that their training took."""

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from capsbench.analysis.cells import Cell
from capsbench.analysis.tables.methods import routing_of
from capsbench.analysis.tables.model import Grid, Notes, Row, Table, grid
from capsbench.analysis.tables.overview import headings
from capsbench.analysis.tables.source import Source
from capsbench.analysis.tables.text import MISSING, count_text, duration_text, number_text
from capsbench.study import Run

_MEASURED = (
    "ms per step: time of a training over its steps, looks at validation images included; images per second likewise. "
    "They are medians over the seeds, measured on the machine that the provenance names, and on a shared machine they "
    "are only a hint. Peak memory: of the training process, or of the GPU where it ran on one."
)


@dataclass(frozen=True)
class Cost:
    """The cost of a cell over its runs that ended: medians of times and speeds, means of the rest; nan where unknown.

    seconds: of a training. ms_per_step, images_per_second: of training. peak_memory_mb: MiB. multiply_adds: of one
    image at test.
    """

    parameters: float
    multiply_adds: float
    ms_per_step: float
    images_per_second: float
    peak_memory_mb: float
    seconds: float


def cost(cell: Cell, runs: pd.DataFrame) -> Cost:
    """Return what a cell cost; what no run has told is counted on the network, if it can be built."""
    rows = runs[(runs["experiment"] == cell.experiment) & (runs["variant"] == cell.variant) & (runs["status"] == "ok")]
    parameters, multiply_adds = cell.parameters, _mean(rows, "multiply_adds")
    if math.isnan(parameters) or math.isnan(multiply_adds):
        counted = _counted(cell.run)
        parameters = counted[0] if math.isnan(parameters) else parameters
        multiply_adds = counted[1] if math.isnan(multiply_adds) else multiply_adds
    steps = rows["steps"] if "steps" in rows else pd.Series(dtype=float)
    per_step = math.nan
    if len(steps) and steps.notna().all():
        per_step = float((1000 * rows["seconds"] / steps).median())
    elif not math.isnan(cell.images_per_second):
        per_step = 1000 * cell.run.training.batch_size / cell.images_per_second
    return Cost(
        parameters, multiply_adds, per_step, cell.images_per_second, _mean(rows, "peak_memory_mb"), cell.seconds
    )


def cost_table(source: Source) -> Table:
    """Return a row per network of each experiment."""
    columns = (
        "network", "parameters", "multiply-adds", "ms per step", "images per second", "peak memory (MiB)",
        "time per run", "n",
    )  # fmt: skip
    found = [(cell, cost(cell, source.runs)) for cell in source.cells]
    grids = _by_experiment(source, found, columns, _cost_row)
    caption = (
        f"Study '{source.plan.study.name}'. Parameters: trainable ones, decoder included. Multiply-adds: of one image "
        f"at test, decoder included; convolutions and matrix products, no elementwise work. {_MEASURED}"
    )
    return Table("cost", "What the networks cost", caption, grids, (), _numbers(found))


def routings_table(source: Source) -> Table:
    """Return a row per routing and number of iterations, in each experiment that has one."""
    notes = Notes()
    columns = (
        "routing", "iterations", "error (%)", "network", "ms per step", "images per second", "peak memory (MiB)", "n",
    )  # fmt: skip
    cells = [cell for cell in source.cells if routing_of(cell.run)[0] is not None]
    order = list(dict.fromkeys((cell.experiment, routing_of(cell.run)[0]) for cell in cells))
    cells.sort(key=lambda c: (order.index((c.experiment, routing_of(c.run)[0])), routing_of(c.run)[1] or 0))
    found = [(cell, cost(cell, source.runs)) for cell in cells]

    def row(cell: Cell, spent: Cost) -> Row:
        notes.about(cell)
        routing, iterations = routing_of(cell.run)
        return Row(
            (
                str(routing), str(iterations or MISSING), notes.ours(cell), cell.label, *_time(spent),
                number_text(spent.peak_memory_mb, ",.0f"), count_text(cell),
            ),
            cell.keys,
        )  # fmt: skip

    grids = _by_experiment(source, found, columns, row)
    caption = (
        f"Study '{source.plan.study.name}'. Error: test error in %, mean ± standard deviation over the seeds. The "
        f"column 'network' says what else differs between rows. {_MEASURED}"
    )
    return Table("routings", "Routings: error, time and memory", caption, grids, notes.lines(), _numbers(found))


def _by_experiment(
    source: Source, found: Sequence[tuple[Cell, Cost]], columns: Sequence[str], row: Callable[[Cell, Cost], Row]
) -> tuple[Grid, ...]:
    """Return a grid per experiment, all with the same columns."""
    experiments = list(dict.fromkeys(cell.experiment for cell, _ in found))
    heads = headings(source)
    rows = [row(cell, spent) for cell, spent in found]
    whole = grid("", columns, rows)
    places = [cell.experiment for cell, _ in found]
    return tuple(
        Grid(heads[name] if len(experiments) > 1 else "", whole.columns,
             tuple(line for line, place in zip(whole.rows, places, strict=True) if place == name))
        for name in experiments
    )  # fmt: skip


def _cost_row(cell: Cell, spent: Cost) -> Row:
    texts = (
        cell.label, number_text(spent.parameters, ",.0f"), number_text(spent.multiply_adds, ",.0f"), *_time(spent),
        number_text(spent.peak_memory_mb, ",.0f"), duration_text(spent.seconds), count_text(cell),
    )  # fmt: skip
    return Row(texts, cell.keys)


def _time(spent: Cost) -> tuple[str, str]:
    return number_text(spent.ms_per_step, ".3g"), number_text(spent.images_per_second, ",.0f")


def _mean(rows: pd.DataFrame, name: str) -> float:
    """Return the mean of what runs say; nan where none says it, as those of older versions."""
    said = rows[name].dropna() if name in rows else pd.Series(dtype=float)
    return float(said.mean()) if len(said) else math.nan


def _numbers(found: Sequence[tuple[Cell, Cost]]) -> pd.DataFrame:
    rows = []
    for cell, spent in found:
        routing, iterations = routing_of(cell.run)
        rows.append({
            "experiment": cell.experiment, "data": cell.data_set, "variant": cell.variant, "label": cell.label,
            "routing": routing or "", "iterations": iterations or math.nan, "mean": cell.summary.mean,
            "std": cell.summary.std, "n": len(cell.errors), "planned": cell.planned, **spent.__dict__,
        })  # fmt: skip
    return pd.DataFrame(rows)


def _counted(run: Run) -> tuple[float, float]:
    options = {name: value for name, value in run.options.items() if name != "loss"}  # no part of the forward pass
    return _measure(run.model, run.data.image_shape, run.data.facts.num_classes, json.dumps(options, sort_keys=True))


@functools.cache
def _measure(model: str, shape: tuple[int, int, int], classes: int, options: str) -> tuple[float, float]:
    """Return parameters and multiply-adds; nan for a network that cannot be built for these images."""
    from capsbench.analysis.inventory import measure

    size = measure(model, shape, classes, **json.loads(options))
    return (
        math.nan if size.parameters is None else float(size.parameters),
        math.nan if size.multiply_adds is None else float(size.multiply_adds),
    )
