"""The two capsule layers of S17 (Sabour, Frosst, Hinton 2017): primary capsules and class capsules."""

from jaxtyping import Float
from torch import Tensor, nn

from capsbench.registry import ROUTINGS, TRANSFORMS, Chosen
from capsbench.routing.contract import LayerSize, Poses, Routed, Routing
from capsbench.routing.squash import capsule_lengths, squash


class PrimaryCaps(nn.Module):
    """The first capsule layer of S17: a convolution whose channels are cut into capsules, then squashed.

    A capsule is `dim` neighbouring channels of ONE position; capsule number = position x types + type.
    """

    def __init__(self, in_channels: int, types: int, dim: int, kernel_size: int = 9, stride: int = 2):
        super().__init__()
        self.types, self.dim = types, dim
        self.conv = nn.Conv2d(in_channels, types * dim, kernel_size, stride)

    def forward(self, features: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch capsules dim"]:
        """Features [B, C, H, W] -> squashed poses [B, I, dim], I = H' x W' x types."""
        maps = self.conv(features)  # [B, types * dim, H', W']
        maps = maps.unflatten(1, (self.types, self.dim))  # [B, types, dim, H', W']
        capsules = maps.permute(0, 3, 4, 1, 2)  # [B, H', W', types, dim]
        return squash(capsules.flatten(1, 3))  # [B, I, dim]


class ClassCaps(nn.Module):
    """The last capsule layer of S17: every class capsule is fed by all capsules below, under any routing.

    in_types: types of children at each position. weight_std: of the truncated normal distribution that the transforms
    start from (the authors' code: 0.1).
    """

    def __init__(
        self,
        size: LayerSize,
        routing: Chosen = ROUTINGS.choose("dynamic"),
        transform: Chosen = TRANSFORMS.choose("full"),
        in_types: int = 1,
        weight_std: float = 0.1,
    ):
        super().__init__()
        self.transform = transform.build(size, in_types, weight_std)
        self.routing: Routing = routing.build(size)

    def forward(self, inputs: Poses) -> Routed:
        """Inputs [B, I, d] -> poses [B, J, D], activations [B, J], couplings [B, I, J] of the last iteration."""
        routed: Routed = self.routing(inputs, capsule_lengths(inputs), self.transform())
        return routed
