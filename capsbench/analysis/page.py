"""What stands on the page of a study: its tables as text with what they are sorted by, its cells, its plots."""

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from capsbench.analysis.cells import Cell
from capsbench.analysis.conclusion import post_hoc_share
from capsbench.analysis.contrasts import (
    POST_HOC,
    at_chance_text,
    digits_for,
    family_title,
    interval_of_difference,
    is_identical,
    is_same,
    is_shown,
    margin_text,
    number,
    p_value,
    titles_of,
)
from capsbench.analysis.curves import Curves, curves_of
from capsbench.analysis.outcomes import outcomes
from capsbench.analysis.plots.style import PAGE, PIXELS_PER_INCH, WIDTH
from capsbench.analysis.published_values import Published
from capsbench.analysis.statistics import FEWEST, summarise
from capsbench.analysis.tables.model import Grid, Table
from capsbench.analysis.tables.text import (
    MISSING,
    count_text,
    duration_text,
    error_text,
    interval_text,
    mean_text,
    number_text,
    probability_text,
)
from capsbench.registry import MODELS, flat_options
from capsbench.study import Plan

BESIDE = "ours − published (points)"  # the column of differences where results can be compared with a paper's
_SCREEN = 1400  # pixels across of the widest plot; the page shows 1240 of them
LONG = 60  # letters of a text that takes several lines
_COLOURS = 128  # of a plot that is made smaller
_PAGE_LENGTH = 10.0  # inches of a printed page
_PNG, _WEBP = b"\x89PNG", b"RIFF"  # how such files start


@dataclass(frozen=True)
class Field:
    """What a table shows in one place. value: what it is sorted by, the text where there is none. kind: its look.

    below: a smaller line. link: the anchor it leads to. more: what opens at a click on the text.
    """

    text: str
    value: float = math.nan
    kind: str = ""
    below: str = ""
    link: str = ""
    more: Sequence[str] = ()


@dataclass(frozen=True)
class Sheet:
    """A table of the page. fixed: how many columns stay in place when it is moved sideways. told: what is in it."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Field]]
    heading: str = ""
    fixed: int = 1
    told: str = ""


@dataclass(frozen=True)
class Plot:
    """A drawn plot.

    data: its file as an address, None where the page would become too large. columns: how many times as wide as a
    column of a printed page it is. is_long: whether a printed page of its width does not hold it.
    """

    name: str
    data: str | None
    columns: float = 1.0
    is_long: bool = False


@dataclass(frozen=True)
class Details:
    """A cell with its runs. ends: a row per seed. chosen: options that are not the network's defaults."""

    anchor: str
    cell: Cell
    ends: Sequence[dict[str, Any]]
    chosen: str
    configuration: str
    curves: Curves | None


def results_tables(cells: Sequence[Cell]) -> list[Sheet]:
    """Return a table per experiment with a row per cell: label, our error, and the rest; empty columns are left out.

    An interval stands below the number that it belongs to. What compares with papers stands beside our error where at
    least half of the rows have a published value, otherwise at the end. n is left out where no seed is missing or stuck
    at chance. A difference from a published value is given where the two can be compared.
    """
    ours, papers = ["variant", "ours (error %)"], ["verdict", "published (error %)", BESIDE]
    more = ["n", "familiar (error %)", "per digit (error %)", "parameters", "time per run"]
    sheets = []
    for experiment in dict.fromkeys(cell.experiment for cell in cells):
        places = [place for place, cell in enumerate(cells) if cell.experiment == experiment]
        own = [cells[place] for place in places]
        rows = [dict(zip([*ours, *papers, *more], _result(cells[k], anchor(k)), strict=True)) for k in places]
        leads = 2 * sum(cell.published is not None for cell in own) >= len(own)
        columns = [*ours, *papers, *more] if leads else [*ours, *more, *papers]
        whole = all(len(cell.errors) == cell.planned and not cell.stuck for cell in own)
        shown = [
            name for name in columns
            if name in ours or (any(row[name].text != MISSING for row in rows) and not (name == "n" and whole))
        ]  # fmt: skip
        sheets.append(
            Sheet(
                f"results-{experiment}", shown, [[row[name] for name in shown] for row in rows], _data(own[0]),
                3 if shown[2:3] == papers[:1] else 2, _range(own),
            )
        )  # fmt: skip
    return sheets


def contrasts_tables(plan: Plan, found: pd.DataFrame, cells: Sequence[Cell]) -> list[Sheet]:
    """Return a table per family with a row per contrast, from `compare`: its name, the difference, what it shows.

    The errors of both lead to their cells.
    """
    shows = ["contrast", "difference (points)", "error of the first"]
    columns = [*shows, "first (%)", "second (%)", "P(better)", "p (Holm)", "p (same)", "n"]
    places = {(cell.experiment, cell.variant): anchor(place) for place, cell in enumerate(cells)}
    titles = titles_of(plan)
    sheets = []
    for family, own in found.groupby("family", sort=False):
        rows = [_contrast(row, titles[row.experiment], places) for row in own.itertuples()]
        shown = columns[:-1] if (own["n"] == own["planned"]).all() else columns
        told = outcomes(list(own.itertuples()))
        heading = family_title(plan, str(family)) + post_hoc_share(list(own.itertuples()))
        sheets.append(Sheet(f"contrasts-{family}", shown, [row[: len(shown)] for row in rows], heading, 3, told))
    return sheets


