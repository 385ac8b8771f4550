"""The papers' tables in the papers' layouts, with our numbers and their verdicts beside the published ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from capsbench.analysis.cells import Cell
from capsbench.analysis.published import PUBLISHED_IN, Published, read_published
from capsbench.analysis.statistics import summarise
from capsbench.analysis.tables.methods import method_name, reconstructs, routing_name
from capsbench.analysis.tables.model import Grid, Notes, Row, Table, grid, tell_apart
from capsbench.analysis.tables.source import NOT_RUN, Source, below, not_run, numbers
from capsbench.analysis.tables.text import MISSING, count_text, mean_text
from capsbench.registry import LOSSES
from capsbench.study import Plan, catalogue

_S17 = "Sabour, Frosst, Hinton 2017 (S17)"
_H18 = "Hinton, Sabour, Frosst 2018 (H18)"
_LATER = "for later networks, the papers that published.yaml names"
_BASELINES = ("cnn_sabour_mnist", "cnn_sabour_multimnist")  # two networks, one row of S17's table
_OF_TABLE1 = ("matrix_capsnet", "cnn_hinton_norb")


_Line = tuple[tuple[str, ...], Mapping[str, Cell | Published]]


@dataclass(frozen=True)
class PaperTable:
    """A table of the papers. The data set of a run decides to which table it belongs.

    title: of ours. source: of the published values. published: "paper table"s of published.yaml.
    """

    title: str
    source: str
    published: tuple[str, ...]


TABLES = {
    name: PaperTable(title, source, PUBLISHED_IN[name])
    for name, title, source in (
        ("sabour-table1", "Test error on MNIST and on pairs of digits (S17, Table 1)", f"{_S17}, Table 1; {_LATER}"),
        ("affnist", "Test error on affine digits (S17, 5.2)", f"{_S17}, section 5.2"),
        (
            "hinton-table1", "Test error on smallNORB (H18, Table 1)",
            f"{_H18}, Table 1, and {_S17}, section 7; {_LATER}",
        ),
        ("hinton-table2", "Test error on novel viewpoints (H18, Table 2)", f"{_H18}, Table 2"),
        (
            "natural-images", "Test error on natural images and clothes",
            f"{_S17}, section 7, and {_H18}, section 5; {_LATER}",
        ),
    )
}  # fmt: skip


def caption(name: str, plan: Plan) -> str:
    """Say how to read a table, in one paragraph."""
    stopped = any(run.training.match for run in plan.runs if run.table == name)
    chosen = (
        "Where a note says so, training was stopped on the familiar test, as in H18; nothing" if stopped else "Nothing"
    )
    return (
        f"Study '{plan.study.name}'. Test error in %, mean ± standard deviation over the seeds; the csv has intervals. "
        "Verdict: our runs against the published value, by intervals and a margin written down before. n: "
        f"runs with a result, out of the planned runs. Published: {TABLES[name].source}. "
        f"{chosen} was chosen on the test set by the workflow."
    )


def sabour_table1(source: Source) -> Table:
    """S17, Table 1: network, routing and reconstruction; a column for single digits and one for pairs."""
    there, notes = source.of("sabour-table1"), Notes(diagnostics=True)
    grids, shown = [], list[str]()
    for data_sets in _two_by_two(there):
        values = [v for v in _values("S17 Table 1") if v.data_set in data_sets]
        shown += [value.id for value in values]
        grids.append(_digits(data_sets, [cell for cell in there if cell.data_set in data_sets], values, notes))
    return _table("sabour-table1", source, _headed(grids), not_run("sabour-table1", there, shown), notes)


def hinton_table1(source: Source) -> Table:
    """H18, Table 1: iterations, pose, loss and coordinates of matrix capsules; other networks below."""
    there, notes = source.of("hinton-table1"), Notes(diagnostics=True)
    grids, shown = [], list[str]()
    for data_set in dict.fromkeys(cell.data_set for cell in there):
        cells = [cell for cell in there if cell.data_set == data_set]
        ours = [cell for cell in cells if cell.run.model in _OF_TABLE1]
        values = [value for value in _values("H18 Table 1") if value.data_set == data_set]
        shown += [value.id for value in values]
        title = catalogue()[data_set].title
        if ours or values:
            grids.append(_matrix_capsules(title, ours, values, notes))
        if others := [cell for cell in cells if cell.run.model not in _OF_TABLE1]:
            grids.append(networks(f"other networks, {title}" if ours or values else title, others, notes))
    return _table("hinton-table1", source, grids, not_run("hinton-table1", there, shown), notes)


def natural_images(source: Source) -> Table:
    """CIFAR-10, SVHN and Fashion-MNIST, one after the other."""
    there, notes = source.of("natural-images"), Notes(diagnostics=True)
    data_sets = dict.fromkeys(cell.data_set for cell in there)
    grids = [networks(catalogue()[d].title, [c for c in there if c.data_set == d], notes) for d in data_sets]
    return _table("natural-images", source, grids, not_run("natural-images", there), notes)


def networks(heading: str, cells: Sequence[Cell], notes: Notes) -> Grid:
    """Return a row per cell: network, routing, reconstruction, our error and verdict, the published one."""
    names = [_names(cell) for cell in cells]
    told = tell_apart(["|".join(name) for name in names], cells, [cell.published is not None for cell in cells])
    rows = [
        Row((name[0] if "|".join(name) == text else text, *name[1:], *_slot(cell, notes)), cell.keys)
        for cell, name, text in zip(cells, names, told, strict=True)
    ]
    columns = ("network", "routing", "reconstruction", "ours (error %)", "verdict", "published", "n")
    return grid(heading, columns, rows, keep=("ours (error %)", "n"))


def _digits(data_sets: Sequence[str], cells: Sequence[Cell], values: Sequence[Published], notes: Notes) -> Grid:
    """Return the grid of up to two data sets that stand side by side."""
    rows: dict[tuple[str, ...], dict[str, list[Cell | Published]]] = {_names_of(value): {} for value in values}
    for cell in cells:
        rows.setdefault(_names(cell), {}).setdefault(cell.data_set, []).append(cell)
    for value in values:  # those that did not run keep their place
        rows[_names_of(value)].setdefault(value.data_set, [value])
    lines: list[_Line] = [(names, line) for names, row in rows.items() for line in _side_by_side(row)]
    lines = [(_again(lines[:n], *line), line[1]) for n, line in enumerate(lines)]
    ours = [next((each for each in line.values() if isinstance(each, Cell)), None) for _, line in lines]
    of_paper = [cell is None or cell.published is not None for cell in ours]
    told = tell_apart(["|".join(names) for names, _ in lines], ours, of_paper)
    single = len(data_sets) == 1
    columns = ["network", "routing", "reconstruction"]
    for data_set in data_sets:
        title = catalogue()[data_set].title
        columns += [f"{title} (error %)", "verdict", "published", "n"] if single else [f"{title}: ours", "published"]
    written = [
        Row(
            (
                names[0] if "|".join(names) == text else text, *names[1:],
                *(part for data_set in data_sets for part in _place(line.get(data_set), single, notes)),
                *(_per_digit(line.get(data_set)) for data_set in data_sets),
            ),
            tuple(key for each in line.values() if isinstance(each, Cell) for key in each.keys),
        )
        for (names, line), text in zip(lines, told, strict=True)
    ]  # fmt: skip
    columns += [f"{catalogue()[d].title}: per digit" if not single else "per digit" for d in data_sets]
    keep = [name for name in columns[3:] if "per digit" not in name]
    return grid("", columns, written, keep=[*keep, "routing", "reconstruction"])


def _side_by_side(row: Mapping[str, Sequence[Cell | Published]]) -> list[dict[str, Cell | Published]]:
    """Return a line per network of those that have one name; equal networks of several data sets share theirs."""
    networks: dict[str, dict[str, list[Cell | Published]]] = {}
    for data_set, found in row.items():
        for each in found:
            if isinstance(each, Cell):
                networks.setdefault(_network(each), {}).setdefault(data_set, []).append(each)
    lines = [
        {data_set: found[n] for data_set, found in own.items() if n < len(found)}
        for own in networks.values()
        for n in range(max(map(len, own.values())))
    ]
    for data_set, found in row.items():
        for value in (each for each in found if isinstance(each, Published)):
            place = next((line for line in lines if data_set not in line), None)
            if place is None:
                lines.append({data_set: value})
            else:
                place[data_set] = value
    return lines


def _network(cell: Cell) -> str:
    if cell.run.model in _BASELINES:
        return "baseline"
    return json.dumps([cell.run.model, cell.run.options], sort_keys=True, default=str)


def _again(before: Sequence[_Line], names: tuple[str, ...], line: Mapping[str, Cell | Published]) -> tuple[str, ...]:
    """Name the experiment of a line that has the variants of one before it, in another experiment."""
    variants = {each.variant for each in line.values() if isinstance(each, Cell)}
    for other_names, other in before:
        there = {each.variant for each in other.values() if isinstance(each, Cell)}
        if other_names == names and variants and variants <= there:
            experiments = dict.fromkeys(each.experiment for each in line.values() if isinstance(each, Cell))
            return f"{names[0]} ({', '.join(experiments)})", *names[1:]
    return names


def _place(found: Cell | Published | None, single: bool, notes: Notes) -> tuple[str, ...]:
    """Return the texts for a data set: our error, verdict, published value and n, or two texts that hold all."""
    if found is None:
        return (MISSING,) * (4 if single else 2)
    ours, verdict, published, n = _slot(found, notes)
    if single:
        return ours, verdict, published, n
    if ours == MISSING:
        return verdict, published
    return f"{ours} ({n})" if verdict == MISSING else f"{ours}: {verdict} ({n})", published


def _slot(found: Cell | Published, notes: Notes) -> tuple[str, str, str, str]:
    """Return our error, the verdict, the published value and the number of runs."""
    if isinstance(found, Published):
        return MISSING, NOT_RUN, str(found), MISSING
    published = MISSING if found.published is None else str(found.published)
    return notes.ours(found), notes.verdict(found), published, count_text(found)


def _per_digit(found: Cell | Published | None) -> str:
    if not isinstance(found, Cell):
        return MISSING
    summary = summarise(tuple(found.per_digit.values()))
    return mean_text(summary.mean, summary.std)


def _matrix_capsules(heading: str, cells: Sequence[Cell], values: Sequence[Published], notes: Notes) -> Grid:
    """Return H18's rows in its order, then those that it has not."""
    rows: list[Cell | Published] = []
    for value in values:
        rows += [cell for cell in cells if cell.published is not None and cell.published.id == value.id] or [value]
    rows += [cell for cell in cells if cell not in rows]
    names = [_varied(row) for row in rows]
    ids = [value.id for value in values]
    of_paper = [not isinstance(row, Cell) or (row.published is not None and row.published.id in ids) for row in rows]
    ours = [row if isinstance(row, Cell) else None for row in rows]
    told = tell_apart(["|".join(name) for name in names], ours, of_paper)
    written = [
        Row(
            (name[0] if "|".join(name) == text else f"{name[0]}: {text}", *name[1:], *_slot(row, notes)),
            row.keys if isinstance(row, Cell) else (),
        )
        for row, name, text in zip(rows, names, told, strict=True)
    ]
    columns = ("iterations", "pose", "loss", "coordinates", "ours (error %)", "verdict", "published", "n")
    return Grid(heading, columns, tuple(written))


