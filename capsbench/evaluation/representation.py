"""What a network says of an image besides its class: poses of its class capsules, or a CNN's last features."""

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsbench.models import Network

NOTHING = "the network has neither poses of its classes nor features before a last linear layer"


class Representation(NamedTuple):
    """Of a batch of images.

    Attributes:
        scores: [B, K].
        presence: [B, K] in [0, 1]: activations of the class capsules; of a CNN the softmax of its scores.
        values: poses [B, K, D] of the class capsules, or features [B, F], what a CNN's last linear layer is given;
            None where a network has neither.
    """

    scores: Float[Tensor, "batch classes"]
    presence: Float[Tensor, "batch classes"]
    values: Float[Tensor, "batch ..."] | None

    @property
    def kind(self) -> Literal["poses", "features"]:
        """Return what the values are."""
        return "poses" if self.values is not None and self.values.ndim == 3 else "features"

    def of_classes(self, classes: Int[Tensor, " batch"]) -> Float[Tensor, "batch dim"]:
        """Return the pose of one class capsule for each image, [B, D]; of a CNN all features, [B, F]."""
        assert self.values is not None
        if self.values.ndim == 2:
            return self.values
        return self.values[torch.arange(len(classes), device=classes.device), classes]


@torch.no_grad()
def represent(model: Network, images: Float[Tensor, "batch channels height width"]) -> Representation:
    """Run a network on images and keep its poses or its last features."""
    given: list[tuple[nn.Linear, Tensor]] = []

    def keep(module: nn.Linear, inputs: tuple[Tensor, ...], _: Any) -> None:
        given[:] = [(module, inputs[0])]  # the last linear layer that runs, whatever the order in which they were made

    hooks = [module.register_forward_hook(keep) for module in model.modules() if isinstance(module, nn.Linear)]
    try:
        output = model(images)
    finally:
        for hook in hooks:
            hook.remove()
    values = output.poses
    # a layer of another width, such as a decoder's, does not give the scores
    if values is None and given and given[0][0].out_features == output.scores.shape[1]:
        values = given[0][1].flatten(1)
    presence = output.scores.softmax(dim=1) if output.activations is None else output.activations
    return Representation(output.scores, presence, values)