def sheets_of(table: Table, cells: Sequence[Cell]) -> list[Sheet]:
    """Return the grids of a table of the study; rows lead to the cells behind them."""
    places = {key: anchor(place) for place, cell in enumerate(cells) for key in cell.keys}
    return [_sheet(f"{table.name}-{place}", grid, places) for place, grid in enumerate(table.grids, 1)]


def details_of(plan: Plan, cells: Sequence[Cell], runs: pd.DataFrame, curves: pd.DataFrame | None) -> list[Details]:
    """Return what is behind each cell."""
    by_key = {run["key"]: run for run in runs.to_dict("records")}
    return [
        Details(
            anchor(place), cell, [by_key[key] for key in cell.keys], _chosen(cell), _configuration(cell),
            curves_of(curves, cell.experiment, cell.variant),
        )
        for place, cell in enumerate(cells)
    ]  # fmt: skip


def anchor(place: int) -> str:
    """Return the name of the place on the page where the cell of this number stands."""
    return f"cell-{place + 1}"


def plots_of(folder: Path, names: Sequence[str], most_bytes: int) -> list[Plot]:
    """Embed the plots of a folder, each as png or svg, whichever is smaller.

    Where they are too large together, the largest are drawn with fewer colours, then as large as a screen shows them,
    and if that does not do the last ones are left out.

    Args:
        folder: has NAME.png and NAME.svg.
        names: the plots of the study, in its order.
        most_bytes: that all of them may take up in the page.
    """
    drawn = ([path for ending in ("svg", "png") if (path := folder / f"{name}.{ending}").exists()] for name in names)
    files = [min(paths, key=lambda path: path.stat().st_size) for paths in drawn if paths]
    contents = {path: path.read_bytes() for path in files}
    for shrink in (_fewer_colours, _as_on_a_screen):
        for path in sorted(contents, key=lambda path: -len(contents[path])):
            if sum(map(_embedded_bytes, contents.values())) > most_bytes:
                contents[path] = shrink(_png_of(path, contents[path]))
    for path in reversed(files):
        if sum(map(_embedded_bytes, contents.values())) > most_bytes:
            contents[path] = b""
    return [Plot(path.stem, _address(content), *_size(path)) for path, content in contents.items()]


def _result(cell: Cell, place: str) -> list[Field]:
    low, high = cell.summary.error_interval
    verdict, published = cell.verdict, cell.published
    familiar, per_digit = (summarise([*values.values()]) for values in (cell.familiar, cell.per_digit))
    count, _, lost = count_text(cell).partition(", ")
    compared = verdict.word != "no published value"
    apart = math.nan if verdict.word == "not comparable" else verdict.difference
    return [
        Field(cell.label, link=place),
        Field(
            error_text(cell),
            cell.summary.mean,
            "warn" if cell.stuck else "",
            "" if math.isnan(low) else interval_text(low, high),
        ),
        Field(
            str(verdict) if compared else MISSING,
            kind=verdict.word.replace(" ", "-"),
            more=verdict.reason.split("; ") if compared and verdict.reason else [],
        ),
        Field(MISSING) if published is None else Field(_error_of(published), published.error, below=published.paper),
        _difference(apart, verdict.low, verdict.high),
        Field(count, len(cell.errors), below=lost),
        Field(mean_text(familiar.mean, familiar.std), familiar.mean),
        Field(mean_text(per_digit.mean, per_digit.std), per_digit.mean),
        Field(number_text(cell.parameters, ",.0f"), cell.parameters),
        Field(duration_text(cell.seconds), cell.seconds),
    ]


def _error_of(published: Published) -> str:
    """Return a published value as an error, with what is printed where that is an accuracy."""
    return str(published) if published.unit == "error" else f"{published.error:g} (printed: {published})"


def _data(cell: Cell) -> str:
    """Say what the networks of an experiment were trained on."""
    data = cell.run.data
    pairs = f", {data.options.train_pairs:,} pairs per epoch" if hasattr(data.options, "train_pairs") else ""
    files = ", not the official files" * bool(cell.unofficial)
    return f"{data.facts.title} ({cell.experiment}), {data.trained_images:,} training images{pairs}{files}"