def _varied(row: Cell | Published) -> tuple[str, ...]:
    """Return what H18's table varies: iterations, pose, loss, coordinate addition."""
    if isinstance(row, Cell):
        model, options, crops = row.run.model, row.run.options, getattr(row.run.data.options, "test_crops", 1)
        routing = routing_name(row.run)
    else:
        model, options = str(row.model), row.options
        crops = row.requirements.get("task", {}).get("test_crops", 1)
        routing = str(options.get("routing", {}).get("iterations"))
    if model != "matrix_capsnet":
        return "CNN (H18)", MISSING, MISSING, MISSING
    loss = LOSSES[options["loss"]["name"]].title
    coordinates = "yes" if options["coordinate_addition"] else "no"
    return routing + (f", {crops} test crops" if crops > 1 else ""), options["pose"], loss, coordinates


def _names(cell: Cell) -> tuple[str, str, str]:
    if cell.run.model in _BASELINES:
        return "baseline CNN (S17)", MISSING, MISSING
    return method_name(cell.run), routing_name(cell.run), reconstructs(cell.run)


def _names_of(value: Published) -> tuple[str, str, str]:
    """Return what a cell that has the network of a value of S17's Table 1 is called."""
    if value.model in _BASELINES:
        return "baseline CNN (S17)", MISSING, MISSING
    options: dict[str, Any] = value.options
    return "CapsNet", str(options["routing"]["iterations"]), "yes" if options["decoder"] else "no"


def _values(table: str) -> list[Published]:
    return [v for v in read_published() if f"{v.paper} {v.table}" == table and v.attack is None]


def _two_by_two(cells: Sequence[Cell]) -> list[list[str]]:
    """Return the data sets of S17's table, then stand-ins, at most two side by side."""
    there = list(dict.fromkeys(cell.data_set for cell in cells))
    own: list[str] = [name for name in ("mnist", "multimnist") if name in there]
    others = [name for name in there if name not in own]
    stand_ins = [others[n : n + 2] for n in range(0, len(others), 2)]
    return [own, *stand_ins] if own else stand_ins


def _headed(grids: Sequence[Grid]) -> list[Grid]:
    """Head grids where the second is of data that stand in for the paper's."""
    if len(grids) < 2:
        return list(grids)
    return [Grid("other data than the paper's" if n else "", each.columns, each.rows) for n, each in enumerate(grids)]


def _table(name: str, source: Source, grids: Sequence[Grid], values: Sequence[Published], notes: Notes) -> Table:
    frame = numbers(source.of(name), values)
    below_them = below(values)
    return Table(name, TABLES[name].title, caption(name, source.plan), (*grids, *below_them), notes.lines(), frame)
