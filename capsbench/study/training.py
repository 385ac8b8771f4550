"""The protocol of training, as a study file has it."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from capsbench.registry import Count, Fraction, NonNegative, Positive, Said
from capsbench.study.base import Name, Strict

DEFAULT_STEPS = 300_000
LATER = {"precision": "float32", "compile": "off"}  # options that came after the first committed results


class Augmentation(Strict):
    """Drawn for each training image on its own. What is not set is what the papers do to the data set: see below."""

    shift: Annotated[int, Field(ge=0)] = Field(0, description="pixels, each axis, zeros come in; MNIST: 2, CIFAR-10: 4")
    flip: bool = Field(False, description="left to right, every second image; CIFAR-10: true")
    rotation: Annotated[float, Field(ge=0, le=180)] = Field(0.0, description="degrees, up to this either way")
    scale: Fraction = Field(0.0, description="0.2 draws a factor from 0.8 to 1.2")
    cutout: Annotated[int, Field(ge=0)] = Field(0, description="side of the square set to zero, pixels")
    brightness: NonNegative = Field(
        0.0, description="smallNORB, its stand-in, CIFAR-10: added, up to this either way, of 0 to 1; smallNORB: 63/255"
    )
    contrast: Fraction = Field(0.0, description="on the same: 0.8 draws a factor from 0.2 to 1.8; smallNORB: 0.8")


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
        None, description="length in passes over the training images; of two levels that set a length, the later counts"
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
    compile: Literal["off", "graph", "inductor"] = Field(
        "off",
        description="of training steps. graph: one CUDA graph; inductor: compiled by torch, on a GPU into one graph. "
        "Where torch refuses, or computes something else, steps are plain ones, and run.yaml says why",
    )
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
    def _graph_needs_a_gpu(self) -> Self:
        if self.compile == "graph" and self.device == "cpu":
            raise ValueError("compile graph is of GPUs, and device is cpu; use off")
        return self

    @model_validator(mode="after")
    def _rate_above_floor(self) -> Self:
        if self.lr_floor > self.learning_rate:
            raise ValueError(f"lr_floor {self.lr_floor:g} is above learning_rate {self.learning_rate:g}")
        return self

    @property
    def later(self) -> set[str]:
        """The options that came later and have their default: what they say held before them."""
        return {name for name, usual in LATER.items() if getattr(self, name) == usual}

    def steps_per_epoch(self, images_per_epoch: int) -> int:
        """Return the number of batches of an epoch; the last one may be short."""
        return -(-images_per_epoch // self.batch_size)

    def total_steps(self, images_per_epoch: int) -> int:
        """Return the length of the training in steps."""
        return self.steps or (self.epochs or 0) * self.steps_per_epoch(images_per_epoch)
