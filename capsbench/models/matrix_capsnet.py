"""Matrix capsules of Hinton, Sabour, Frosst 2018, *Matrix Capsules with EM Routing* (H18), section 4."""

from typing import Literal

from torch import Tensor, nn

from capsbench.losses import SpreadMargin, classification_loss, margin_loss, present_classes, spread_loss
from capsbench.matrix_layers import ClassMatrixCaps, ConvMatrixCaps, PrimaryMatrixCaps, receptive_field_centres
from capsbench.models.output import Output
from capsbench.options import Count, Counts, Fraction, NonNegative, Positive

PUBLISHED_ON = ((2, 32, 32), 5)  # smallNORB


class MatrixCapsNet(nn.Module):
    """Conv 5x5 stride 2 ReLU -> primary capsules -> convolutional capsules 3x3 -> class capsules, all EM-routed.

    The first convolutional capsules have stride 2, the others 1; nothing is padded: 32 -> 14 -> 6 -> 4. On 2x32x32
    and 5 classes the defaults have 316,650 parameters, and 64 channels with 8 primary and (16, 16) convolutional
    types 68,618. That is: a bias in the first convolution, none in the primary capsules, two betas a type (shared
    over positions) in each routed layer, no batch norm.

    From the authors' code, where the paper is silent: `class_temperature_factor` (the class layer's inverse
    temperature, as a part of the others'), `damping`, `variance_floor`, `annealing`, how weights and betas start.
    Their inverse temperature of 0.01 is the default of 0.02 here, as they sum log sigma^2 (see capsbench.routing.em).

    Losses: "spread", its margin growing as SpreadMargin has it; "margin", of S17; "cross_entropy" of a softmax over the
    class activations themselves, as in the authors' code, so that it cannot fall under log(1 + (K - 1) / e).
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: Literal["em"] = "em",
        iterations: Count = 3,
        pose: Literal["matrix", "vector"] = "matrix",
        loss: Literal["spread", "margin", "cross_entropy"] = "spread",
        coordinate_addition: bool = True,
        conv_channels: Count = 32,
        primary_types: Count = 32,
        conv_types: Counts = (32, 32),
        inverse_temperature: Positive = 0.02,
        class_temperature_factor: Positive = 0.25,
        damping: Fraction = 0.1,
        variance_floor: Positive = 0.0005,
        annealing: Fraction = 0.95,
        spread_margin_start: NonNegative = 0.2,
        spread_margin_growth: NonNegative = 0.79,
        spread_margin_centre: float = -4.0,
        spread_margin_scale: Positive = 50000.0,
    ):
        super().__init__()
        channels, height, width = image_shape
        strides = [2, *[1] * (len(conv_types) - 1)]
        windows = [(5, 2), *((3, stride) for stride in strides)]
        needed = 1
        for kernel_size, stride in reversed(windows):
            needed = (needed - 1) * stride + kernel_size
        if min(height, width) < needed:
            raise ValueError(f"matrix_capsnet needs images of at least {needed}x{needed}, not {height}x{width}")
        self.num_classes = num_classes
        self.loss_name = loss
        spread_options = (spread_margin_start, spread_margin_growth, spread_margin_centre, spread_margin_scale)
        if loss != "spread" and spread_options != (0.2, 0.79, -4.0, 50000.0):
            raise ValueError(f"matrix_capsnet: options of the spread margin act on the spread loss, not on '{loss}'")
        self.spread_margin = SpreadMargin(*spread_options)

        self.conv = nn.Conv2d(channels, conv_channels, kernel_size=5, stride=2)
        nn.init.trunc_normal_(self.conv.weight, std=0.05, a=-0.1, b=0.1)
        assert self.conv.bias is not None
        nn.init.constant_(self.conv.bias, 0.1)
        self.primary_caps = PrimaryMatrixCaps(conv_channels, primary_types)
        layers: list[ConvMatrixCaps] = []
        grid = ((height - 5) // 2 + 1, (width - 5) // 2 + 1)
        types = primary_types
        for out_types, stride in zip(conv_types, strides, strict=True):
            layers.append(
                ConvMatrixCaps(
                    grid, types, out_types, 3, stride, pose,
                    iterations, inverse_temperature, damping, variance_floor, annealing,
                )
            )  # fmt: skip
            grid, types = layers[-1].out_grid, out_types
        self.conv_caps = nn.ModuleList(layers)
        centres = None
        if coordinate_addition:
            centres = (receptive_field_centres(height, windows), receptive_field_centres(width, windows))
        self.class_caps = ClassMatrixCaps(
            types, num_classes, pose, centres,
            iterations, class_temperature_factor * inverse_temperature, damping, variance_floor, annealing,
        )  # fmt: skip

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K] (class activations), poses [B, K, 16], couplings [B, I, K]."""
        features = self.conv(images).relu()  # [B, 32, 14, 14]
        poses, activations = self.primary_caps(features)  # [B, 14, 14, 32, 16], [B, 14, 14, 32]
        for layer in self.conv_caps:
            poses, activations = layer(poses, activations)  # [B, 6, 6, 32, 16], then [B, 4, 4, 32, 16]
        poses, scores, assignments = self.class_caps(poses, activations)
        return Output(scores, poses, couplings=assignments)

    def loss(self, output: Output, targets: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """One part, named as the option `loss`. In training mode each call is a step of the margin's schedule."""
        if self.loss_name == "spread":
            part = spread_loss(output.scores, labels, self.spread_margin())
        elif self.loss_name == "margin":
            part = margin_loss(output.scores, present_classes(labels, self.num_classes, output.scores.dtype))
        else:
            part = classification_loss(output.scores, labels)
        return {self.loss_name: part}
