"""The papers' numbers (published.yaml), and whether one of our cells may be held against them."""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from capsbench.config import Run, Training, default_training
from capsbench.data.catalogue import CATALOGUE
from capsbench.options import default_routing, model_options

# what does not bear on the result, or is held against a minimum instead
_NOT_PROTOCOL = {"epochs", "device", "threads", "deterministic"}
# which test items are drawn, and how many, bears on the precision alone; training items count as `images_at_least`
_NOT_DATA_PROTOCOL = {"train_pairs", "test_pairs", "pair_seed", "transforms_per_image", "transform_seed"}


@dataclass(frozen=True)
class Published:
    """One published value: error in %, the std over n trials where the paper gives it."""

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
    """Find the published value that a run's method stands beside in "paper table"s, be the run comparable or not.

    A method on a stand-in keeps its row of the paper's table, where it is not comparable.
    """
    options = run.data.options.model_dump()
    for published in read_published():
        required = published.requirements
        if (
            f"{published.paper} {published.table}" in tables
            and published.model == run.model
            and required["data_set"] == CATALOGUE[run.data.name].paper
            and all(options.get(name) == value for name, value in required.get("data_options", {}).items())
            and all(run.options.get(name) == value for name, value in published.options.items())
        ):
            return published
    return None


def deviations(run: Run, published: Published) -> list[str]:
    """Name what keeps a run from being compared with a published value; empty if nothing does."""
    reasons = []
    required = published.requirements
    facts = CATALOGUE[run.data.name]
    if run.data.name != required["data_set"]:
        reasons.append(f"{run.data.name} is not {required['data_set']}")
    available = facts.training_items(run.data.options)
    train_images = run.data.train_images or available - run.data.validation_images
    # of a smaller stand-in only a cut is worth a word
    as_large = facts.train_items == CATALOGUE[required["data_set"]].train_items
    as_large = as_large and getattr(run.data.options, "lightings", 6) == 6
    if train_images < (required["train_images_at_least"] if as_large else available - run.data.validation_images):
        reasons.append(f"{train_images:,} of {available:,} training images")
    if run.training.epochs < required.get("epochs_at_least", 1):
        reasons.append(f"{run.training.epochs} epochs, not {required['epochs_at_least']} or more")
    shown = run.training.epochs * getattr(run.data.options, "train_pairs", train_images)
    if shown < required.get("images_at_least", 0):
        reasons.append(f"{shown:,} training images drawn, not {required['images_at_least']:,} or more")
    usual_data = facts.options().model_dump() | required.get("data_options", {})
    reasons += _differences(run.data.options.model_dump(), usual_data, _NOT_DATA_PROTOCOL)
    routing = run.options["routing"] if default_routing(run.model) else None
    defaults = model_options(run.model, routing)().model_dump(mode="json") | published.options
    without_decoder = run.options.get("reconstruction") is False
    cannot_act = {o for o in run.options if without_decoder and o.startswith(("decoder", "reconstruction_"))}
    reasons += _differences(run.options, defaults, cannot_act)
    usual = Training(**dict(default_training(run.data)) | required.get("training", {}))
    reasons += _differences(dict(run.training), dict(usual), _NOT_PROTOCOL)
    return reasons


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
