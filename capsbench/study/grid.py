"""From a study file to its runs: each experiment, variant, combination of a grid and seed, with checked options."""

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from capsbench.registry import MODELS, PROTOCOLS, ROUTINGS, Options, no_such
from capsbench.study.contrasts import Contrast, check_questions, expand_contrasts
from capsbench.study.data_sets import Table, catalogue
from capsbench.study.files import check, read_yaml, refuse
from capsbench.study.plots import plots_of
from capsbench.study.schema import Data, Run, Study
from capsbench.study.tables import check_own_tables
from capsbench.study.training import Training
from capsbench.study.validation import check_data, check_form, check_matches, check_protocol, data_defaults, layered

MOST_RUNS = 20_000
LONGEST_NAME = 200  # of a variant, with the values of its grid: it names a folder


@dataclass(frozen=True)
class Plan:
    """A checked study and its runs, in the order of the file, all seeds of a variant together."""

    path: Path
    study: Study
    data: Mapping[str, Data]  # by experiment
    runs: tuple[Run, ...]
    contrasts: tuple[Contrast, ...] = ()

    def run(self, key: str) -> Run:
        """Find a run by EXPERIMENT/VARIANT/seedN; raises KeyError."""
        for run in self.runs:
            if run.key == key:
                return run
        raise KeyError(key)

    def cell(self, experiment: str, variant: str, seed: int | str) -> Run:
        """Find a run by its place in the plan; raises KeyError."""
        return self.run(f"{experiment}/{variant}/seed{seed}")

    def before(self, run: Run) -> list[str]:
        """Return the keys of the runs that end first: that which a run is matched to, that which that one is, ..."""
        found: list[str] = []
        while run.matched_key:
            run = self.run(run.matched_key)
            found.append(run.key)
        return found

    def taken_beside(self, run: Run, protocol: Options) -> list[str]:
        """Return the keys of the runs that a protocol takes beside the one that it measures.

        They are those of the variant that the option of the protocol which it is registered with as `beside` names,
        at the same experiment and seed; none where the experiment does not have it.
        """
        variant = _named_beside(protocol)
        key = f"{run.experiment}/{variant}/seed{run.seed}"
        return [key] if variant and key != run.key and any(other.key == key for other in self.runs) else []

    @property
    def tables(self) -> list[str]:
        """Return the papers' tables that the study names; if it names none, those in which any of its runs stands."""
        named = [name for name in self.study.tables or [] if isinstance(name, str)]
        if named or self.study.tables == []:
            return [name for name in named if name in get_args(Table)]
        there = {run.table for run in self.runs}
        return [name for name in get_args(Table) if name in there]


def load_plan(path: Path) -> Plan:
    """Read and check a study file and expand it into runs. Raises InputError with one line for a person."""
    raw = read_yaml(path)
    study = check(Study, raw, path)
    _check_size(path, study, raw)
    data = {name: _data(raw, study, path, name) for name in study.experiments}
    runs = tuple(_runs(raw, study, path, data))
    used = {base for experiment in study.experiments.values() for base in experiment.variants or study.variants}
    for base in study.variants:
        if base not in used:
            first = next(iter(study.experiments))
            list(_cells(raw, path, data[first], first, base))  # checked like the others
    for key, count in Counter(run.key for run in runs).items():
        experiment, variant, _ = key.split("/")
        if count > 1:  # they would share a folder
            refuse(path, f"experiments.{experiment}", f"variant '{variant}' is there twice, from a grid")
        if len(variant) > LONGEST_NAME:
            shown = f"{variant[:40]}..., from a grid"
            refuse(path, f"experiments.{experiment}", f"variant '{shown}' has a name of {len(variant)} letters")
    bases = {name: experiment.variants or list(study.variants) for name, experiment in study.experiments.items()}
    contrasts = expand_contrasts(path, study.contrasts, bases, study.variants, runs)
    check_questions(path, study.questions, contrasts)
    _check_beside(path, study, runs)
    families = [contrast.family for contrast in contrasts]
    check_own_tables(path, study.tables or [], [run.variant for run in runs], list(study.experiments), families)
    if "plots" not in study.model_fields_set:
        plots = plots_of(runs, bool(contrasts), study.plots, study.protocols)
        study = study.model_copy(update={"plots": plots})
    return Plan(path, study, data, runs, contrasts)


def _check_size(path: Path, study: Study, raw: Mapping[str, Any]) -> None:
    """Refuse a study of more runs than anybody trains, before its grids are written out."""
    sizes = {name: _combinations(raw["variants"][name]) for name in study.variants}
    for name, size in sizes.items():
        if size > MOST_RUNS:
            refuse(path, f"variants.{name}.grid", f"has {size:,} combinations; a study has at most {MOST_RUNS:,} runs")
    cells = sum(sizes.get(name, 0) for e in study.experiments.values() for name in e.variants or study.variants)
    if cells * len(study.seeds) > MOST_RUNS:
        found = f"{cells:,} cells x {len(study.seeds):,} seeds"
        refuse(path, "experiments", f"{found} are more runs than a study has at most, {MOST_RUNS:,}")


