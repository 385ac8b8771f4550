"""A study file -> validated, typed runs. The only place that knows the file format; imports no torch.

One YAML file is one study: data sets, variants, a grid of options, seeds, training protocol, evaluations, tables,
plots. The pydantic models below are the schema (`capsbench config schema` prints it as JSON schema).
"""

import hashlib
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_args

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, create_model, model_validator

from capsbench.data.catalogue import CATALOGUE, Options, Table
from capsbench.options import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    UnknownChoice,
    chosen_options,
    default_opponent,
    default_routing,
    model_names,
    model_options,
    opponent_names,
    option_modules,
    routing_names,
)
from capsbench.study_file import check, read_yaml, refuse

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class Strict(BaseModel):
    """No unknown keys, no silent conversions, no changes after the check."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Data(Strict):
    """What is trained and tested on. The test set is always whole."""

    name: str
    options: Options = Options()
    train_images: Count | None = Field(None, description="cut the training set down, stratified; null: all")
    validation_images: Annotated[int, Field(ge=0)] = Field(
        0, description="held out of the training set before it is cut down, stratified"
    )
    split_seed: Seed = Field(0, description="draws the validation set and the cut; the same for all runs")
    allow_unofficial: bool = Field(
        False, description="use files whose checksum is not the official one, marked in every table"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        facts = CATALOGUE[self.name]
        available = facts.training_items(self.options)
        if self.train_images is not None and self.train_images < facts.num_classes:
            raise ValueError(f"train_images is {self.train_images}, fewer than the {facts.num_classes} classes")
        wanted = (self.train_images or 1) + self.validation_images
        if wanted > available:
            raise ValueError(
                f"train_images + validation_images is {wanted}, {self.name} has {available} training images"
            )
        return self


def _data_class(name: str) -> type[_Data]:
    options = CATALOGUE[name].options
    fields: dict[str, Any] = {"name": (Literal[name], ...), "options": (options, options())}
    return create_model(f"{name}_data", __base__=_Data, **fields)


if TYPE_CHECKING:
    Data = _Data
else:  # one class a data set, told apart by its name
    Data = Annotated[Union[*map(_data_class, CATALOGUE)], Field(discriminator="name")]


class Augmentation(Strict):
    """Drawn for each training image on its own. What is not set is what the papers do to the data set: see below."""

    shift: Annotated[int, Field(ge=0)] = Field(0, description="pixels, each axis, zeros come in; MNIST: 2, CIFAR-10: 4")
    flip: bool = Field(False, description="left to right, every second image; CIFAR-10: true")
    rotation: Annotated[float, Field(ge=0, le=180)] = Field(0.0, description="degrees, up to this either way")
    scale: Fraction = Field(0.0, description="0.2 draws a factor from 0.8 to 1.2")
    cutout: Annotated[int, Field(ge=0)] = Field(0, description="side of the square set to zero, pixels")
    brightness: NonNegative = Field(
        0.0, description="smallNORB alone: added, up to this either way, of 0 to 1; there 63/255"
    )
    contrast: Fraction = Field(0.0, description="smallNORB alone: 0.8 draws a factor from 0.2 to 1.8; there 0.8")


class Training(Strict):
    """The protocol of training; defaults from S17 and its authors' code, but for the length, which it omits."""

    epochs: Count = 50
    batch_size: Count = 128
    learning_rate: Positive = 0.001
    lr_decay: Annotated[float, Field(gt=0, le=1)] = Field(0.96, description="factor each lr_decay_every")
    lr_decay_every: Count = 2000
    lr_decay_unit: Literal["step", "epoch"] = "step"
    lr_decay_staircase: bool = Field(False, description="by whole steps of lr_decay_every, else smoothly")
    lr_floor: NonNegative = 1e-6
    warmup_steps: Annotated[int, Field(ge=0)] = Field(0, description="steps of linear rise from zero")
    weight_decay: NonNegative = Field(0.0, description="decoupled (AdamW)")
    gradient_clip: Positive | None = Field(None, description="largest norm of the whole gradient; null: none")
    augmentation: Augmentation = Augmentation()
    early_stopping: Count | None = Field(
        None,
        description="stop after so many epochs without a better validation accuracy, keep the best epoch",
    )
    stop_at_familiar_accuracy: Fraction | None = Field(
        None,
        description="stop once the familiar test reaches it, as the papers do where the test is on novel views or "
        "transforms, so that networks are compared at equal familiar accuracy; the novel test is never looked at",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Count = Field(1, description="CPU threads a run computes with; part of what fixes the bytes")
    deterministic: bool = Field(False, description="deterministic kernels on a GPU too, at some cost")

    @model_validator(mode="after")
    def _rate_above_floor(self) -> Self:
        if self.lr_floor > self.learning_rate:
            raise ValueError(f"lr_floor {self.lr_floor:g} is above learning_rate {self.learning_rate:g}")
        return self


class Experiment(Strict):
    """One data set under one protocol: a folder of runs, a block of rows in the tables."""

    data: Data
    training: Training = Field(Training(), description="replaces the study's values key by key")
    variants: Annotated[list[Name], Field(min_length=1)] | None = Field(None, description="null: all variants")


class _Variant(Strict):
    training: Training = Field(Training(), description="replaces the experiment's values key by key")
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        {}, description="option (or training.KEY) -> values: one variant for each combination"
    )


