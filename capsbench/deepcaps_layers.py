"""The layers of DeepCaps (Rajasegaran et al. 2019, *DeepCaps: Going Deeper with Capsule Networks*, CVPR), section 3.

A capsule has a type, a position on the grid and n numbers. Layers pass on maps [B, c * n, rows, columns] of c types,
channel number = type x n + element. "Authors' code" is brjathu/deepcaps, and Keras, whose starts it has.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from capsbench.routing.dynamic import dynamic_routing
from capsbench.routing.squash import squash

BATCH_NORM_EPSILON = 1e-3  # Keras's


class ConvCaps(nn.Module):
    """Capsules from a 3x3 convolution (SAME, no bias) and a squash: the paper's routing with one iteration.

    maps [B, C, rows, columns] -> maps [B, c * n, rows', columns'], rows' = rows / stride rounded up.
    """

    def __init__(self, in_channels: int, types: int, dim: int, stride: int = 1):
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv2d(in_channels, types * dim, kernel_size=3, stride=stride, padding=1, bias=False)
        bound = math.sqrt(3 / math.sqrt(self.conv.weight.numel()))  # Keras's Glorot start of a tensor of six dimensions
        nn.init.uniform_(self.conv.weight, -bound, bound)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps of any channels -> maps of capsules, each shorter than one."""
        capsules = self.conv(maps).unflatten(1, (-1, self.dim))  # [B, c, n, rows', columns']
        return squash(capsules, dim=2).flatten(1, 2)


class ConvCaps3D(nn.Module):
    """Capsules from the paper's dynamic routing based on a 3D convolution; the grid stays as it is.

    The input is one stack of c x n planes, over which 3D kernels of n x 3 x 3 move in steps of n planes, so that each
    type s votes alone and all types share the kernels: a 2D convolution of each type by itself. What type s says of
    a parent of type r at (p, q) is one vote, from the nine positions around it. The couplings k_pqrs are a softmax over
    all parents (p, q, r), other positions included ("softmax_3D"), so that with votes [B, s, pqr, n] the rest is the
    dynamic routing of S17. `bias` [c, n], 0.1 at the start, shared over positions, is the authors' code's.

    The authors' code differs from its paper twice, and here the paper is followed: it squashes each TYPE, over all its
    positions together; and it cuts its input into planes without moving the channels first, so that a "plane" has
    values of several positions and elements.
    """

    def __init__(self, in_types: int, in_dim: int, types: int, dim: int, iterations: int = 3, bias: bool = True):
        super().__init__()
        self.in_types, self.types, self.dim, self.iterations = in_types, types, dim, iterations
        self.weight = nn.Parameter(torch.empty(types * dim, in_dim, 3, 3))
        std = math.sqrt(2 / (9 * in_dim)) / 0.87962566  # He's, of a normal cut at two deviations, which shrinks it
        nn.init.trunc_normal_(self.weight, std=std, a=-2 * std, b=2 * std)
        self.bias = nn.Parameter(torch.full((types, dim), 0.1)) if bias else None

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Maps [B, c' * n', rows, columns] -> maps [B, c * n, rows, columns], couplings [B, c', rows * columns * c].

        Parent number = position x types + type.
        """
        rows, columns = maps.shape[2:]
        planes = maps.unflatten(1, (self.in_types, -1))  # [B, s, n', rows, columns]
        votes = F.conv2d(planes.flatten(0, 1), self.weight, padding=1)  # [B * s, r * n, p, q]
        votes = votes.unflatten(0, (-1, self.in_types)).unflatten(2, (self.types, self.dim))  # V [B, s, r, n, p, q]
        votes = votes.permute(0, 1, 4, 5, 2, 3).flatten(2, 4)  # [B, s, pqr, n]
        bias = None if self.bias is None else self.bias.repeat(rows * columns, 1)  # [pqr, n]
        poses, couplings = dynamic_routing(votes, self.iterations, bias=bias)  # [B, pqr, n], [B, s, pqr]
        poses = poses.unflatten(1, (rows, columns, self.types)).permute(0, 3, 4, 1, 2)  # [B, r, n, p, q]
        return poses.flatten(1, 2), couplings


class CapsCell(nn.Module):
    """Capsules with stride 2, then two layers of them beside one that skips these; the two ways are added up.

    The skipping layer is a ConvCaps, or a ConvCaps3D of `iterations` where these are given (the paper's last cell).
    """

    def __init__(self, in_channels: int, types: int, dim: int, iterations: int | None = None, bias: bool = True):
        super().__init__()
        channels = types * dim
        self.reduce = ConvCaps(in_channels, types, dim, stride=2)
        self.straight = nn.Sequential(ConvCaps(channels, types, dim), ConvCaps(channels, types, dim))
        self.skip: ConvCaps | ConvCaps3D
        if iterations is None:
            self.skip = ConvCaps(channels, types, dim)
        else:
            self.skip = ConvCaps3D(types, dim, types, dim, iterations, bias)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [B, C, rows, columns] -> maps [B, c * n, rows', columns'], half as large, rounded up."""
        maps = self.reduce(maps)
        skipped = self.skip(maps)[0] if isinstance(self.skip, ConvCaps3D) else self.skip(maps)
        return self.straight(maps) + skipped


class DeconvDecoder(nn.Module):
    """The class-independent decoder (section 4): the values of ONE capsule, grown to an image by deconvolutions.

    A small grid with a fourth of `width` channels, batch norm, then 3x3 deconvolutions: one to `width` channels, two
    (from 64 pixels on, three) that double the grid and halve the channels, one to the image. As in the authors' code
    nothing but the first layer (ReLU) and the last is non-linear. Sides that are no multiple are cut at the end.
    Deviation: a sigmoid ends it, for images in [0, 1]; theirs is a ReLU. values [..., n] -> images [..., C, H, W].
    """

    def __init__(self, in_features: int, image_shape: tuple[int, int, int], width: int = 64):
        super().__init__()
        channels, *self.sides = image_shape
        doublings = 3 if max(self.sides) >= 64 else 2
        grid = [math.ceil(side / 2**doublings) for side in self.sides]
        start = max(1, width // 4)
        layers: list[nn.Module] = [
            nn.Linear(in_features, start * math.prod(grid)),
            nn.ReLU(),
            nn.Unflatten(1, (start, *grid)),
            nn.BatchNorm2d(start, BATCH_NORM_EPSILON, momentum=0.2),
            nn.ConvTranspose2d(start, width, kernel_size=3, padding=1),
        ]
        for _ in range(doublings):
            narrower = max(1, width // 2)
            layers.append(nn.ConvTranspose2d(width, narrower, kernel_size=3, stride=2, padding=1, output_padding=1))
            width = narrower
        layers += [nn.ConvTranspose2d(width, channels, kernel_size=3, padding=1), nn.Sigmoid()]
        for layer in layers:
            if isinstance(layer, nn.Linear | nn.ConvTranspose2d):
                nn.init.xavier_uniform_(layer.weight)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        self.layers = nn.Sequential(*layers)

    def forward(self, values: Tensor) -> Tensor:
        """Values [..., n] -> images in [0, 1], [..., C, H, W]."""
        images = self.layers(values.flatten(0, -2))[..., : self.sides[0], : self.sides[1]]
        return images.unflatten(0, values.shape[:-1])
