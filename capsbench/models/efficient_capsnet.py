"""Efficient-CapsNet of Mazzia, Salvetti, Chiaberge 2021, *Efficient-CapsNet: Capsule Network with Self-Attention
Routing*, sections on its architecture and on self-attention routing; "authors' code" is EscVM/Efficient-CapsNet.
"""

import itertools
import math
from typing import Annotated, Literal

import torch
from torch import nn

from capsbench.layers import DecoderSize
from capsbench.losses import Labels, Scalar
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import DECODERS, LOSSES, MODELS, Chosen, Count, Counts, Momentum
from capsbench.routing.attention import attention_routing
from capsbench.routing.contract import exponential_squash

BATCH_NORM_EPSILON = 1e-3  # Keras's


@MODELS.register("efficient_capsnet", title="Efficient-CapsNet", published_on=((1, 28, 28), 10), routing="attention")
class EfficientCapsNet(Network):
    """Four convolutions, each normalised -> depthwise primary capsules -> class capsules under self-attention routing.

    A primary capsule is `primary_dim` neighbouring channels of one position after a convolution of each channel by
    itself, with a kernel as large as the grid, so that one position is left: 16 capsules of 8. The published counts
    are without the decoder (`decoder: null`; with it, on 28x28x1, 1,573,168) and need these options:

    - MNIST, 1x28x28, 10 classes: 161,824: the defaults.
    - MultiMNIST, 1x36x36, 10 classes: 154,656: `conv_strides` (1, 1, 2, 2), `primary_kernel` 5, `primary_stride` 2. The
      grid is 6x6, so that its last row and its last column are not seen.
    - smallNORB, 2x48x48, 5 classes: 151,664: `conv_kernels` (7, 3, 3, 3), `conv_strides` (2, 1, 1, 2), `activation`
      "leaky_relu", `normalization` "instance", and `decoder` "convolutional" (with `weight` 0.392, `reduction` "mean").

    From the authors' code, where the paper is silent: batch norm after the activation, with Keras's settings
    (`batch_norm_momentum` 0.01 here is 0.99 in Keras; short trainings need more); a slope of 0.3 in "leaky_relu"; the
    starts of all layers but the decoder's; the decoder's `weight` of 0.392 on the MEAN of squared errors whatever the
    image size (0.0005 of their sum at 28x28), over both sources where there are two.

    Deviations: normal starts are not truncated. The decoder's layers start as PyTorch has them; the convolutional one,
    which is the authors' on 48x48, is cut to size on others; targets of either lie in [0, 1], where the authors'
    smallNORB decoder, ending in a sigmoid, has standardised images for targets. Couplings that are given back are C,
    without the learnt priors B (see capsbench.routing.attention).

    The decoder sees the capsule of the true class where labels are given (training), of the predicted class where they
    are not (test); of several objects in an image each is decoded alone.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        decoder: Annotated[Chosen, DECODERS] | None = DECODERS.choose(
            "fully_connected", weight=0.392, reduction="mean"
        ),
        loss: Annotated[Chosen, LOSSES.only("margin")] = LOSSES.choose("margin"),
        conv_channels: Counts = (32, 64, 64, 128),
        conv_kernels: Counts = (5, 3, 3, 3),
        conv_strides: Counts = (1, 1, 1, 2),
        activation: Literal["relu", "leaky_relu"] = "relu",
        normalization: Literal["batch", "instance"] = "batch",
        batch_norm_momentum: Momentum = 0.01,
        primary_kernel: Count | Literal["whole"] = "whole",
        primary_stride: Count = 1,
        primary_dim: Count = 8,
        class_dim: Count = 16,
    ):
        super().__init__()
        channels, height, width = image_shape
        if not len(conv_channels) == len(conv_kernels) == len(conv_strides):
            lengths = f"{len(conv_channels)}, {len(conv_kernels)} and {len(conv_strides)} layers"
            raise ValueError(f"efficient_capsnet: conv_channels, conv_kernels and conv_strides are for {lengths}")
        if conv_channels[-1] % primary_dim:
            raise ValueError(
                f"efficient_capsnet: {conv_channels[-1]} channels cannot be cut into capsules of {primary_dim}"
            )
        # at the least 2x2, so that normalisation has more than one value of a batch of one
        needed = 2 if primary_kernel == "whole" else max(2, primary_kernel)
        grid = (height, width)
        for kernel_size, stride in zip(conv_kernels, conv_strides, strict=True):
            grid = ((grid[0] - kernel_size) // stride + 1, (grid[1] - kernel_size) // stride + 1)
        if min(grid) < needed:
            for kernel_size, stride in zip(reversed(conv_kernels), reversed(conv_strides), strict=True):
                needed = (needed - 1) * stride + kernel_size
            raise ValueError(f"efficient_capsnet needs images of at least {needed}x{needed}, not {height}x{width}")
        self.primary_dim = primary_dim
        self.class_loss = loss.build()

        layers: list[nn.Module] = []
        widths = itertools.pairwise((channels, *conv_channels))
        for (channels_in, channels_out), kernel_size, stride in zip(widths, conv_kernels, conv_strides, strict=True):
            conv = nn.Conv2d(channels_in, channels_out, kernel_size, stride)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            layers += [conv, nn.ReLU() if activation == "relu" else nn.LeakyReLU(0.3)]
            if normalization == "batch":
                layers.append(nn.BatchNorm2d(channels_out, BATCH_NORM_EPSILON, batch_norm_momentum))
            else:
                layers.append(_instance_norm(channels_out))
        self.features = nn.Sequential(*layers)
        kernel = grid if primary_kernel == "whole" else (primary_kernel, primary_kernel)
        self.primary_conv = nn.Conv2d(
            conv_channels[-1], conv_channels[-1], kernel, primary_stride, groups=conv_channels[-1]
        )
        nn.init.xavier_uniform_(self.primary_conv.weight)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                nn.init.zeros_(module.bias)

        positions = math.prod((size - k) // primary_stride + 1 for size, k in zip(grid, kernel, strict=True))
        in_capsules = positions * conv_channels[-1] // primary_dim
        self.weight = nn.Parameter(torch.empty(in_capsules, num_classes, class_dim, primary_dim))  # W
        nn.init.normal_(self.weight, std=math.sqrt(2 / (in_capsules * num_classes * primary_dim)))
        self.priors = nn.Parameter(torch.zeros(in_capsules, num_classes))  # B

        self.decoder = decoder.build(DecoderSize(num_classes, class_dim, image_shape)) if decoder else None

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K] (capsule lengths), poses [B, K, D], the rest."""
        maps = self.primary_conv(self.features(images))  # [B, 128, 9, 9] -> [B, 128, 1, 1]
        maps = maps.permute(0, 2, 3, 1).flatten(1)  # a position at a time, its channels in order
        inputs = exponential_squash(maps.unflatten(1, (-1, self.primary_dim)))  # u [B, 16, 8]
        votes = torch.einsum("ijcd,bid->bijc", self.weight, inputs)  # [B, 16, K, 16]
        poses, lengths, couplings = attention_routing(votes, self.priors)  # [B, K, 16], [B, K], [B, 16, K]
        output = Output(lengths, poses, None, couplings, lengths)
        return output._replace(reconstructions=self.reconstruct(output, labels))  # [B, (S,) C, H, W]

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the margin loss and that of the reconstructions."""
        parts: dict[str, Scalar] = {"margin": self.class_loss(output.scores, labels)}
        if self.decoder is not None and output.reconstructions is not None:
            parts["reconstruction"] = self.decoder.loss(output.reconstructions, targets)
        return parts


def _instance_norm(channels: int) -> nn.InstanceNorm2d:
    """Normalise each channel of each image, with scale and shift that start near zero, as the authors' do."""
    norm = nn.InstanceNorm2d(channels, eps=BATCH_NORM_EPSILON, affine=True)
    nn.init.uniform_(norm.weight, -0.05, 0.05)
    nn.init.uniform_(norm.bias, -0.05, 0.05)
    return norm
