"""Networks: one file each, registered by its name, e.g. models/capsnet.py is `capsnet`.

The contract: a file holds one public class, a torch module built as Class(image_shape, num_classes, *, options),
whose keyword-only arguments are its options with the paper's values as defaults, and that has

    forward(images [B, C, H, W], labels=None) -> Output
    loss(output, targets, labels) -> {"part": scalar, ...}, the parts adding up to the loss that is trained.

The file's first sentence names the network and its paper; PUBLISHED_ON, if it is there, is (image shape, classes) of
the paper's data, for which `capsbench models` counts parameters and multiply-adds: ((1, 28, 28), 10) if not. A network
can be built on the meta device, where `cnn_matched` counts the parameters of its opponent.

labels: int64 [B], or [B, S] of the S classes in an image, ascending. targets: what a decoder should give back, in
[0, 1], [B, C, H, W] or [B, S, C, H, W]; of most data sets the images themselves.
"""

import importlib
from typing import Any

from pydantic import ValidationError
from torch import Tensor, nn

from capsbench.models.output import Output, answer, predicted_classes
from capsbench.options import UnknownChoice, chosen_options, model_class_name, model_names

__all__ = ["Output", "answer", "build_model", "count_parameters", "loss_parts", "model_names", "predicted_classes"]


def build_model(name: str, image_shape: tuple[int, int, int], num_classes: int, **options: Any) -> nn.Module:
    """Build a registered network for images [C, H, W] and K classes.

    Raises ValueError, in one line, for an unknown name or option or an impossible value.
    """
    if name not in model_names():
        raise ValueError(f"no model '{name}'; there are {', '.join(model_names())}")
    try:
        checked = chosen_options(name, options)(**options)
    except UnknownChoice as error:
        raise ValueError(f"{name}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{name}: option '{key}': {first['msg']}") from None
    module = importlib.import_module(f"capsbench.models.{name}")
    model_class = getattr(module, model_class_name(name))
    return model_class(tuple(image_shape), num_classes, **checked.model_dump())


def count_parameters(model: nn.Module) -> int:
    """Count the trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def loss_parts(model: nn.Module, output: Output, targets: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the parts of a network's loss by name, scalars: what is trained is their sum."""
    return model.loss(output, targets, labels)  # type: ignore[operator]
