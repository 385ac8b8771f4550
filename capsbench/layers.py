"""The layers of capsule networks: squash, PrimaryCaps, ClassCaps. Decoders are in capsbench.decoders."""

import importlib
import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from capsbench.capsule_transforms import all_transforms, factor_std, transform_repeats
from capsbench.decoders import Decoder
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
    """The last capsule layer of S17: fully connected capsules under any routing algorithm of capsbench.routing.

    Matrices W_ij take inputs to votes; `transform`, with `rank` or `groups`, says which pairs have one of their own
    (see capsbench.capsule_transforms), and `in_types` how many types of children there are at each position. `weight`
    [I, J, D, d], or what there is of it, starts as a truncated normal (the authors' code: 0.1). `bias` [J, D] (absent
    in the paper's text; 0.1 in the authors' code) is added before the squash of dynamic routing, which never stores
    the votes. What else a routing learns is in its LEARNT. options: those of the routing.
    """

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        out_capsules: int,
        out_dim: int,
        routing: str = "dynamic",
        bias: bool = False,
        weight_std: float = 0.1,
        transform: str = "full",
        in_types: int = 1,
        rank: int | None = None,
        groups: int | None = None,
        **options: Any,
    ):
        super().__init__()
        if bias and routing != "dynamic":
            raise ValueError(f"a capsule bias goes with dynamic routing, not with '{routing}'")
        self.routing, self.options = routing, options
        self.repeats = transform_repeats(transform, in_capsules, in_types, rank, groups)
        matrices = in_capsules // math.prod(self.repeats)
        self.expansion: nn.Parameter | None = None
        if rank is None:
            self.weight = _truncated_normal((matrices, out_capsules, out_dim, in_dim), weight_std)
        elif rank > min(out_dim, in_dim):
            raise ValueError(
                f"a transform of {out_dim}x{in_dim} has a rank of at most {min(out_dim, in_dim)}, not {rank}"
            )
        else:
            std = factor_std(weight_std, rank)
            self.weight = _truncated_normal((matrices, out_capsules, rank, in_dim), std)
            self.expansion = _truncated_normal((matrices, out_capsules, out_dim, rank), std)
        self.bias = nn.Parameter(torch.full((out_capsules, out_dim), 0.1)) if bias else None
        module = importlib.import_module(f"capsbench.routing.{routing}")
        self._route = getattr(module, f"{routing}_routing")
        self._wanted = [name for name in inspect.signature(self._route).parameters if name in ("inputs", "activations")]
        sizes = {"I": in_capsules, "J": out_capsules, "D": out_dim, "d": in_dim}
        self.learnt = nn.ParameterDict(
            {
                name: _truncated_normal(tuple(sizes[letter] for letter in shape), std)
                for name, (shape, std) in getattr(module, "LEARNT", {}).items()
            }
        )

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [B, I, d] -> poses [B, J, D], activations [B, J], couplings [B, I, J] of the last iteration."""
        weight = all_transforms(self.weight, self.expansion, self.repeats)  # W [I, J, D, d]
        if self.routing == "dynamic":
            poses, couplings = linear_dynamic_routing_with_couplings(inputs, weight, bias=self.bias, **self.options)
            return poses, capsule_lengths(poses), couplings
        votes = torch.einsum("ijkd,bid->bijk", weight, inputs)  # [B, I, J, D]
        given = {"inputs": inputs, "activations": capsule_lengths(inputs)}
        tensors = {name: given[name] for name in self._wanted} | dict(self.learnt.items())
        poses, *between, couplings = self._route(votes, **tensors, **self.options)
        return poses, between[0] if between else capsule_lengths(poses), couplings


def _truncated_normal(shape: tuple[int, ...], std: float) -> nn.Parameter:
    values = torch.zeros(shape)
    return nn.Parameter(nn.init.trunc_normal_(values, std=std, a=-2 * std, b=2 * std) if std else values)
