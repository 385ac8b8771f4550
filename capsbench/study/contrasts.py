"""Contrasts of a study: pairs of variants, compared at equal seeds, in families that are corrected together.

A study declares them under `contrasts`; without that key, every axis of every grid is a family. This file holds the
format, and expands it into pairs of variants once the names of all variants are known.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from capsbench.registry import no_such
from capsbench.study.files import check, refuse

Names = Annotated[list[str], Field(min_length=1)]


class _InFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _schema(part: type[BaseModel]) -> dict[str, Any]:
    return part.model_json_schema()


class Pair(_InFile):
    """Two variants, in all experiments that train both, or in one."""

    a: str = Field(description="a variant, as expanded: capsnet-iterations3")
    b: str = Field(description="another one; the difference is the error of a minus that of b")
    experiment: str | None = Field(None, description="null: every experiment that trains both")
    name: str | None = Field(None, min_length=1, max_length=80, description="what tables and plots call the contrast")
    post_hoc: bool = Field(False, description="whether it was declared when the errors of both were known")


class Axis(_InFile):
    """Each value of an axis of a grid against one of them, everything else fixed."""

    axis: str = Field(description="an option in the grid of a variant: routing.iterations")
    against: Any = Field(None, description="the value that the others are compared with; left out: the first")
    variants: Names | None = Field(None, description="as under `variants`; null: all with this axis in their grid")
    experiments: Names | None = Field(None, description="null: all")


# One or the other, checked when they are expanded: an error of pydantic about a union names no place in a file.
Family = Annotated[
    Any,
    WithJsonSchema({"anyOf": [{"type": "array", "items": _schema(Pair), "minItems": 1}, _schema(Axis)]}),
]


@dataclass(frozen=True)
class Contrast:
    """Variant `a` against variant `b` of an experiment.

    name: given by the study; empty: made from their labels. post_hoc: declared when the errors of both were known.
    """

    family: str
    experiment: str
    a: str
    b: str
    name: str = ""
    post_hoc: bool = False


class _Variant(Protocol):
    @property
    def grid(self) -> dict[str, list[Any]]: ...


class _Run(Protocol):
    @property
    def experiment(self) -> str: ...
    @property
    def variant(self) -> str: ...


@dataclass(frozen=True)
class _Grid:
    """A variant of the file in one experiment: the names of its combinations, in the order of its grid."""

    experiment: str
    base: str
    values: Mapping[str, list[Any]]
    names: Sequence[str]

    def against(self, axis: str, reference: int) -> Iterator[tuple[str, str]]:
        """Pair each combination with the one that has the reference value (by place) and is equal in all else."""
        place = list(self.values).index(axis)
        combinations = list(itertools.product(*(range(len(values)) for values in self.values.values())))
        by_place = dict(zip(combinations, self.names, strict=True))
        for combination, name in by_place.items():
            if combination[place] != reference:
                yield name, by_place[(*combination[:place], reference, *combination[place + 1 :])]


def expand_contrasts(
    path: Path,
    families: Mapping[str, Any] | None,
    bases: Mapping[str, Sequence[str]],
    variants: Mapping[str, _Variant],
    runs: Iterable[_Run],
) -> tuple[Contrast, ...]:
    """Return the contrasts of a study in the order of its file.

    Args:
        path: the study file, for messages.
        families: as the study has them; None: an axis of a grid is a family, its first value the reference.
        bases: the variants of each experiment, as the file names them.
        variants: the variants of the file, with their grids.
        runs: all runs, in the order of the plan.

    Raises:
        InputError: a variant, an experiment, an axis or a value is not there; a variant is compared with itself; a
            family is empty or has a contrast twice.
    """
    trained = {experiment: dict[str, None]() for experiment in bases}
    for run in runs:
        trained[run.experiment][run.variant] = None
    grids = list(_grids(bases, variants, trained))
    if families is None:
        return tuple(_of_all_axes(grids))
    found: list[Contrast] = []
    for family, content in families.items():
        where = f"contrasts.{family}"
        if isinstance(content, Mapping):
            found += _of_axis(path, where, family, check(Axis, content, path, where), grids)
        elif isinstance(content, list) and content:
            for place, pair in enumerate(content):
                inner = f"{where}.{place}"
                found += _of_pair(path, inner, family, check(Pair, pair, path, inner), trained)
        else:
            refuse(path, where, "takes a list of at least one pair {a, b}, or the axis of a grid {axis, against}")
        _refuse_twice(path, where, [contrast for contrast in found if contrast.family == family])
    return tuple(found)


def check_questions(
    path: Path, questions: Mapping[str, Mapping[str, Sequence[str]]], contrasts: Sequence[Contrast]
) -> None:
    """Refuse a row below a question whose contrasts the study does not name, or which has two for one experiment.

    Raises InputError.
    """
    names = list(dict.fromkeys(contrast.name for contrast in contrasts if contrast.name))
    for question, rows in questions.items():
        for row, answers in rows.items():
            where = f"questions.{question}.{row}"
            for name in answers:
                if name not in names:
                    refuse(path, where, no_such("name of a contrast", name, names or ["none"]))
            own = [contrast.experiment for contrast in contrasts if contrast.name in answers]
            if twice := [name for name in own if own.count(name) > 1]:
                refuse(path, where, f"there are several contrasts of experiment '{twice[0]}'; a row has one of each")


def _grids(
    bases: Mapping[str, Sequence[str]], variants: Mapping[str, _Variant], trained: Mapping[str, Mapping[str, None]]
) -> Iterator[_Grid]:
    """Share out the variants that an experiment trains over the variants of the file that they come from."""
    for experiment, names in bases.items():
        expanded = iter(trained[experiment])
        for base in names:
            values = variants[base].grid
            combinations = itertools.product(*values.values())
            yield _Grid(experiment, base, values, [next(expanded) for _ in combinations])


def _of_all_axes(grids: Sequence[_Grid]) -> Iterator[Contrast]:
    axes = dict.fromkeys((grid.base, axis) for grid in grids for axis in grid.values)
    for base, axis in axes:
        for grid in grids:
            if grid.base == base:
                for a, b in grid.against(axis, 0):
                    yield Contrast(f"{base}: {axis}", grid.experiment, a, b)


def _of_axis(path: Path, where: str, family: str, wanted: Axis, grids: Sequence[_Grid]) -> list[Contrast]:
    known = {
        "experiments": list(dict.fromkeys(grid.experiment for grid in grids)),
        "variants": list(dict.fromkeys(grid.base for grid in grids)),
    }
    for key, names in known.items():
        for name in getattr(wanted, key) or []:
            if name not in names:
                refuse(path, f"{where}.{key}", no_such(key.removesuffix("s"), name, names))
    grids = [grid for grid in grids if grid.experiment in (wanted.experiments or known["experiments"])]
    grids = [grid for grid in grids if grid.base in (wanted.variants or known["variants"])]
    found = []
    for grid in grids:
        if wanted.axis in grid.values:
            pairs = grid.against(wanted.axis, _reference(path, where, wanted, grid))
            found += [Contrast(family, grid.experiment, a, b) for a, b in pairs]
        elif wanted.variants:
            refuse(path, f"{where}.variants", f"variant '{grid.base}' has no axis '{wanted.axis}' in its grid")
    if not any(wanted.axis in grid.values for grid in grids):
        axes = list(dict.fromkeys(axis for grid in grids for axis in grid.values))
        refuse(path, f"{where}.axis", no_such("axis of a grid", wanted.axis, axes or ["none"]))
    if not found:
        refuse(path, where, f"there is nothing to compare: '{wanted.axis}' has one value only")
    return found


def _reference(path: Path, where: str, wanted: Axis, grid: _Grid) -> int:
    """Return the place of the reference among the values of an axis."""
    values = grid.values[wanted.axis]
    if "against" not in wanted.model_fields_set:
        return 0
    for place, value in enumerate(values):
        if value == wanted.against and isinstance(value, bool) == isinstance(wanted.against, bool):
            return place
    there = ", ".join(map(str, values))
    return refuse(
        path, f"{where}.against",
        f"{wanted.against} is not among the values of '{wanted.axis}' in variant '{grid.base}' ({there}); "
        "'variants' says which variants to compare",
    )  # fmt: skip


def _of_pair(
    path: Path, where: str, family: str, pair: Pair, trained: Mapping[str, Mapping[str, None]]
) -> Iterator[Contrast]:
    names = list(dict.fromkeys(name for variants in trained.values() for name in variants))
    for key in ("a", "b"):
        if getattr(pair, key) not in names:
            refuse(path, f"{where}.{key}", no_such("variant", getattr(pair, key), names))
    if pair.a == pair.b:
        refuse(path, where, f"'{pair.a}' is compared with itself")
    if pair.experiment is not None:
        if pair.experiment not in trained:
            refuse(path, f"{where}.experiment", no_such("experiment", pair.experiment, list(trained)))
        for key in ("a", "b"):
            if getattr(pair, key) not in trained[pair.experiment]:
                there = f"experiment '{pair.experiment}' does not train it"
                refuse(path, f"{where}.{key}", f"'{getattr(pair, key)}': {there}")
    both = [name for name, variants in trained.items() if pair.a in variants and pair.b in variants]
    if not both:
        refuse(path, where, f"no experiment trains both '{pair.a}' and '{pair.b}'")
    for experiment in both if pair.experiment is None else [pair.experiment]:
        yield Contrast(family, experiment, pair.a, pair.b, pair.name or "", pair.post_hoc)


def _refuse_twice(path: Path, where: str, contrasts: Sequence[Contrast]) -> None:
    """Refuse a pair that a family has twice, either way round: it would be counted twice by the correction."""
    seen = set()
    for contrast in contrasts:
        pair = (contrast.experiment, frozenset((contrast.a, contrast.b)))
        if pair in seen:
            refuse(path, where, f"'{contrast.a}' against '{contrast.b}' in '{contrast.experiment}' is there twice")
        seen.add(pair)