def _combinations(variant: Mapping[str, Any]) -> int:
    grid = variant.get("grid") or {}
    return math.prod(len(values) for values in grid.values())


def _check_beside(path: Path, study: Study, runs: Sequence[Run]) -> None:
    """Refuse a protocol that takes a variant which no run has: of its experiment, where it is of one alone."""
    places = [("", study.evaluations, list(runs))]
    for name, experiment in study.experiments.items():
        own = [run for run in runs if run.experiment == name]
        places.append((f"experiments.{name}.", experiment.evaluations, own))
    for where, protocols, measured in places:
        names = list(dict.fromkeys(run.variant for run in measured))
        for place, protocol in enumerate(protocols):
            beside = _named_beside(protocol)
            if beside and beside not in names:
                refuse(path, f"{where}evaluations[{place}].{protocol.name}", no_such("variant", beside, names))


def _named_beside(protocol: Options) -> str | None:
    """Return the variant that a protocol takes beside the one that it measures."""
    option = PROTOCOLS[protocol.name].facts.get("beside")
    return getattr(protocol, option) if option else None


def _data(raw: dict[str, Any], study: Study, path: Path, experiment: str) -> Data:
    """Check the options of a data set, and that it can give what the study asks for."""
    where = f"experiments.{experiment}.data"
    name = study.experiments[experiment].data.name
    if name not in catalogue():
        refuse(path, f"{where}.name", no_such("data set", name, list(catalogue())))
    given = raw["experiments"][experiment]["data"]
    options = check(catalogue()[name].options, given.get("options") or {}, path, f"{where}.options")
    in_file = study.experiments[experiment].data
    data = Data(**{**dict(in_file), "options": options})
    check_data(data, path, where)
    return data


def _runs(raw: dict[str, Any], study: Study, path: Path, data: Mapping[str, Data]) -> Iterator[Run]:
    for experiment, settings in study.experiments.items():
        cells = []
        for base in settings.variants or study.variants:
            for cell in _cells(raw, path, data[experiment], experiment, base):
                check_protocol(cell.training, data[experiment], path, experiment, cell.where)
                check_form(cell.training, cell.model, path, cell.where)
                cells.append(cell)
        _check_matches(raw, study, path, data[experiment], experiment, cells)
        by_name = {cell.name: cell for cell in cells}
        for cell in cells:
            for seed in study.seeds:
                yield _run(study, experiment, data[experiment], by_name, cell, seed)


def _run(study: Study, experiment: str, data: Data, cells: Mapping[str, "_Cell"], cell: "_Cell", seed: int) -> Run:
    """Make the run of a cell, which rests on the run that it is matched to."""
    matched = None if cell.training.match is None else cells[cell.training.match]
    return Run(
        study=study.name, experiment=experiment, variant=cell.name, label=cell.label, seed=seed,
        data=data.drawn_for(seed), model=cell.model, options=cell.options, training=cell.training,
        matched_digest=None if matched is None else _run(study, experiment, data, cells, matched, seed).digest,
    )  # fmt: skip


def _check_matches(
    raw: dict[str, Any], study: Study, path: Path, data: Data, experiment: str, cells: Sequence["_Cell"]
) -> None:
    """Refuse what cannot be matched, naming the layer of the file that asks for it."""
    bases = {cell.name: cell.base for cell in cells}

    def where(name: str) -> str:
        variant = raw["variants"][bases[name]]
        if "training.match" in (variant.get("grid") or {}):
            return f"variants.{bases[name]}.grid.training.match"
        layers = {f"variants.{bases[name]}.": variant, f"experiments.{experiment}.": raw["experiments"][experiment]}
        place = next((place for place, layer in layers.items() if "match" in (layer.get("training") or {})), "")
        return f"{place}training.match"

    check_matches({cell.name: cell.training.match for cell in cells}, data, path, where)
    if any(cell.training.match is not None for cell in cells) and "familiar" not in study.protocols:
        refuse(path, "evaluations", "'familiar' must be among them where a training has 'match': it is what is matched")


@dataclass(frozen=True)
class _Cell:
    """One combination of the grid of a variant, `base`; where: its place in the file."""

    name: str
    base: str
    label: str
    where: str
    model: str
    options: dict[str, Any]
    training: Training