def _variant_class(model: str) -> type[_Variant]:
    options: Any = model_options(model)
    fields: dict[str, Any] = {"model": (Literal[model], ...), "options": (options, options())}
    choices = _choices(model)
    if len(choices) > 1:  # which options there are hangs on the routing and the opponent: checked in _expand
        schemas = [model_options(model, *choice).model_json_schema() for choice in choices]
        fields["options"] = (Annotated[dict[str, Any], WithJsonSchema({"anyOf": schemas, "default": {}})], {})
    return create_model(f"{model}_variant", __base__=_Variant, **fields)


def _choices(model: str) -> list[tuple[str | None, ...]]:
    """Return what can be chosen for a model: (its routing, its opponent, the opponent's routing)."""

    def routings(name: str) -> list[str | None]:
        return [None] if default_routing(name) is None else [*routing_names()]

    if default_opponent(model) is None:
        return [(routing,) for routing in routings(model)]
    its_choices = [(opponent, its) for opponent in opponent_names() for its in routings(opponent)]
    return [(routing, *chosen) for routing in routings(model) for chosen in its_choices]


if TYPE_CHECKING:
    Variant = _Variant
else:  # one class a model, told apart by the key `model`
    Variant = Annotated[Union[*map(_variant_class, model_names())], Field(discriminator="model")]
Protocol = Literal["accuracy", "familiar", "reconstruction"]
Plot = Literal["learning_curves", "error_by_variant", "routing_iterations", "reconstructions"]


class Study(Strict):
    """A whole study, as its file says it."""

    name: Name = Field(description="results go to results/NAME/")
    description: str = ""
    seeds: Annotated[list[Seed], Field(min_length=1)]
    training: Training = Training()
    experiments: Annotated[dict[Name, Experiment], Field(min_length=1)]
    variants: Annotated[dict[Name, Variant], Field(min_length=1)]
    evaluations: Annotated[list[Protocol], Field(min_length=1)] = ["accuracy", "familiar", "reconstruction"]
    tables: list[Table] | None = Field(None, description="null: those of the papers whose data sets are there")
    plots: list[Plot] = ["learning_curves", "error_by_variant", "routing_iterations", "reconstructions"]
    tracking: bool = Field(True, description="log to MLflow")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.name == "reference":
            raise ValueError("name: results/reference/ is for what is committed; take another name")
        for key in ("seeds", "evaluations", "tables", "plots"):
            _no_repeats(key, getattr(self, key) or [])
        if "accuracy" not in self.evaluations:
            raise ValueError("evaluations: 'accuracy' must be among them, every table rests on it")
        for name, experiment in self.experiments.items():
            _no_repeats(f"experiments.{name}.variants", experiment.variants or [])
            for variant in experiment.variants or []:
                if variant not in self.variants:
                    raise ValueError(
                        f"experiments.{name}.variants: no variant '{variant}'; there are {', '.join(self.variants)}"
                    )
        return self


class Run(Strict):
    """One training: everything that decides its result, with all defaults filled in."""

    study: str
    experiment: str
    variant: str
    seed: int
    data: Data
    model: str
    options: dict[str, Any]
    training: Training

    @property
    def key(self) -> str:
        """EXPERIMENT/VARIANT/seedN, the run's folder below results/STUDY/runs/."""
        return f"{self.experiment}/{self.variant}/seed{self.seed}"

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that the run rests on by name: of its data set, of its routing, of its opponent."""
        return CATALOGUE[self.data.name].modules + option_modules(self.model, self.options)

    @property
    def table(self) -> str:
        """The papers' table that the run stands in."""
        return CATALOGUE[self.data.name].table(self.data.options)

    @property
    def digest(self) -> str:
        """Hash of what decides the result: the same digest means the same training (device aside)."""
        facts = self.model_dump(mode="json", exclude={"study": True, "training": {"device"}})
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class Plan(Strict):
    """A checked study and its runs, in the order of the file, all seeds of a variant together."""

    path: Path
    study: Study
    runs: tuple[Run, ...]

    def run(self, key: str) -> Run:
        """Find a run by EXPERIMENT/VARIANT/seedN; raises KeyError."""
        for run in self.runs:
            if run.key == key:
                return run
        raise KeyError(key)

    def cell(self, experiment: str, variant: str, seed: int | str) -> Run:
        """Find a run by its place in the plan; raises KeyError."""
        return self.run(f"{experiment}/{variant}/seed{seed}")

    @property
    def tables(self) -> list[str]:
        """Return the tables that the study asks for; if it names none, those in which any of its runs stands."""
        if self.study.tables is not None:
            return list(self.study.tables)
        there = {run.table for run in self.runs}
        return [name for name in get_args(Table) if name in there]


