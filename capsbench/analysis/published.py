"""The papers' numbers (published.yaml), and whether one of our cells may be held against them."""

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from capsbench.config import Run, Training
from capsbench.data.catalogue import CATALOGUE
from capsbench.options import model_options

# what does not bear on the result, or is held against a minimum instead
_NOT_PROTOCOL = {"epochs", "device", "threads", "deterministic"}


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


def counterpart(run: Run, table: str) -> Published | None:
    """Find the published value that a run's method stands beside, be the run comparable or not.

    Data set aside: a method keeps its row of the paper's table on a stand-in too, where it is not comparable.
    """
    fitting = [
        p
        for p in read_published()
        if f"{p.paper} {p.table}" == table
        and p.model == run.model
        and all(run.options.get(name) == value for name, value in p.options.items())
    ]
    same_data = [p for p in fitting if p.requirements["data_set"] == run.data.name]
    return next(iter(same_data or fitting), None)


def deviations(run: Run, published: Published) -> list[str]:
    """Name what keeps a run from being compared with a published value; empty if nothing does."""
    reasons = []
    required = published.requirements
    facts = CATALOGUE[run.data.name]
    if run.data.name != required["data_set"]:
        reasons.append(f"{run.data.name} is not {required['data_set']}")
    train_images = run.data.train_images or facts.train_images - run.data.validation_images
    if run.data.name == required["data_set"] and train_images < required["train_images_at_least"]:
        reasons.append(f"{train_images:,} of {facts.train_images:,} training images")
    if run.training.epochs < required["epochs_at_least"]:
        reasons.append(f"{run.training.epochs} epochs, not {required['epochs_at_least']} or more")
    defaults = model_options(run.model)().model_dump(mode="json")
    for name, value in run.options.items():
        without_decoder = run.options.get("reconstruction") is False
        if without_decoder and name.startswith(("decoder_", "reconstruction_")):
            continue  # it cannot act
        if name not in published.options and value != defaults[name]:
            reasons.append(f"{name} {_short(value)}, not {_short(defaults[name])}")
    usual = Training()
    for name, value in run.training:
        if name not in _NOT_PROTOCOL and value != getattr(usual, name):
            reasons.append(f"{name} {_short(value)}, not {_short(getattr(usual, name))}")
    return reasons


def _short(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "-".join(map(str, value))
    if hasattr(value, "model_dump"):
        return ", ".join(f"{k} {v}" for k, v in value.model_dump().items() if v) or "none"
    return str(value)
