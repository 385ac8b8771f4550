"""The layers of capsule networks: squash, PrimaryCaps, ClassCaps, Decoder."""

import itertools
import math

import torch
from torch import Tensor, nn

from capsbench.routing.dynamic import linear_dynamic_routing_with_couplings
from capsbench.routing.squash import squash

__all__ = ["ClassCaps", "Decoder", "PrimaryCaps", "capsule_lengths", "squash"]


def capsule_lengths(poses: Tensor) -> Tensor:
    """Length of each capsule, with a finite gradient at zero: poses [..., D] -> [...]."""
    return (poses.square().sum(dim=-1) + 1e-12).sqrt()


class PrimaryCaps(nn.Module):
    """The first capsule layer of S17: a convolution whose channels are cut into capsules, then squashed.

    A capsule is `dim` neighbouring channels of ONE position; capsule number = position x types + type.
    images [B, C, H, W] -> poses [B, I, dim] with I = H' x W' x types.
    """

    def __init__(self, in_channels: int, types: int, dim: int, kernel_size: int = 9, stride: int = 2):
        super().__init__()
        self.types, self.dim = types, dim
        self.conv = nn.Conv2d(in_channels, types * dim, kernel_size, stride)

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, C, H, W] -> squashed poses [B, I, dim]."""
        maps = self.conv(features)  # [B, types * dim, H', W']
        maps = maps.unflatten(1, (self.types, self.dim))  # [B, types, dim, H', W']
        capsules = maps.permute(0, 3, 4, 1, 2)  # [B, H', W', types, dim]
        return squash(capsules.flatten(1, 3))  # [B, I, dim]


class ClassCaps(nn.Module):
    """The last capsule layer of S17: fully connected capsules under dynamic routing, votes never stored.

    `weight` [I, J, D, d] starts as a truncated normal (the authors' code: 0.1), `bias` [J, D] (absent in the
    paper's text; 0.1 in the authors' code) is added before the squash. `detach` takes routing out of the gradient.
    """

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        out_capsules: int,
        out_dim: int,
        iterations: int = 3,
        bias: bool = False,
        detach: bool = False,
        weight_std: float = 0.1,
    ):
        super().__init__()
        self.iterations, self.detach = iterations, detach
        self.weight = nn.Parameter(torch.empty(in_capsules, out_capsules, out_dim, in_dim))
        nn.init.trunc_normal_(self.weight, std=weight_std, a=-2 * weight_std, b=2 * weight_std)
        self.bias = nn.Parameter(torch.full((out_capsules, out_dim), 0.1)) if bias else None

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs [B, I, d] -> poses [B, J, D] and the couplings [B, I, J] of the last iteration."""
        return linear_dynamic_routing_with_couplings(inputs, self.weight, self.iterations, self.detach, self.bias)


class Decoder(nn.Module):
    """The fully connected decoder of S17: two hidden ReLU layers, a sigmoid, so that targets lie in [0, 1].

    values [..., in_features] -> images [..., C, H, W].
    """

    def __init__(
        self,
        in_features: int,
        image_shape: tuple[int, int, int],
        hidden: tuple[int, ...] = (512, 1024),
        dropout: float = 0.0,
    ):
        super().__init__()
        widths = (in_features, *hidden)
        layers: list[nn.Module] = []
        for width_in, width_out in itertools.pairwise(widths):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        layers += [
            nn.Linear(widths[-1], math.prod(image_shape)),
            nn.Sigmoid(),
            nn.Unflatten(-1, image_shape),
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, values: Tensor) -> Tensor:
        """Values [..., in_features] -> images in [0, 1], [..., C, H, W]."""
        return self.layers(values)
