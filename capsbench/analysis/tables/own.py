"""Tables of a user's own, which a study declares in a few lines."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from capsbench.analysis.cells import Cell
from capsbench.analysis.contrasts import compare
from capsbench.analysis.statistics import summarise
from capsbench.analysis.tables.contrasts import contrast_grids, contrasts_notes
from capsbench.analysis.tables.costs import cost
from capsbench.analysis.tables.model import Grid, Notes, Row, Table
from capsbench.analysis.tables.overview import headings
from capsbench.analysis.tables.source import Source, numbers
from capsbench.analysis.tables.text import MISSING, count_text, duration_text, interval_text, mean_text, number_text
from capsbench.study.tables import FIELDS, OwnTable, matching

_ERRORS = {"test": "Test error", "familiar": "Error under the conditions of training", "per_digit": "Error per digit"}
_HEADS = {
    "error": "error (%)", "interval": "95 % interval", "multiply_adds": "multiply-adds", "ms_per_step": "ms per step",
    "images_per_second": "images per second", "peak_memory_mb": "peak memory (MiB)", "training_time": "time per run",
}  # fmt: skip


def own_table(own: OwnTable, source: Source) -> Table:
    """Return a table as the study declares it.

    With experiments alone as columns: a row per variant. With fields: a row per variant and experiment, of those
    experiments that are named beside the fields, or of all.
    """
    fields = [name for name in own.columns if name in FIELDS]
    patterns = [name for name in own.columns if name not in FIELDS] or ["*"]
    experiments = matching(list(source.plan.study.experiments), patterns)
    there = [cell for cell in source.cells if cell.experiment in experiments]
    variants = matching(list(dict.fromkeys(cell.variant for cell in there)), own.rows)
    cells = [cell for name in variants for cell in there if cell.variant == name]
    notes = Notes()
    if fields:
        grids = [_of_fields(own, fields, experiments, cells, source, notes)]
    else:
        grids = [_of_experiments(own, experiments, variants, cells, source, notes)]
    below = list(notes.lines())
    contrasts = [contrast for contrast in source.plan.contrasts if contrast.family in own.contrasts]
    if contrasts:
        found = compare(contrasts, source.runs)
        families = contrast_grids(source.plan, contrasts, found)
        grids += [replace(each, heading=f"contrast: {each.heading}") for each in families]
        below += [line for line in contrasts_notes(source.plan, found) if line not in below]
    caption = f"Study '{source.plan.study.name}'. {_ERRORS[own.error]} in %, mean ± standard deviation over the seeds"
    caption += "; differences in test error at equal seeds, with 95 % t intervals." if contrasts else "."
    return Table(own.name, own.title or own.name, caption, tuple(grids), tuple(below), numbers(cells))


def _of_experiments(
    own: OwnTable, experiments: Sequence[str], variants: Sequence[str], cells: Sequence[Cell], source: Source,
    notes: Notes,
) -> Grid:  # fmt: skip
    by_place = {(cell.experiment, cell.variant): cell for cell in cells}
    heads = headings(source)
    rows = []
    for variant in variants:
        found = [by_place.get((experiment, variant)) for experiment in experiments]
        label = next(cell.label for cell in found if cell is not None)
        keys = tuple(key for cell in found if cell is not None for key in cell.keys)
        texts = (MISSING if cell is None else _error(own, cell, notes) for cell in found)
        rows.append(Row((label, *texts), keys))
    return Grid("", ("network", *(heads[name] for name in experiments)), tuple(rows))


def _of_fields(
    own: OwnTable, fields: Sequence[str], experiments: Sequence[str], cells: Sequence[Cell], source: Source,
    notes: Notes,
) -> Grid:  # fmt: skip
    heads = headings(source)
    several = len(experiments) > 1
    rows = []
    for experiment in experiments:
        for cell in cells:
            if cell.experiment == experiment:
                texts = [_FIELDS[name](own, cell, source, notes) for name in fields]
                rows.append(Row((*((heads[experiment],) if several else ()), cell.label, *texts), cell.keys))
    columns = (*(("data",) if several else ()), "network", *(_HEADS.get(name, name) for name in fields))
    return Grid("", columns, tuple(rows))


def _error(own: OwnTable, cell: Cell, notes: Notes) -> str:
    notes.about(cell)
    if own.error == "test":
        return notes.ours(cell)
    found = summarise(tuple((cell.familiar if own.error == "familiar" else cell.per_digit).values()))
    return mean_text(found.mean, found.std)


def _interval(own: OwnTable, cell: Cell) -> str:
    if own.error == "test":
        return interval_text(*cell.summary.error_interval)
    found = summarise(tuple((cell.familiar if own.error == "familiar" else cell.per_digit).values()))
    return interval_text(*found.error_interval)


def _of_cost(name: str, form: str) -> Callable[[OwnTable, Cell, Source, Notes], str]:
    return lambda own, cell, source, notes: number_text(getattr(cost(cell, source.runs), name), form)


_FIELDS: dict[str, Callable[[OwnTable, Cell, Source, Notes], str]] = {
    "error": lambda own, cell, source, notes: _error(own, cell, notes),
    "interval": lambda own, cell, source, notes: _interval(own, cell),
    "verdict": lambda own, cell, source, notes: notes.verdict(cell),
    "published": lambda own, cell, source, notes: MISSING if cell.published is None else str(cell.published),
    "n": lambda own, cell, source, notes: count_text(cell),
    "training_time": lambda own, cell, source, notes: duration_text(cell.seconds),
    **{name: _of_cost(name, form) for name, form in (
        ("parameters", ",.0f"), ("multiply_adds", ",.0f"), ("ms_per_step", ".3g"), ("images_per_second", ",.0f"),
        ("peak_memory_mb", ",.0f"),
    )},
}  # fmt: skip