def _cells(raw: dict[str, Any], path: Path, data: Data, experiment: str, base: str) -> Iterator[_Cell]:
    variant = raw["variants"][base]
    grid = variant.get("grid") or {}
    if variant["model"] not in MODELS.names():
        refuse(path, f"variants.{base}.model", no_such("model", variant["model"], MODELS.names()))
    where = f"variants.{base}" + (".grid" if grid else "")
    usual = data_defaults(data)
    for layer in (raw, raw["experiments"][experiment], variant):
        usual = layered(usual, layer.get("training") or {})
    for values in itertools.product(*grid.values()):
        options, own = dict(variant.get("options") or {}), dict[str, Any]()
        # a group before the options in it, whichever comes first in the file
        for key, value in sorted(zip(grid, values, strict=True), key=lambda axis: axis[0].count(".")):
            if key.startswith("training."):
                _refuse_no_group(path, base, own, key, "training.")
                own = _put(own, key.removeprefix("training.").split("."), value)
            else:
                _refuse_twice(path, base, variant.get("options") or {}, options, key)
                _refuse_no_group(path, base, options, key)
                options = _put(options, key.split("."), value)
        axes = [(key.split(".")[-1], value, _names_suffice(grid[key])) for key, value in zip(grid, values, strict=True)]
        name = "-".join([base, *(_label(*axis) for axis in axes)])
        checked = check(Training, layered(usual, own), path, f"{where}.training")
        plain = _options(variant["model"], options, path, base, grid)
        yield _Cell(name, base, _title(variant, name, axes), where, variant["model"], plain, checked)


def _options(
    model: str, options: dict[str, Any], path: Path, base: str, grid: Mapping[str, list[Any]]
) -> dict[str, Any]:
    """Return the options of a network as a study would write them, all defaults filled in."""
    place = f"variants.{base}.options"
    options_class = MODELS.options(model)
    in_grid = dict.fromkeys(grid, f"variants.{base}.grid")
    if "name" in options:
        refuse(path, f"{in_grid.get('name', place)}.name", "unknown key; the network is named by 'model'")
    for key in grid:
        group, *inner = key.split(".")
        if inner and group != "training" and group not in options_class.model_fields:
            refuse(path, f"variants.{base}.grid", f"'{key}' is neither an option of {model} nor training.KEY")
    plain = check(options_class, options, path, place, in_grid).plain()
    return {key: value for key, value in plain.items() if key != "name"}


def _refuse_twice(path: Path, base: str, given: Mapping[str, Any], options: Mapping[str, Any], key: str) -> None:
    """Refuse a key of the grid that the options given by the variant, or a group in the grid, set as well."""
    if _holds(given, key):
        refuse(path, f"variants.{base}.options.{key}", "is in the grid too; say it once")
    if _holds(options, key):
        refuse(path, f"variants.{base}.grid.{key}", "is in the grid twice: its group sets it as well; set it once")


def _refuse_no_group(path: Path, base: str, options: Mapping[str, Any], key: str, within: str = "") -> None:
    """Refuse a key of the grid that leads into what has no options: null, or a number where a group should be."""
    node: Any = options
    *groups, _ = key.removeprefix(within).split(".")
    for group in groups:
        if group not in node or isinstance(node[group], str):  # a bare name becomes a group
            return
        node = node[group]
        if not isinstance(node, Mapping):
            found = json.dumps(node, default=str)[:60]
            refuse(path, f"variants.{base}.grid.{key}", f"{group} is {found} here and has no options")


def _holds(options: Mapping[str, Any], key: str) -> bool:
    node: Any = options
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def _put(options: Mapping[str, Any], keys: list[str], value: Any) -> dict[str, Any]:
    """Return options with one value set, keys leading to it; a group that was a bare name becomes a mapping."""
    key, *inner = keys
    if not inner:
        return {**options, key: value}
    group = options.get(key, {})
    group = {"name": group} if isinstance(group, str) else group
    return {**options, key: _put(group, inner, value)}


def _title(variant: Mapping[str, Any], name: str, axes: list[tuple[str, Any, bool]]) -> str:
    """Return what tables and plots call a variant: its label and its place in the grid, or its name."""
    if not variant.get("label"):
        return name
    return ", ".join([variant["label"], *(_label(*axis, gap=" ").replace("_", " ") for axis in axes)])


def _names_suffice(values: list[Any]) -> bool:
    """Tell whether the groups of an axis differ in their names, so that their options need not be named too."""
    names = [value.get("name") if isinstance(value, Mapping) else value for value in values]
    return all(names.count(name) == 1 for name in names)


def _label(name: str, value: Any, by_name: bool = False, gap: str = "") -> str:
    """Name one value of a grid: iterations3, detach, no_decoder, em, em_iterations2."""
    if value is True:
        return name
    if value is None or value is False:
        return f"no_{name}"
    if isinstance(value, Mapping):
        rest = {} if by_name and "name" in value else {k: v for k, v in value.items() if k != "name"}
        own = _label(name, value["name"], gap=gap) if "name" in value else name
        return "_".join([own, *(_label(k, v, gap=gap) for k, v in rest.items())])
    if isinstance(value, str):
        return _in_words(name, value) if gap else _as_name(value)
    text = "_".join(map(str, value)) if isinstance(value, list) else str(value)
    return name + gap + _as_name(text)


def _in_words(name: str, value: str) -> str:
    """Return what people say: "variational Bayes routing", "self-routing", "decoder fully_connected"."""
    if name != "routing":
        return f"{name} {value}"
    title = ROUTINGS[value].title if value in ROUTINGS.names() else value
    return title if title.endswith("routing") else f"{title} routing"


def _as_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in text)
