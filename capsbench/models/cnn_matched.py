"""A plain CNN with as many parameters as another network, for a fair comparison with a capsule network."""

import itertools
from typing import Annotated

import torch
from torch import nn

from capsbench.losses import Labels, Scalar, classification_loss
from capsbench.models.output import Images, Network, Output, Targets, count_parameters
from capsbench.registry import MODELS, Chosen, Fraction


@MODELS.register("cnn_matched", title="CNN (matched size)")
class CnnMatched(Network):
    """Three blocks of 3x3 convolution, batch norm, ReLU, 2x2 max-pooling; one hidden layer; dropout; softmax.

    `matched_to` is the network to match, with its options. The parameters that it has for the same images and classes,
    decoder included, this network has too, within 2 %. Widths are w, 2w, 4w with a hidden layer of about 8w: w is the
    largest that leaves the count at or under that of the other, then the hidden layer grows to meet it. The
    default on 1x28x28 and 10 classes has 8,216,347 parameters, CapsNet 8,215,568. Not from a paper: no published CNN
    has that size.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        matched_to: Annotated[Chosen, MODELS.without("cnn_matched")] = MODELS.choose("capsnet"),
        dropout: Fraction = 0.5,
    ):
        super().__init__()
        channels, height, width = image_shape
        if min(height, width) < 8:
            raise ValueError(f"cnn_matched needs images of at least 8x8, not {height}x{width}")
        positions = (height // 8) * (width // 8)
        parameters = _parameters_of(matched_to, image_shape, num_classes)
        base = 1
        while _count(channels, positions, num_classes, base + 1, 8 * (base + 1)) <= parameters:
            base += 1
        fixed = _count(channels, positions, num_classes, base, 0)
        hidden = max(1, round((parameters - fixed) / (4 * base * positions + 1 + num_classes)))
        if abs(_count(channels, positions, num_classes, base, hidden) / parameters - 1) > 0.02:
            size = f"the {parameters:,} parameters of {matched_to.name}"
            raise ValueError(f"no cnn_matched for {height}x{width} has {size} within 2 %")

        layers: list[nn.Module] = []
        widths = (channels, base, 2 * base, 4 * base)
        for channels_in, channels_out in itertools.pairwise(widths):
            # the bias is in the batch norm
            layers.append(nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(channels_out), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(4 * base * positions, hidden), nn.ReLU(), nn.Dropout(dropout)]
        layers.append(nn.Linear(hidden, num_classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K], logits."""
        return Output(self.layers(images))

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the cross-entropy."""
        return {"cross_entropy": classification_loss(output.scores, labels)}


def _parameters_of(network: Chosen, image_shape: tuple[int, int, int], num_classes: int) -> int:
    try:
        with torch.device("meta"):  # nothing is allocated, no random number drawn
            return count_parameters(network.build(image_shape, num_classes))
    except ValueError as error:
        raise ValueError(f"cnn_matched, matched_to: {error}") from None


def _count(channels: int, positions: int, num_classes: int, base: int, hidden: int) -> int:
    convolutions = 9 * (channels * base + 2 * base * base + 8 * base * base) + 2 * 7 * base
    return convolutions + (4 * base * positions + 1) * hidden + (hidden + 1) * num_classes