def _range(cells: Sequence[Cell]) -> str:
    """Count the variants, and give the smallest and the largest of their errors."""
    count = f"{len(cells)} variant{'s' * (len(cells) > 1)}"
    with_result = [cell for cell in cells if cell.errors]
    ends = (of(with_result, key=lambda cell: cell.summary.mean) for of in (min, max)) if with_result else ()
    means = dict.fromkeys(f"{cell.summary.mean:.2f}" for cell in ends)
    return f"{count}, {' to '.join(means)} %" if means else f"{count}, no result"


def _difference(mean: float, low: float, high: float) -> Field:
    """Return a difference with its interval below it; nan: there is none."""
    if math.isnan(mean):
        return Field(MISSING)
    if math.isnan(low):
        return Field(number(mean, digits_for(mean)), mean)
    return Field(number(mean, digits_for(low, high)), mean, below=interval_of_difference(low, high))


def _contrast(row: Any, title: str, places: Mapping[tuple[str, str], str]) -> list[Field]:
    sides = ((row.a, row.error_a), (row.b, row.error_b))
    return [
        Field(row.contrast, below=f"{title}; {POST_HOC}" if row.post_hoc else title),
        _difference(row.mean, row.low, row.high),
        _shown(row),
        *(
            Field(
                MISSING if math.isnan(error) else f"{error:.2f}", error, link=places.get((row.experiment, variant), "")
            )
            for variant, error in sides
        ),
        Field(probability_text(row.p_better), row.p_better),
        *(Field(MISSING if math.isnan(p) else p_value(p), p) for p in (row.p_holm, row.p_same)),
        Field(f"{row.n} of {row.planned}", row.n),
    ]


def _shown(row: Any) -> Field:
    if row.at_chance and row.n >= FEWEST:
        return Field(at_chance_text(row), kind="undecided")
    if is_identical(row):
        return Field("identical", kind="same")
    if is_shown(row):
        return Field("lower", kind="better") if row.mean < 0 else Field("higher", kind="worse")
    if is_same(row):
        return Field("the same", kind="same", below=f"within {margin_text(row.margin)}")
    return Field("undecided" if row.n >= FEWEST else "too few seeds", kind="undecided")


def _sheet(name: str, grid: Grid, places: Mapping[str, str]) -> Sheet:
    rows = []
    for row in grid.rows:
        fields = [Field(text, kind="long" if len(text) > LONG else "") for text in row.texts]
        there = next((places[key] for key in row.keys if key in places), "")
        rows.append([replace(fields[0], link=there, kind=""), *fields[1:]])
    return Sheet(name, grid.columns, rows, grid.heading)


def _chosen(cell: Cell) -> str:
    """Name the options that are not the network's defaults."""
    usual = flat_options(MODELS.options(cell.run.model)().plain())
    ours = flat_options(cell.run.options)
    return "; ".join(f"{name} {value}" for name, value in ours.items() if name in usual and usual[name] != value)


def _configuration(cell: Cell) -> str:
    """Return what decides the result of a cell, seed aside, as YAML."""
    facts = cell.run.model_dump(mode="json", include={"data", "model", "options", "training"})
    return yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)


def _png_of(path: Path, content: bytes) -> bytes:
    """Return the png beside a file that is to be shrunk."""
    beside = path.with_suffix(".png")
    return content if content.startswith(_PNG) or not beside.exists() else beside.read_bytes()


def _size(path: Path) -> tuple[float, bool]:
    """Return the width of a plot in columns, and whether it is longer than a page, from its png; else (1, False)."""
    from PIL import Image

    png = path.with_suffix(".png")
    if not png.exists():
        return 1.0, False
    with Image.open(png) as image:
        is_long = image.height > PIXELS_PER_INCH * _PAGE_LENGTH * max(1.0, image.width / (PIXELS_PER_INCH * PAGE))
        return round(image.width / (PIXELS_PER_INCH * WIDTH), 1), is_long


def _fewer_colours(content: bytes) -> bytes:
    return _drawn_again(content, widest=math.inf)


def _as_on_a_screen(content: bytes) -> bytes:
    return _drawn_again(content, widest=_SCREEN)


def _drawn_again(content: bytes, widest: float) -> bytes:
    """Return an image in 128 colours, of so many pixels across at most, as webp, if it takes fewer bytes then."""
    from PIL import Image

    if not content.startswith(_PNG):
        return content
    small = io.BytesIO()
    image = Image.open(io.BytesIO(content)).convert("RGB")
    if image.width > widest:
        image = image.resize((int(widest), int(image.height * widest / image.width)), Image.Resampling.LANCZOS)
    # an octree keeps both the pale bands of seeds and colours that few pixels have, as markers do
    image = image.quantize(_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).convert("RGB")
    image.save(small, "webp", lossless=True, quality=60)
    return min(content, small.getvalue(), key=len)


def _embedded_bytes(content: bytes) -> int:
    return 4 * math.ceil(len(content) / 3)


def _address(content: bytes) -> str | None:
    if not content:
        return None
    kind = "png" if content.startswith(_PNG) else "webp" if content.startswith(_WEBP) else "svg+xml"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
