"""Networks, one per file, registered by name.

The contract: a `Network` is a torch module built as Class(image_shape, num_classes, *, options), whose keyword-only
arguments are its options with defaults from its paper or its authors' code, and that has

    forward(images [B, C, H, W], labels=None) -> Output
    loss(output, targets, labels) -> {"part": scalar, ...}, the parts adding up to the loss that is trained.

It is registered with MODELS.register(name, title=..., published_on=(image shape, classes), routing=...): the title for
tables and plots, the images of the paper (MNIST by default), for which `capsbench models` counts parameters
and multiply-adds, and the name of its routing where that is no option. The first sentence of the file names the paper.
A network can be built on the meta device, where `cnn_matched` counts the parameters of the one that it matches.

labels: int64 [B], or [B, S] of the S classes in an image, ascending. targets: what a decoder should give back, in
[0, 1], [B, C, H, W] or [B, S, C, H, W]; for most data sets the images themselves.
"""

from typing import Any

from capsbench.models.output import Network, Output, count_parameters, predict, predicted_classes
from capsbench.registry import MODELS

__all__ = ["Network", "Output", "build_model", "count_parameters", "predict", "predicted_classes"]


def build_model(name: str, image_shape: tuple[int, int, int], num_classes: int, **options: Any) -> Network:
    """Build a registered network for images (C, H, W) and K classes.

    Raises ValueError, in one line, for an unknown name or option or an impossible value.
    """
    network: Network = MODELS.build(name, tuple(image_shape), num_classes, **options)
    return network
