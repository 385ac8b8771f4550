"""Checks of what several values of a study mean together."""

from pathlib import Path

from capsbench.study.files import refuse
from capsbench.study.schema import Augmentation, Data, Training


def check_data(data: Data, path: Path, where: str) -> None:
    """Refuse a cut that leaves too few images, or asks for more than there are."""
    facts = data.facts
    available = facts.training_items(data.options)
    if data.train_images is not None and data.train_images < facts.num_classes:
        refuse(path, where, f"train_images is {data.train_images}, fewer than the {facts.num_classes} classes")
    wanted = (data.train_images or 1) + data.validation_images
    if wanted > available:
        refuse(
            path, where, f"train_images + validation_images is {wanted}, {data.name} has {available} training images"
        )


def check_protocol(training: Training, data: Data, path: Path, experiment: str, where: str) -> None:
    """Refuse a protocol that its data set cannot bear."""
    facts = data.facts
    side = min(data.image_shape[1:])
    for name in ("shift", "cutout"):
        if (pixels := getattr(training.augmentation, name)) >= side:
            problem = f"{name} {pixels} is not less than the {side} pixels of an image of {data.name}"
            refuse(path, f"{where}.training.augmentation", problem)
    for name in ("brightness", "contrast"):  # part of smallNORB's protocol, before its images are standardised
        if getattr(training.augmentation, name) and not facts.in_stereo:
            refuse(path, f"{where}.training.augmentation.{name}", f"acts on smallnorb and toynorb, not on {data.name}")
    if training.early_stopping and not data.validation_images:
        key = f"experiments.{experiment}.data.validation_images"
        refuse(path, key, "must be positive where early_stopping is on: nothing is chosen on test")
    if training.stop_at_familiar_accuracy and not data.has_familiar_test:
        key = f"experiments.{experiment}.training.stop_at_familiar_accuracy"
        refuse(path, key, f"the test of {data.name} is as familiar as its training; choose options that make it novel")
    if training.stop_at_familiar_accuracy and training.early_stopping:
        refuse(
            path, f"{where}.training", "early_stopping and stop_at_familiar_accuracy are two stopping rules; take one"
        )


def default_training(data: Data) -> Training:
    """Return the training protocol of a data set where a study says nothing."""
    return Training(augmentation=Augmentation(**data.facts.augmentation))
