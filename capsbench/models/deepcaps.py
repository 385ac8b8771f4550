"""DeepCaps of Rajasegaran, Jayasundara, Jayasekara, Jayasekara, Seneviratne, Rodrigo 2019, *DeepCaps: Going Deeper
with Capsule Networks* (CVPR), sections 3 to 5; "authors' code" is brjathu/deepcaps.
"""

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.layers import DecoderSize
from capsbench.layers.transforms import FullTransform
from capsbench.losses import Labels, Scalar
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import DECODERS, LOSSES, MODELS, Chosen, Count, Counts, Iterations, Momentum
from capsbench.routing.contract import LayerSize, capsule_lengths, squash
from capsbench.routing.dynamic import DynamicRouting, dynamic_routing

Maps = Float[Tensor, "batch channels rows columns"]
NewMaps = Float[Tensor, "batch _ _ _"]

BATCH_NORM_EPSILON = 1e-3  # Keras's


@MODELS.register("deepcaps", title="DeepCaps", routing="dynamic")
class DeepCaps(Network):
    """Conv 3x3 ReLU, batch norm -> four cells of four layers of capsules -> class capsules -> decoder of one of them.

    Each cell halves the grid; the last has dynamic routing by 3D convolution, of `conv_iterations`. The capsules of the
    last two cells together go to the class capsules, routed as in S17 by `iterations`. With the defaults, which are the
    paper's, and 10 classes: 8,500,337 parameters on 1x28x28, 8,510,851 on 3x32x32 and, with CIFAR-10 enlarged to 64x64
    as the paper has it (`input_side` 64), 13,426,995, of which 67,571 are the decoder's: the authors' code counts as
    many on 1x28x28 and 3x64x64. The 7.22 million of the paper (CIFAR-10) are not those: without the decoder, this
    network and the authors' have 13,359,424 at 64x64, 8,444,224 at 32x32 and, at 16x16 alone, 7,215,424.

    We know the paper from summaries and from the authors' code, which gives what these leave out: layer
    sizes, `capsule_bias` (on the two routed layers), batch norm with Keras's settings (`batch_norm_momentum` 0.01 here
    is 0.99 in Keras; short trainings need more), starts of all weights, the decoder's `weight` of 0.4 on the MEAN
    of squared errors. Where that code differs from its paper, ConvCaps3D says so.

    Deviations: strided convolutions pad an even side at its start, not its end. Enlarged images are decoded at their
    enlarged size but compared, averaged down, at their own. The decoder ends in a sigmoid. A second training with
    harder margins (`positive_margin` 0.95, `negative_margin` 0.05, `negative_weight` 0.8 from the best weights of
    the first, chosen on the test set) is not here, nor is the vote of seven networks.

    The decoder sees the capsule of the true class where labels are given (training), of the predicted class where they
    are not (test); of several objects in an image each is decoded alone.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        iterations: Iterations = 3,
        conv_iterations: Iterations = 3,
        decoder: Annotated[Chosen, DECODERS.only("deconvolutional")] | None = DECODERS.choose("deconvolutional"),
        loss: Annotated[Chosen, LOSSES.only("margin")] = LOSSES.choose("margin"),
        input_side: Count | Literal["image"] = "image",
        conv_channels: Count = 128,
        cell_types: Counts = (32, 32, 32, 32),
        cell_dims: Counts = (4, 8, 8, 8),
        class_dim: Count = 32,
        capsule_bias: bool = True,
        batch_norm_momentum: Momentum = 0.01,
    ):
        super().__init__()
        channels, *image_sides = image_shape
        sides = [input_side, input_side] if isinstance(input_side, int) else image_sides
        cells = len(cell_types)
        if len(cell_dims) != cells:
            raise ValueError(f"deepcaps: cell_types and cell_dims are for {cells} and {len(cell_dims)} cells")
        if cells < 2:
            raise ValueError("deepcaps: needs at least two cells")
        if cell_dims[-1] != cell_dims[-2]:
            raise ValueError("deepcaps: the capsules of the last two cells need the same dimension")
        needed = max(5, 2 ** (cells - 1) + 1)  # 2x2 at the least in the last cell, to halve, and in the decoder
        if min(sides) < needed:
            raise ValueError(f"deepcaps needs images of at least {needed}x{needed}, not {sides[0]}x{sides[1]}")
        self.class_loss = loss.build()
        self.class_in_dim = cell_dims[-1]
        self.sides, self.image_sides = (sides[0], sides[1]), (image_sides[0], image_sides[1])

        self.conv = nn.Conv2d(channels, conv_channels, kernel_size=3, padding=1)
        nn.init.xavier_uniform_(self.conv.weight)
        assert self.conv.bias is not None
        nn.init.zeros_(self.conv.bias)
        self.norm = nn.BatchNorm2d(conv_channels, BATCH_NORM_EPSILON, batch_norm_momentum)
        self.cells = nn.ModuleList()
        width, in_capsules = conv_channels, 0
        for cell, (types, dim) in enumerate(zip(cell_types, cell_dims, strict=True), start=1):
            self.cells.append(CapsCell(width, types, dim, conv_iterations if cell == cells else None, capsule_bias))
            width = types * dim
            if cell >= cells - 1:
                in_capsules += types * math.prod(math.ceil(side / 2**cell) for side in sides)

        size = LayerSize(in_capsules, self.class_in_dim, num_classes, class_dim)
        self.transform = FullTransform(size, types=1, std=0.1)
        self.routing = DynamicRouting(size, iterations=iterations, bias=capsule_bias)
        bound = math.sqrt(6 / (num_classes * in_capsules * (class_dim + self.class_in_dim)))  # Keras's Glorot
        nn.init.uniform_(self.transform.weight, -bound, bound)
        for bias in self.routing.parameters():
            nn.init.xavier_uniform_(bias)
        seen = DecoderSize(num_classes, class_dim, (channels, sides[0], sides[1]))
        self.decoder = decoder.build(seen) if decoder else None

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K] (lengths of the class capsules), poses [B, K, D], the rest."""
        if self.sides != self.image_sides:
            images = F.interpolate(images, self.sides, mode="bilinear", align_corners=False)
        maps = self.norm(self.conv(images).relu())  # [B, 128, 28, 28]
        last_two: list[Tensor] = []
        for cell in self.cells:
            maps = cell(maps)  # [B, 128, 14, 14], [B, 256, 7, 7], [B, 256, 4, 4], [B, 256, 2, 2]
            last_two = [maps, *last_two[:1]]
        inputs = torch.cat([self._flat(maps) for maps in last_two], dim=1)  # [B, 640, 8], of 2x2 before those of 4x4
        # poses [B, K, 32], lengths [B, K], couplings [B, 640, K]
        poses, lengths, couplings = self.routing(inputs, capsule_lengths(inputs), self.transform())
        output = Output(lengths, poses, None, couplings, lengths)
        return output._replace(reconstructions=self.reconstruct(output, labels))

    def reconstruct(self, output: Output, labels: Labels | None) -> Targets | None:
        """Draw classes at the size of the images; the decoder has the same weights for all of them."""
        drawn = super().reconstruct(output, labels)  # [B, (S,) C, H, W]
        if drawn is None or self.sides == self.image_sides:
            return drawn
        small = F.adaptive_avg_pool2d(drawn.flatten(0, -4), self.image_sides)
        scaled: Targets = small.unflatten(0, drawn.shape[:-3])
        return scaled

    def _flat(self, maps: Tensor) -> Tensor:
        """Maps [B, c * n, rows, columns] -> poses [B, I, n], capsule number = position x types + type (FlatCaps)."""
        capsules: Tensor = maps.unflatten(1, (-1, self.class_in_dim))  # [B, c, n, rows, columns]
        return capsules.permute(0, 3, 4, 1, 2).flatten(1, 3)

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the margin loss and that of the reconstructions."""
        parts: dict[str, Scalar] = {"margin": self.class_loss(output.scores, labels)}
        if self.decoder is not None and output.reconstructions is not None:
            parts["reconstruction"] = self.decoder.loss(output.reconstructions, targets)
        return parts


class ConvCaps(nn.Module):
    """Capsules of DeepCaps from a 3x3 convolution (SAME, no bias) and a squash: the paper's routing with one iteration.

    maps [B, C, rows, columns] -> maps [B, c * n, rows', columns'], rows' = rows / stride rounded up.
    """

    def __init__(self, in_channels: int, types: int, dim: int, stride: int = 1):
        super().__init__()
        self.dim = dim
        self.conv = nn.Conv2d(in_channels, types * dim, kernel_size=3, stride=stride, padding=1, bias=False)
        bound = math.sqrt(3 / math.sqrt(self.conv.weight.numel()))  # Keras's Glorot start of a tensor of six dimensions
        nn.init.uniform_(self.conv.weight, -bound, bound)

    def forward(self, maps: Maps) -> NewMaps:
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

    def forward(self, maps: Maps) -> tuple[Float[Tensor, "batch _ rows columns"], Float[Tensor, "batch types parents"]]:
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

    def forward(self, maps: Maps) -> NewMaps:
        """Maps [B, C, rows, columns] -> maps [B, c * n, rows', columns'], half as large, rounded up."""
        maps = self.reduce(maps)
        skipped = self.skip(maps)[0] if isinstance(self.skip, ConvCaps3D) else self.skip(maps)
        summed: Tensor = self.straight(maps) + skipped
        return summed
