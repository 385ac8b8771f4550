"""Checks of what several values of a study mean together."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from capsbench.registry import MODELS, no_such
from capsbench.study.files import refuse
from capsbench.study.schema import Data
from capsbench.study.training import Training


def check_data(data: Data, path: Path, where: str) -> None:
    """Refuse a cut that leaves too few images, or asks for more than there are."""
    facts = data.facts
    available = facts.training_items(data.options)
    if data.train_images is not None and data.train_images < facts.num_classes:
        refuse(path, where, f"train_images is {data.train_images}, fewer than the {facts.num_classes} classes")
    held_out = facts.held_out(data.options, data.validation_images)
    wanted = (data.train_images or 1) + held_out
    if wanted > available:
        objects = f" ({held_out} with the whole of their objects)" if held_out != data.validation_images else ""
        problem = f"train_images + validation_images{objects} is {wanted}, {data.name} has {available} training images"
        refuse(path, where, problem)


def check_protocol(training: Training, data: Data, path: Path, experiment: str, where: str) -> None:
    """Refuse a protocol that its data set cannot bear."""
    facts = data.facts
    side = min(data.image_shape[1:])
    for name in ("shift", "cutout"):
        if (pixels := getattr(training.augmentation, name)) >= side:
            problem = f"{name} {pixels} is not less than the {side} pixels of an image of {data.name}"
            refuse(path, f"{where}.training.augmentation", problem)
    for name in ("brightness", "contrast"):
        if getattr(training.augmentation, name) and not facts.takes_brightness(data.options):
            problem = f"acts on smallnorb, toynorb and, with standardise: true, on cifar10; not on {data.name} here"
            refuse(path, f"{where}.training.augmentation.{name}", problem)
    if training.early_stopping and not data.validation_images:
        key = f"experiments.{experiment}.data.validation_images"
        refuse(path, key, "must be positive where early_stopping is on: nothing is chosen on test")
    if training.early_stopping and training.match is not None:
        refuse(path, f"{where}.training", "early_stopping and match are two stopping rules; take one")


def check_form(training: Training, model: str, path: Path, where: str) -> None:
    """Refuse steps as one graph for a network whose steps are not alike."""
    if training.compile != "off" and MODELS[model].facts.get("counts_steps"):
        problem = (
            f"{training.compile} takes every step alike, and the loss of {model} asks at which step it is; use off"
        )
        refuse(path, f"{where}.training.compile", problem)


def check_matches(matches: Mapping[str, str | None], data: Data, path: Path, where: Callable[[str], str]) -> None:
    """Refuse a `match` that no run of the experiment can follow.

    Args:
        matches: of each variant of the experiment, the variant that it is matched to, or None.
        data: of the experiment.
        path: of the study.
        where: of a variant, the place in the study that sets its `match`.
    """
    for variant, matched in matches.items():
        if matched is None:
            continue
        place = where(variant)
        if not data.has_familiar_test:
            problem = f"the test of {data.name} is as familiar as its training; choose options that make it novel"
            refuse(path, place, problem)
        if matched not in matches:
            refuse(path, place, no_such("variant of this experiment", matched, list(matches)))
        chain = _chain(variant, matches)
        if matched == variant:
            problem = (
                f"'{variant}' cannot be matched to itself; set match for the others alone, or null for '{variant}'"
            )
            refuse(path, place, problem)
        if chain[-1] == variant:
            refuse(path, place, f"a circle: {' is matched to '.join(chain)}")


def _chain(variant: str, matches: Mapping[str, str | None]) -> list[str]:
    """Follow the matches of a variant until one is there for the second time, or has none itself."""
    chain = [variant]
    while (following := matches.get(chain[-1])) is not None:
        chain.append(following)
        if following in chain[:-1]:
            break
    return chain


def layered(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return `training` of an outer layer of a study with that of an inner one: key by key, one length for the other.

    A layer that sets both steps and epochs keeps both, for the check of the whole to refuse.
    """
    merged = dict(outer)
    for length in ("steps", "epochs"):
        if inner.get(length) is not None:
            merged.pop("epochs" if length == "steps" else "steps", None)
    for key, value in inner.items():
        both = isinstance(value, Mapping) and isinstance(outer.get(key), Mapping)
        merged[key] = {**outer[key], **value} if both else value
    return merged


def default_training(data: Data, changes: Mapping[str, Any] = MappingProxyType({})) -> Training:
    """Return the training protocol of a data set where a study says nothing but `changes`."""
    return Training.model_validate(layered(data_defaults(data), changes))


def data_defaults(data: Data) -> dict[str, Any]:
    """Return what a data set sets of `training` under its options, as the outermost layer of a study."""
    return {**data.facts.training, "augmentation": dict(data.facts.default_augmentation(data.options))}
