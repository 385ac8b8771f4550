"""The format of a study file, and what it becomes: runs, with all defaults filled in.

A study file holds data sets, variants, grids of options, seeds, a protocol of training, evaluations, tables and plots.
The options of data sets and networks are checked against their own declarations in capsbench.study.grid.
"""

import hashlib
import json
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    Field,
    SerializeAsAny,
    model_validator,
)

from capsbench.registry import (
    MODELS,
    PROTOCOLS,
    Count,
    Options,
    no_such,
    without_later,
)
from capsbench.study.base import Name, Strict
from capsbench.study.contrasts import Family
from capsbench.study.data_sets import DataOptions, DataSet, catalogue
from capsbench.study.evaluations import Protocol, check_own
from capsbench.study.tables import AnyTable
from capsbench.study.training import Training

RESERVED = {
    "reference": "is for what is committed", "mlflow.db": "is the store of MLflow", "mlruns": "is for MLflow's files",
    "reproduced": "is for runs that are made again", "bench": "is for what capsbench bench measures",
    "data": "is for what capsbench data describes", "logs": "is for logs", "mlflow-artifacts": "is for MLflow's files",
}  # fmt: skip
Seed = Annotated[int, Field(ge=0, lt=2**31)]
Plot = Literal[
    "contrasts", "published", "error_by_variant", "learning_curves", "routing_iterations", "accuracy_cost",
    "familiar_novel", "coupling_entropy", "reconstructions", "templates",
]  # fmt: skip


def _is_plot(name: str) -> str:
    of_protocols = [each for each in PROTOCOLS.names() if PROTOCOLS[each].facts.get("draws")]
    if name not in (known := [*get_args(Plot), *of_protocols]):
        raise ValueError(no_such("plot", name, known))
    return name


Answers = Annotated[dict[str, Annotated[list[str], Field(min_length=1)]], Field(min_length=1)]
PlotName = Annotated[str, AfterValidator(_is_plot)]


