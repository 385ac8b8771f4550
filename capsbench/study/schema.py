"""The format of a study file, and what it becomes: runs, with all defaults filled in.

A study file holds data sets, variants, grids of options, seeds, a protocol of training, evaluations, tables and plots.
The options of data sets and networks are checked against their own declarations in capsbench.study.grid.
"""

import hashlib
import json
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    model_validator,
)

from capsbench.registry import (
    MODELS,
    PROTOCOLS,
    Count,
    Fraction,
    NonNegative,
    Options,
    Positive,
    Said,
    no_such,
    without_later,
)
from capsbench.study.contrasts import Family
from capsbench.study.data_sets import DataOptions, DataSet, catalogue
from capsbench.study.evaluations import Protocol, check_own
from capsbench.study.tables import AnyTable

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]
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


PlotName = Annotated[str, AfterValidator(_is_plot)]


DEFAULT_STEPS = 300_000


class Strict(BaseModel):
    """No unknown keys, no silent conversions, no changes after the check."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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


def _not_both_lengths(schema: dict[str, Any]) -> None:
    """Say in the JSON schema that steps and epochs are not both set."""
    whole = {name: {"type": "integer"} for name in ("steps", "epochs")}
    schema["not"] = {"properties": whole, "required": list(whole)}


class Training(Strict):
    """The protocol of training. Defaults are those of S17 and its authors' code."""

    model_config = ConfigDict(json_schema_extra=_not_both_lengths)

    steps: Annotated[
        Count | None,
        Said(
            paper="silent",
            code="300,000, which take the rate to 2.2e-6",
            note="S17: the command of its authors' README; H18: at most 2,000,000",
        ),
    ] = Field(DEFAULT_STEPS, description="length in batches; null where epochs are set")
    epochs: Count | None = Field(
        None, description="length in passes over the training images, instead of steps; the inner of two layers counts"
    )
    batch_size: Annotated[
        Count, Said(paper="silent", code="S17: 128; H18: 64", note="images per step, over all GPUs together")
    ] = Field(128, description="images per step; the last batch of an epoch may be smaller")
    learning_rate: Annotated[
        Positive,
        Said(paper="S17: TensorFlow's default for Adam, 0.001; H18: none", code="S17: 0.001; H18: 0.01 as stored"),
    ] = Field(0.001, description="of Adam, at the start")
    lr_decay: Annotated[float, Field(gt=0, le=1)] = Field(0.96, description="factor per lr_decay_every")
    lr_decay_every: Annotated[
        Count,
        Said(
            paper="S17: 10 times longer on MultiMNIST, so 20,000",
            code="S17: 2,000; H18: 20,000",
            note="S17, 6.2; the default follows the data set",
        ),
    ] = Field(2000, description="length of one decay, in lr_decay_unit; by default 20,000 for pairs of digits")
    lr_decay_unit: Literal["step", "epoch"] = Field("step", description="unit of lr_decay_every")
    lr_decay_staircase: bool = Field(False, description="by whole steps of lr_decay_every, else smoothly")
    lr_floor: Annotated[
        NonNegative, Said(paper="silent", code="S17: 1e-6; H18: none, or 1e-6 with its flag clip_lr")
    ] = Field(1e-6, description="lowest learning rate")
    schedule: Literal["absolute", "scaled"] = Field(
        "absolute",
        description="scaled: the decay of the rate and the schedule of the loss go over this training, however long, "
        "as they would over schedule_steps",
    )
    schedule_steps: Count = Field(DEFAULT_STEPS, description="length that a scaled schedule is written for, in steps")
    warmup_steps: Annotated[int, Field(ge=0)] = Field(0, description="steps of linear rise from zero")
    weight_decay: NonNegative = Field(0.0, description="decoupled (AdamW)")
    l2: Annotated[
        NonNegative,
        Said(
            paper="silent",
            code="S17: none; H18: 1e-7",
            note="beside a spread loss that is a mean over the 5 classes; beside our sum 5e-7 weighs as much",
        ),
    ] = Field(
        0.0, description="l2 times the squared norm of all kernels (parameters of 2 or more axes), joins the loss"
    )
    gradient_clip: Positive | None = Field(None, description="largest norm of the whole gradient; null: none")
    augmentation: Augmentation = Field(Augmentation(), description="by default what the papers do to the data set")
    early_stopping: Count | None = Field(
        None,
        description="stop after this number of epochs without a better validation accuracy, and keep the best epoch",
    )
    match: Annotated[
        Name | None,
        Said(
            paper="H18: capsules stop where their familiar error is that of the fully trained CNN",
            note="H18, 5.1; S17's affNIST networks stand at 99.23 and 99.22 %",
        ),
    ] = Field(
        None,
        description="stop once the familiar error is that of this variant's run of the same "
        "experiment and seed, which is trained first; the novel test is never looked at",
    )
    match_every: Count = Field(100, description="steps between two looks at the familiar test, where match is set")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU if there is one")
    threads: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="CPU threads a run computes with; part of what fixes the bytes"
    )
    deterministic: bool = Field(False, description="deterministic kernels on a GPU too, at some cost")
    precision: Literal["float32", "bfloat16", "tf32"] = Field(
        "float32",
        description="of training steps. bfloat16: convolutions alone, float32 elsewhere; tf32: convolutions and matrix "
        "products of a GPU. Evaluations are float32",
    )

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        """Leave one of steps and epochs set: null is as good as unset, and neither means the default."""
        steps_are_set = "steps" in self.model_fields_set and self.steps is not None
        if self.epochs is not None and steps_are_set:
            raise ValueError(f"steps {self.steps} and epochs {self.epochs} are two lengths of one training; set one")
        self.__dict__["steps"] = None if self.epochs is not None else self.steps or DEFAULT_STEPS
        return self

    @model_validator(mode="after")
    def _tf32_needs_a_gpu(self) -> Self:
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError("precision tf32 is of GPUs, and device is cpu; use bfloat16 or float32")
        return self

    @model_validator(mode="after")
    def _rate_above_floor(self) -> Self:
        if self.lr_floor > self.learning_rate:
            raise ValueError(f"lr_floor {self.lr_floor:g} is above learning_rate {self.learning_rate:g}")
        return self

    def steps_per_epoch(self, images_per_epoch: int) -> int:
        """Return the number of batches of an epoch; the last one may be short."""
        return -(-images_per_epoch // self.batch_size)

    def total_steps(self, images_per_epoch: int) -> int:
        """Return the length of the training in steps."""
        return self.steps or (self.epochs or 0) * self.steps_per_epoch(images_per_epoch)


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
        aside: dict[str, Any] = {"study": True, "label": True, "training": {"device"}, "data": {"split"}}
        if self.training.precision == "float32":  # the option came later
            aside["training"] = {"device", "precision"}
        facts = self.model_dump(mode="json", exclude=aside)
        facts["options"] = self.lasting_options
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _no_repeats(key: str, values: list[Any]) -> None:
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{key}: {twice[0]} is there twice")
