"""Networks that cannot be built, or whose loss cannot be taken, are found before anything trains."""

from contextlib import suppress

import torch
from torch import nn

from capsbench.errors import InputError
from capsbench.losses import Loss
from capsbench.models import build_model, count_parameters
from capsbench.registry import MODELS
from capsbench.study import DataSet, Plan

MOST_PARAMETERS = 1_000_000_000  # 16 GB with gradients and Adam's moments; the papers' networks have up to 25 million


def check_networks(plan: Plan, experiment: str) -> None:
    """Build every network of an experiment on the meta device, and call its losses: no memory, next to no time.

    Raises InputError, in one line, for options that are possible alone but not together or not on these images.
    """
    variants = {run.variant: run for run in plan.runs if run.experiment == experiment}
    for name, run in variants.items():
        if (objects := run.data.facts.objects) > 1 and MODELS[run.model].facts.get("one_class"):
            raise InputError(
                f"{plan.path}: {experiment}/{name}: {run.model} is for one class per image, and images of "
                f"{run.data.name} show {objects}"
            )
        try:
            with torch.device("meta"):
                model = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)
                for loss in model.modules():
                    if isinstance(loss, Loss):
                        _try_loss(loss, run.data.facts)
        except ValueError as error:
            raise InputError(f"{plan.path}: {experiment}/{name}: {error}") from None
        if run.training.precision == "bfloat16" and not any(type(module) is nn.Conv2d for module in model.modules()):
            raise InputError(
                f"{plan.path}: {experiment}/{name}: precision bfloat16 is of convolutions, and {run.model} has none; "
                "use float32"
            )
        if (number := count_parameters(model)) > MOST_PARAMETERS:
            raise InputError(
                f"{plan.path}: {experiment}/{name}: a network of {number:,} parameters, more than {MOST_PARAMETERS:,}; "
                "is one of its widths a slip?"
            )


def _try_loss(loss: Loss, facts: DataSet) -> None:
    """Call a loss on the meta device, on labels as the data set has them. Raises ValueError where it refuses them."""
    labels = torch.zeros((1, facts.objects) if facts.objects > 1 else 1, dtype=torch.long)
    with suppress(RuntimeError):  # what it calls does not exist there
        loss(torch.zeros(1, facts.num_classes), labels)
