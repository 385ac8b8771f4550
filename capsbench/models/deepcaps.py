"""DeepCaps of Rajasegaran, Jayasundara, Jayasekara, Jayasekara, Seneviratne, Rodrigo 2019, *DeepCaps: Going Deeper
with Capsule Networks* (CVPR), sections 3 to 5; "authors' code" is brjathu/deepcaps.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from capsbench.deepcaps_layers import BATCH_NORM_EPSILON, CapsCell, DeconvDecoder
from capsbench.layers import ClassCaps
from capsbench.losses import margin_loss, present_classes, reconstruction_loss
from capsbench.models.output import Output
from capsbench.options import Count, Counts, Fraction, NonNegative


class DeepCaps(nn.Module):
    """Conv 3x3 ReLU, batch norm -> four cells of four layers of capsules -> class capsules -> decoder of one of them.

    Each cell halves the grid; the last has dynamic routing by 3D convolution, of `conv_iterations`. The capsules of the
    last two cells together go to the class capsules, routed as in S17 by `iterations`. With the defaults, which are the
    paper's, and 10 classes: 8,500,337 parameters on 1x28x28, 8,510,851 on 3x32x32 and, with CIFAR-10 enlarged to 64x64
    as the paper has it (`input_side` 64), 13,426,995, of which 67,571 are the decoder's: the authors' code counts as
    many on 1x28x28 and 3x64x64. The 7.22 million of the paper (CIFAR-10) are not those: without the decoder, this
    network and the authors' have 13,359,424 at 64x64, 8,444,224 at 32x32 and, at 16x16 alone, 7,215,424.

    The paper was read in others' words and through the authors' code, which gives what was not told there: layer
    sizes, `capsule_bias` (on the two routed layers), batch norm with Keras's settings (`batch_norm_momentum` 0.01 here
    is 0.99 in Keras; short trainings need more), starts of all weights, `reconstruction_weight` 0.4 on the MEAN of
    squared errors. What that code does otherwise than its paper is said in capsbench.deepcaps_layers.

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
        routing: Literal["dynamic"] = "dynamic",
        iterations: Count = 3,
        conv_iterations: Count = 3,
        reconstruction: bool = True,
        input_side: Count | Literal["image"] = "image",
        conv_channels: Count = 128,
        cell_types: Counts = (32, 32, 32, 32),
        cell_dims: Counts = (4, 8, 8, 8),
        class_dim: Count = 32,
        capsule_bias: bool = True,
        batch_norm_momentum: Fraction = 0.01,
        decoder_channels: Count = 64,
        reconstruction_weight: NonNegative = 0.4,
        positive_margin: Fraction = 0.9,
        negative_margin: Fraction = 0.1,
        negative_weight: NonNegative = 0.5,
    ):
        super().__init__()
        channels, *image_sides = image_shape
        sides = [input_side, input_side] if isinstance(input_side, int) else image_sides
        cells = len(cell_types)
        if len(cell_dims) != cells:
            raise ValueError(f"deepcaps: cell_types and cell_dims are for {cells} and {len(cell_dims)} cells")
        if cells < 2:
            raise ValueError("deepcaps: it takes at least two cells")
        if cell_dims[-1] != cell_dims[-2]:
            raise ValueError("deepcaps: the capsules of the last two cells need the same dimension")
        needed = max(5, 2 ** (cells - 1) + 1)  # 2x2 at the least in the last cell, to halve, and in the decoder
        if min(sides) < needed:
            raise ValueError(f"deepcaps needs images of at least {needed}x{needed}, not {sides[0]}x{sides[1]}")
        self.num_classes = num_classes
        self.class_in_dim = cell_dims[-1]
        self.sides, self.image_sides = (sides[0], sides[1]), (image_sides[0], image_sides[1])
        self.reconstruction_weight = reconstruction_weight
        self.margins = (positive_margin, negative_margin, negative_weight)

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

        self.class_caps = ClassCaps(
            in_capsules, self.class_in_dim, num_classes, class_dim, routing, capsule_bias, iterations=iterations
        )
        bound = math.sqrt(6 / (num_classes * in_capsules * (class_dim + self.class_in_dim)))  # Keras's Glorot
        nn.init.uniform_(self.class_caps.weight, -bound, bound)
        if self.class_caps.bias is not None:
            nn.init.xavier_uniform_(self.class_caps.bias)
        self.decoder: DeconvDecoder | None = None
        if reconstruction:
            self.decoder = DeconvDecoder(class_dim, (channels, sides[0], sides[1]), decoder_channels)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K] (lengths of the class capsules), poses [B, K, D], the rest."""
        if self.sides != self.image_sides:
            images = F.interpolate(images, self.sides, mode="bilinear", align_corners=False)
        maps = self.norm(self.conv(images).relu())  # [B, 128, 28, 28]
        last_two: list[Tensor] = []
        for cell in self.cells:
            maps = cell(maps)  # [B, 128, 14, 14], [B, 256, 7, 7], [B, 256, 4, 4], [B, 256, 2, 2]
            last_two = [maps, *last_two[:1]]
        inputs = torch.cat([self._flat(maps) for maps in last_two], dim=1)  # [B, 640, 8], of 2x2 before those of 4x4
        poses, lengths, couplings = self.class_caps(inputs)  # [B, K, 32], [B, K], [B, 640, K]
        reconstructions = None
        if self.decoder is not None:
            chosen = lengths.argmax(dim=1) if labels is None else labels  # [B], or [B, S] of several objects
            mask = F.one_hot(chosen, self.num_classes).to(poses.dtype)  # [B, (S,) K]
            values = torch.einsum("b...k,bkd->b...d", mask, poses)  # [B, (S,) 32]: which class it is, is not said
            reconstructions = self.decoder(values)  # [B, (S,) C, H, W]
            if self.sides != self.image_sides:
                small = F.adaptive_avg_pool2d(reconstructions.flatten(0, -4), self.image_sides)
                reconstructions = small.unflatten(0, values.shape[:-1])
        return Output(lengths, poses, reconstructions, couplings)

    def _flat(self, maps: Tensor) -> Tensor:
        """Maps [B, c * n, rows, columns] -> poses [B, I, n], capsule number = position x types + type (FlatCaps)."""
        return maps.unflatten(1, (-1, self.class_in_dim)).permute(0, 3, 4, 1, 2).flatten(1, 3)

    def loss(self, output: Output, targets: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Margin loss, and 0.4 x the mean of squared errors over all that is reconstructed of an image."""
        present = present_classes(labels, self.num_classes, output.scores.dtype)
        parts = {"margin": margin_loss(output.scores, present, *self.margins)}
        if output.reconstructions is not None:
            values = output.reconstructions[0].numel()  # of an image: S x C x H x W
            error = reconstruction_loss(output.reconstructions, targets) / values
            parts["reconstruction"] = self.reconstruction_weight * error
        return parts