class Data(Strict):
    """What is trained and tested on. The test set is always whole."""

    name: str = Field(description="a data set")
    options: SerializeAsAny[DataOptions] = Field(DataOptions(), description="those of the data set")
    train_images: Count | None = Field(None, description="cut the training set down, stratified; null: all")
    validation_images: Annotated[int, Field(ge=0)] = Field(
        0, description="held out of the training set before it is cut down, stratified"
    )
    split: Literal["fixed", "per_seed"] = Field(
        "fixed",
        description="fixed: all runs are trained on the same images; per_seed: each seed draws its own validation set "
        "and cut, so that an interval over seeds covers the choice of images too",
    )
    split_seed: Seed = Field(
        0, description="draws the validation set and the cut; with split: per_seed the seed of the run is added to it"
    )
    allow_unofficial: bool = Field(
        False, description="use files whose checksum is not the official one, marked in every table"
    )

    @property
    def facts(self) -> DataSet:
        """Return what is known of the data set."""
        return catalogue()[self.name]

    @model_validator(mode="after")
    def _draws_something(self) -> Self:
        if self.split == "per_seed" and self.train_images is None and not self.validation_images:
            raise ValueError(
                "split: per_seed draws nothing, all runs see the whole training set; set train_images or "
                "validation_images, or leave split out"
            )
        return self

    def drawn_for(self, seed: int) -> Self:
        """Return the data of one run: `split_seed` is then what its validation set and cut are drawn by."""
        if self.split == "fixed":
            return self
        return self.model_copy(update={"split_seed": (self.split_seed + seed) % 2**31})

    @property
    def trained_images(self) -> int:
        """Return how many items are left to train on after the validation set and the cut."""
        available = self.facts.training_items(self.options)
        return self.train_images or available - self.facts.held_out(self.options, self.validation_images)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return (C, H, W) of what a network sees."""
        return self.facts.shape(self.options)

    @property
    def has_familiar_test(self) -> bool:
        """Tell whether there is a familiar test beside the test."""
        return self.facts.has_familiar_test(self.options)


class DataInFile(Data):
    """Data as a study file has them, their options not checked yet."""

    options: dict[str, Any] = Field({}, description="those of the data set")  # type: ignore[assignment]


class Experiment(Strict):
    """One data set under one protocol: a folder of runs, a block of rows in the tables."""

    data: DataInFile = Field(description="what is trained and tested on")
    training: Training = Field(Training(), description="replaces the study's values key by key")
    variants: Annotated[list[Name], Field(min_length=1)] | None = Field(None, description="null: all variants")
    evaluations: list[Protocol] = Field([], description="protocols of this experiment alone, beside those of the study")


class Variant(Strict):
    """A network with its options, or a grid of them."""

    model: str = Field(description="a network")
    label: str | None = Field(None, min_length=1, max_length=60, description="what tables and plots call it")
    options: dict[str, Any] = Field({}, description="those of the network")
    training: Training = Field(Training(), description="replaces the experiment's values key by key")
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        {},
        description="option, as routing.iterations, or training.KEY -> values: one variant for each combination",
    )


class Study(Strict):
    """A whole study, as its file has it."""

    schema_: Literal[2] = Field(2, alias="schema", description="number of this format; files of another are refused")
    name: Name = Field(description="results go to results/NAME/")
    description: str = Field("", description="shown in the report")
    seeds: Annotated[list[Seed], Field(min_length=1, description="one run per seed")]
    training: Training = Field(Training(), description="the protocol, for all experiments")
    experiments: Annotated[dict[Name, Experiment], Field(min_length=1, description="by name")]
    variants: Annotated[dict[Name, Variant], Field(min_length=1, description="by name")]
    evaluations: Annotated[list[Protocol], Field(min_length=1)] = Field(
        ["accuracy", "familiar", "reconstruction"],
        validate_default=True,
        description="protocols that finished runs are measured by: a name, or {name: ..., OPTION: ...}",
    )
    contrasts: dict[Name, Family] | None = Field(
        None, description="family -> pairs of variants to compare at equal seeds; null: each axis of each grid"
    )
    questions: dict[str, Answers] = Field(
        {}, description="what the report says first: question -> row -> names of contrasts, one per experiment"
    )
    tables: list[AnyTable] | None = Field(None, description="names, and own ones; without names: all that have content")
    plots: list[PlotName] = Field(
        list(get_args(Plot)),
        description="figures to draw, those of protocols by their names; by default all that the study gives something",
    )
    tracking: bool = Field(True, description="log to MLflow")
    keep_weights: list[str] = Field([], description="runs whose weights a reference keeps; * stands for anything")

    @property
    def protocols(self) -> list[str]:
        """Names of the evaluations: those of all runs, then those of some experiments."""
        own = [options for experiment in self.experiments.values() for options in experiment.evaluations]
        return list(dict.fromkeys(options.name for options in [*self.evaluations, *own]))

    def evaluations_of(self, experiment: str) -> list[Options]:
        """Return the protocols that the runs of an experiment are measured by."""
        return [*self.evaluations, *self.experiments[experiment].evaluations]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if taken := RESERVED.get("mlflow.db" if self.name.startswith("mlflow.db") else self.name):
            raise ValueError(f"name: results/{self.name} {taken}; take another name")
        for key in ("seeds", "tables", "plots"):
            _no_repeats(key, getattr(self, key) or [])
        shared = [options.name for options in self.evaluations]
        _no_repeats("evaluations", shared)
        if "accuracy" not in shared:
            raise ValueError("evaluations: 'accuracy' must be among them, every table rests on it")
        for name, experiment in self.experiments.items():
            _no_repeats(f"experiments.{name}.variants", experiment.variants or [])
            check_own(f"experiments.{name}.evaluations", [o.name for o in experiment.evaluations], shared)
            for variant in experiment.variants or []:
                if variant not in self.variants:
                    raise ValueError(
                        f"experiments.{name}.variants: no variant '{variant}'; there are {', '.join(self.variants)}"
                    )
        return self


class Run(Strict):
    """One training: everything that decides its result, with all defaults filled in.

    options: of the network, as a study would write them: groups are mappings with a `name`, or None. matched_digest: of
    the run that `training.match` names; None where there is none, or where the run was read back from its folder.
    """

    study: str
    experiment: str
    variant: str
    label: str
    seed: int
    data: Data
    model: str
    options: dict[str, Any]
    training: Training
    matched_digest: str | None = None

    @property
    def key(self) -> str:
        """EXPERIMENT/VARIANT/seedN, the run's folder below results/STUDY/runs/."""
        return f"{self.experiment}/{self.variant}/seed{self.seed}"

    @property
    def matched_key(self) -> str | None:
        """The key of the run whose familiar error this one stops at, or None."""
        return f"{self.experiment}/{self.training.match}/seed{self.seed}" if self.training.match else None

    @property
    def table(self) -> str:
        """The papers' table that the run stands in."""
        return self.data.facts.table(self.data.options)

    @property
    def lasting_options(self) -> dict[str, Any]:
        """The options without those that are marked `Later` and have their default: as before they came."""
        return without_later(MODELS.options(self.model), self.options)

    @property
    def digest(self) -> str:
        """Hash of what decides the result: the same digest means the same training (device aside)."""
        # data.split: the images that a run draws follow from its split_seed
        aside = {"study": True, "label": True, "training": {"device", *self.training.later}, "data": {"split"}}
        facts = self.model_dump(mode="json", exclude=aside)  # type: ignore[arg-type]
        facts["options"] = self.lasting_options
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _no_repeats(key: str, values: list[Any]) -> None:
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{key}: {twice[0]} is there twice")
