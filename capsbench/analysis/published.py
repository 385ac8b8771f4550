"""The papers' numbers (published.yaml), and whether one of our cells can be compared with them."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from capsbench.registry import MODELS, flat_options
from capsbench.study import Data, Run, Training, catalogue, default_training

# These have no bearing on the result, or are compared with a minimum instead.
_NOT_PROTOCOL = {"epochs", "device", "threads", "deterministic"}
# Which test items are drawn, and how many, bears on the precision only; training items count as `images_at_least`.
_NOT_DATA_PROTOCOL = {"train_pairs", "test_pairs", "pair_seed", "transforms_per_image", "transform_seed"}


@dataclass(frozen=True)
class Published:
    """One published value: error in %, with the standard deviation over n trials where the paper gives it.

    options: those that tell the paper's rows apart, as a study would write them. familiar: error in % on the familiar
    test. requirements: the protocol of published.yaml.
    """

    paper: str
    table: str
    protocol: str
    model: str
    options: dict[str, Any]
    error: float
    std: float | None = None
    n: int | None = None
    familiar: float | None = None
    caveat: str = ""
    from_memory: bool = False
    requirements: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the value as the paper prints it."""
        value = f"{self.error:g}" + (f" ± {self.std:g}" if self.std is not None else "")
        return value + (" [from memory]" if self.from_memory else "")


@functools.cache
def read_published() -> tuple[Published, ...]:
    """Read published.yaml."""
    raw = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text(encoding="utf-8"))
    return tuple(Published(**v, requirements=raw["protocols"][v["protocol"]]) for v in raw["values"])


def counterpart(run: Run, tables: tuple[str, ...]) -> Published | None:
    """Find the published value in the row that a run's method has in "paper table"s; None if there is no such row.

    This does not say that the two can be compared: see `deviations`. A method on a stand-in for the paper's data set
    keeps its row too.
    """
    for published in read_published():
        if (
            f"{published.paper} {published.table}" in tables
            and published.model == run.model
            and _is_task(run.data, published.requirements)
            and _is_method(flat_options(run.options), flat_options(published.options))
        ):
            return published
    return None


def deviations(run: Run, published: Published) -> list[str]:
    """Name each difference that keeps a run from being compared with a published value; empty if there is none."""
    training = Training(**dict(default_training(run.data)) | published.requirements.get("training", {}))
    return [
        *_differences_of_data(run, published.requirements),
        *_differences(flat_options(run.options), _usual_options(run, published), set()),
        *_differences(dict(run.training), dict(training), _NOT_PROTOCOL),
    ]


def _is_task(data: Data, required: dict[str, Any]) -> bool:
    options = data.options.model_dump()
    return bool(required["data_set"] == data.facts.paper) and all(
        options.get(name) == value for name, value in required.get("data_options", {}).items()
    )


def _is_method(ours: dict[str, Any], published: dict[str, Any]) -> bool:
    """Tell whether options are those of a published row. Which kind of decoder there is makes no other row."""
    return all(
        name in ours and (ours[name] == value or (name.split(".")[-1] == "decoder" and None not in (ours[name], value)))
        for name, value in published.items()
    )


def _usual_options(run: Run, published: Published) -> dict[str, Any]:
    """Return the options that the published value stands for, flat; those that a paper is silent on have defaults.

    Where a run has another member of a group than the paper, such as another loss, the options that only this member
    has are compared with its own defaults.
    """
    options_class = MODELS.options(run.model)
    own = flat_options(options_class(**_names_of_groups(run.options)).plain())
    return own | flat_options(options_class(**published.options).plain())


def _names_of_groups(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return which members the groups among options have, and nothing else."""
    return {
        key: {"name": value["name"], **_names_of_groups(value)}
        for key, value in options.items()
        if isinstance(value, Mapping)
    }


def _differences_of_data(run: Run, required: dict[str, Any]) -> list[str]:
    """Name what differs in data set, number of images and epochs, and options of the data."""
    reasons = []
    facts = run.data.facts
    if run.data.name != required["data_set"]:
        reasons.append(f"{run.data.name} is not {required['data_set']}")
    available = facts.training_items(run.data.options)
    train_images = run.data.train_images or available - run.data.validation_images
    # a stand-in that is smaller by itself is named above: here only a cut of it counts
    as_large = facts.train_items == catalogue()[required["data_set"]].train_items
    as_large = as_large and getattr(run.data.options, "lightings", 6) == 6
    if train_images < (required["train_images_at_least"] if as_large else available - run.data.validation_images):
        reasons.append(f"{train_images:,} of {available:,} training images")
    if run.training.epochs < required.get("epochs_at_least", 1):
        reasons.append(f"{run.training.epochs} epochs, not {required['epochs_at_least']} or more")
    shown = run.training.epochs * getattr(run.data.options, "train_pairs", train_images)
    if shown < required.get("images_at_least", 0):
        reasons.append(f"{shown:,} training images drawn, not {required['images_at_least']:,} or more")
    usual = facts.options().model_dump() | required.get("data_options", {})
    return reasons + _differences(run.data.options.model_dump(), usual, _NOT_DATA_PROTOCOL)


def _differences(ours: dict[str, Any], usual: dict[str, Any], leave_out: set[str]) -> list[str]:
    """Return "name ours, not usual" for each value that differs."""
    return [
        f"{name} {_short(value)}, not {_short(usual[name])}"
        for name, value in ours.items()
        if name in usual and name not in leave_out and value != usual[name]
    ]


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    if hasattr(value, "model_dump"):
        return ", ".join(f"{k} {v}" for k, v in value.model_dump().items() if v) or "none"
    return str(value)
