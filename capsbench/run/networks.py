"""Networks that cannot be built are found before anything trains."""

import torch

from capsbench.errors import InputError
from capsbench.models import build_model, count_parameters
from capsbench.study import Plan

MOST_PARAMETERS = 1_000_000_000  # 16 GB with gradients and Adam's moments; the papers' networks have up to 25 million


def check_networks(plan: Plan, experiment: str) -> None:
    """Build every network of an experiment on the meta device, which costs no memory and next to no time.

    Raises InputError, in one line, for options that are possible alone but not together or not on these images.
    """
    variants = {run.variant: run for run in plan.runs if run.experiment == experiment}
    for name, run in variants.items():
        try:
            with torch.device("meta"):
                model = build_model(run.model, run.data.image_shape, run.data.facts.num_classes, **run.options)
        except ValueError as error:
            raise InputError(f"{plan.path}: {experiment}/{name}: {error}") from None
        if (number := count_parameters(model)) > MOST_PARAMETERS:
            raise InputError(
                f"{plan.path}: {experiment}/{name}: a network of {number:,} parameters, more than {MOST_PARAMETERS:,}; "
                "is one of its widths a slip?"
            )