def load_plan(path: Path) -> Plan:
    """Read and check a study file and expand it into runs. Raises InputError with one line for a person."""
    raw = read_yaml(path)
    study = check(Study, raw, path)
    runs = [
        Run(
            study=study.name, experiment=experiment_name, variant=variant, seed=seed,
            data=experiment.data, model=model, options=options, training=training,
        )
        for experiment_name, experiment in study.experiments.items()
        for base in experiment.variants or study.variants
        for variant, model, options, training in _expand(raw, study, path, experiment_name, base)
        for seed in study.seeds
    ]  # fmt: skip
    keys = [run.key for run in runs]
    for key in keys:
        if keys.count(key) > 1:  # they would share a folder
            experiment, variant, _ = key.split("/")
            refuse(path, f"experiments.{experiment}", f"variant '{variant}' is there twice, from a grid")
    return Plan(path=path, study=study, runs=tuple(runs))


def _expand(
    raw: dict[str, Any], study: Study, path: Path, experiment: str, base: str
) -> Iterable[tuple[str, str, dict[str, Any], Training]]:
    """Yield (name, model, full options, full training) for each combination of a variant's grid."""
    variant = raw["variants"][base]
    layers = (raw, raw["experiments"][experiment], variant)
    grid = variant.get("grid") or {}
    data = study.experiments[experiment].data
    for key in grid:
        if key in (variant.get("options") or {}):
            refuse(path, f"variants.{base}.options.{key}", "is in the grid too; say it once")
    for values in itertools.product(*grid.values()):
        options = dict(variant.get("options") or {})
        training: dict[str, Any] = {"augmentation": CATALOGUE[data.name].augmentation}
        for layer in layers:
            training = _merge(training, layer.get("training") or {})
        variant_name = "-".join(
            [base, *(_label(key.split(".")[-1], value) for key, value in zip(grid, values, strict=True))]
        )
        for key, value in zip(grid, values, strict=True):
            section, *names = key.split(".")
            if not names:
                options[key] = value
            elif section == "training":
                for part in reversed(names):
                    value = {part: value}
                training = _merge(training, value)
            else:
                refuse(path, f"variants.{base}.grid", f"'{key}' is not an option of the model, or training.KEY")
        where = f"variants.{base}" + (".grid" if grid else "")
        try:
            options_class = chosen_options(variant["model"], options)
        except UnknownChoice as error:
            place = "grid" if error.key.split(".")[0] in grid else "options"
            refuse(path, f"variants.{base}.{place}.{error.key}", str(error))
        checked_options = check(
            options_class,
            options,
            path,
            f"variants.{base}.options",
            dict.fromkeys(grid, where),
        )
        checked_training = check(Training, training, path, f"{where}.training")
        _check_together(checked_training, data, path, experiment, where)
        yield variant_name, variant["model"], checked_options.model_dump(mode="json"), checked_training


def _check_together(training: Training, data: Data, path: Path, experiment: str, where: str) -> None:
    """Refuse a protocol that its data set cannot bear."""
    facts = CATALOGUE[data.name]
    side = min(facts.shape(data.options)[1:])
    for name in ("shift", "cutout"):
        if (pixels := getattr(training.augmentation, name)) >= side:
            problem = f"{name} {pixels} is not less than the {side} pixels of an image of {data.name}"
            refuse(path, f"{where}.training.augmentation", problem)
    for name in ("brightness", "contrast"):  # part of smallNORB's protocol, before its images are standardised
        if getattr(training.augmentation, name) and facts.kind != "norb":
            refuse(path, f"{where}.training.augmentation.{name}", f"acts on smallnorb and toynorb, not on {data.name}")
    if training.early_stopping and not data.validation_images:
        key = f"experiments.{experiment}.data.validation_images"
        refuse(path, key, "must be positive where early_stopping is on: nothing is chosen on test")

    if training.stop_at_familiar_accuracy and not facts.has_familiar_test(data.options):
        key = f"experiments.{experiment}.training.stop_at_familiar_accuracy"
        refuse(path, key, f"the test of {data.name} is as familiar as its training; choose options that make it novel")
    if training.stop_at_familiar_accuracy and training.early_stopping:
        refuse(
            path, f"{where}.training", "early_stopping and stop_at_familiar_accuracy are two stopping rules; take one"
        )


def default_training(data: Data) -> Training:
    """Return the training protocol of a data set where a study says nothing."""
    return Training(augmentation=Augmentation(**CATALOGUE[data.name].augmentation))


def _label(name: str, value: Any) -> str:
    """One axis of a grid in a variant's name: iterations3, reconstruction, no_reconstruction."""
    if isinstance(value, bool):
        return name if value else f"no_{name}"
    if value is None:
        return f"no_{name}"
    if isinstance(value, dict):
        return "_".join([name, *(_label(k, v) for k, v in value.items())])
    text = "_".join(map(str, value)) if isinstance(value, list) else str(value)
    return name + "".join(c if c.isalnum() or c in "._-" else "_" for c in text)


def _merge(base: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in update.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merge(base[key], value) if both else value
    return merged


def _no_repeats(key: str, values: list[Any]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{key}: {value} is there twice")
