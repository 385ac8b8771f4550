"""CapsNet of Sabour, Frosst, Hinton 2017, *Dynamic Routing Between Capsules* (S17), section 4."""

from typing import Any, Literal

from torch import Tensor, nn

from capsbench.decoders import build_decoder, masked_poses
from capsbench.layers import ClassCaps, PrimaryCaps
from capsbench.losses import (
    SpreadMargin,
    margin_loss,
    present_classes,
    reconstruction_loss,
    share_likelihood_loss,
    spread_loss,
)
from capsbench.models.output import Output
from capsbench.options import Count, Counts, Fraction, NonNegative, Positive, Routing

PUBLISHED_ON = ((1, 28, 28), 10)  # MNIST


class CapsNet(nn.Module):
    """Conv 9x9 ReLU -> PrimaryCaps 9x9 stride 2 -> class capsules under routing -> decoder.

    The defaults are the paper's: 8,215,568 parameters on 28x28x1. Deviations that public code is known for are
    options: `detach` (couplings outside the gradient), `capsule_bias` (the authors' code has it),
    `decoder_input` "selected" (the decoder sees the 16 values of one capsule instead of all 160, masked),
    `weight_std` (the authors' code: 0.1; the paper is silent), `margin_loss_weight` (the authors' code: 1/20).
    `transform`, with `rank` or `groups`: which pairs of capsules have a matrix of their own, see
    capsbench.capsule_transforms; `decoder` "convolutional": Efficient-CapsNet's, see capsbench.decoders.
    `loss`: "margin" (the paper's); "spread" (H18's, for one class an image; its margin grows as SpreadMargin has it,
    in steps of `spread_margin_scale`: in a training of a few thousand it stays at 0.21); "share_likelihood"
    (self-routing's). The margin loss teaches little where activations are not lengths.
    The decoder sees the capsule of the true class where labels are given (training), of the predicted class
    where they are not (test); of several objects in an image each is decoded alone (S17, section 6).
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: Routing = "dynamic",
        loss: Literal["margin", "spread", "share_likelihood"] = "margin",
        reconstruction: bool = True,
        transform: Literal["full", "shared_over_positions", "shared", "grouped", "low_rank"] = "full",
        rank: Count | None = None,
        groups: Count | None = None,
        capsule_bias: bool = False,
        weight_std: Positive = 0.1,
        conv_channels: Count = 256,
        primary_types: Count = 32,
        primary_dim: Count = 8,
        class_dim: Count = 16,
        decoder: Literal["fully_connected", "convolutional"] = "fully_connected",
        decoder_input: Literal["masked", "selected"] = "masked",
        decoder_hidden: Counts = (512, 1024),
        decoder_dropout: Fraction = 0.0,
        reconstruction_weight: NonNegative = 0.0005,
        margin_loss_weight: Positive = 1.0,
        positive_margin: Fraction = 0.9,
        negative_margin: Fraction = 0.1,
        negative_weight: NonNegative = 0.5,
        spread_margin_scale: Positive = 50000.0,
        **routing_options: Any,
    ):
        super().__init__()
        channels, height, width = image_shape
        primary_height, primary_width = ((size - 8 - 9) // 2 + 1 for size in (height, width))
        if min(primary_height, primary_width) < 1:
            raise ValueError(f"capsnet needs images of at least 17x17, not {height}x{width}")
        self.num_classes = num_classes
        self.decoder_input = decoder_input
        self.reconstruction_weight = reconstruction_weight
        self.loss_name = loss
        self.margin_loss_weight = margin_loss_weight
        self.margins = (positive_margin, negative_margin, negative_weight)
        if loss != "margin" and (margin_loss_weight, *self.margins) != (1.0, 0.9, 0.1, 0.5):
            raise ValueError(f"margins and margin_loss_weight act on the margin loss, not on '{loss}'")
        if loss != "spread" and spread_margin_scale != 50000.0:
            raise ValueError(f"spread_margin_scale acts on the spread loss, not on '{loss}'")
        self.spread_margin = SpreadMargin(scale=spread_margin_scale) if loss == "spread" else None

        self.conv = nn.Conv2d(channels, conv_channels, kernel_size=9)
        self.primary_caps = PrimaryCaps(conv_channels, primary_types, primary_dim, kernel_size=9, stride=2)
        self.class_caps = ClassCaps(
            in_capsules=primary_height * primary_width * primary_types,
            in_dim=primary_dim,
            out_capsules=num_classes,
            out_dim=class_dim,
            routing=routing,
            bias=capsule_bias,
            weight_std=weight_std,
            transform=transform,
            in_types=primary_types,
            rank=rank,
            groups=groups,
            **routing_options,
        )
        self.decoder: nn.Module | None = None
        if reconstruction:
            decoder_values = class_dim * (num_classes if decoder_input == "masked" else 1)
            self.decoder = build_decoder(decoder, decoder_values, image_shape, decoder_hidden, decoder_dropout)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K] (activations of the class capsules), poses [B, K, D], the rest."""
        features = self.conv(images).relu()  # [B, 256, 20, 20]
        inputs = self.primary_caps(features)  # [B, 1152, 8]
        poses, activations, couplings = self.class_caps(inputs)  # [B, K, 16], [B, K], [B, 1152, K]
        reconstructions = None
        if self.decoder is not None:
            values = masked_poses(poses, activations, labels)  # [B, (S,) K, 16]
            values = values.flatten(-2) if self.decoder_input == "masked" else values.sum(dim=-2)
            reconstructions = self.decoder(values)  # [B, (S,) C, H, W]
        return Output(activations, poses, reconstructions, couplings)

    def loss(self, output: Output, targets: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The option `loss`, and 0.0005 x sum of squared errors an image (S17, sections 3, 4.1 and 6)."""
        if self.spread_margin is not None:
            part = spread_loss(output.scores, labels, self.spread_margin())
        elif self.loss_name == "margin":
            present = present_classes(labels, self.num_classes, output.scores.dtype)
            part = self.margin_loss_weight * margin_loss(output.scores, present, *self.margins)
        else:
            part = share_likelihood_loss(output.scores, labels)
        parts: dict[str, Tensor] = {self.loss_name: part}
        if output.reconstructions is not None:
            error = reconstruction_loss(output.reconstructions, targets)
            parts["reconstruction"] = self.reconstruction_weight * error
        return parts
