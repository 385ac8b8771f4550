"""CapsNet of Sabour, Frosst, Hinton 2017, *Dynamic Routing Between Capsules* (S17), section 4."""

from typing import Annotated

from torch import nn

from capsbench.layers import ClassCaps, DecoderSize, PrimaryCaps
from capsbench.losses import Labels, Scalar
from capsbench.models.output import Images, Output, Targets
from capsbench.registry import DECODERS, LOSSES, MODELS, ROUTINGS, TRANSFORMS, Chosen, Count, Positive
from capsbench.routing import LayerSize


@MODELS.register("capsnet", title="CapsNet", published_on=((1, 28, 28), 10))
class CapsNet(nn.Module):
    """Conv 9x9 ReLU -> PrimaryCaps 9x9 stride 2 -> class capsules under a routing -> decoder.

    The defaults are the paper's: 8,215,568 parameters on 28x28x1. Deviations that public code is known for are
    options: of dynamic routing `detach` and `bias`, of the decoder `input` (selected: the decoder sees the 16 values of
    one capsule instead of all 160, masked), of the margin loss `weight` (the authors' code: 1/20), and `weight_std`
    (the authors' code: 0.1; the paper is silent). The margin loss teaches little where activations are not lengths.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: Annotated[Chosen, ROUTINGS] = ROUTINGS.choose("dynamic"),
        loss: Annotated[Chosen, LOSSES.only("margin", "spread", "share_likelihood")] = LOSSES.choose("margin"),
        decoder: Annotated[Chosen, DECODERS] | None = DECODERS.choose("fully_connected"),
        transform: Annotated[Chosen, TRANSFORMS] = TRANSFORMS.choose("full"),
        weight_std: Positive = 0.1,
        conv_channels: Count = 256,
        primary_types: Count = 32,
        primary_dim: Count = 8,
        class_dim: Count = 16,
    ):
        super().__init__()
        channels, height, width = image_shape
        primary_height, primary_width = ((side - 8 - 9) // 2 + 1 for side in (height, width))
        if min(primary_height, primary_width) < 1:
            raise ValueError(f"capsnet needs images of at least 17x17, not {height}x{width}")
        self.conv = nn.Conv2d(channels, conv_channels, kernel_size=9)
        self.primary_caps = PrimaryCaps(conv_channels, primary_types, primary_dim, kernel_size=9, stride=2)
        size = LayerSize(
            children=primary_height * primary_width * primary_types,
            child_dim=primary_dim,
            parents=num_classes,
            parent_dim=class_dim,
        )
        self.class_caps = ClassCaps(size, routing, transform, in_types=primary_types, weight_std=weight_std)
        self.decoder = decoder.build(DecoderSize(num_classes, class_dim, image_shape)) if decoder else None
        self.loss_name, self.class_loss = loss.name, loss.build()

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K] (activations of the class capsules), poses [B, K, D], the rest."""
        features = self.conv(images).relu()  # [B, 256, 20, 20]
        inputs = self.primary_caps(features)  # [B, 1152, 8]
        poses, activations, couplings = self.class_caps(inputs)  # [B, K, 16], [B, K], [B, 1152, K]
        reconstructions = None
        if self.decoder is not None:
            reconstructions = self.decoder(poses, activations, labels)  # [B, (S,) C, H, W]
        return Output(activations, poses, reconstructions, couplings)

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the loss of the classes and that of the reconstructions (S17, sections 3, 4.1 and 6)."""
        parts = {self.loss_name: self.class_loss(output.scores, labels)}
        if self.decoder is not None and output.reconstructions is not None:
            parts["reconstruction"] = self.decoder.loss(output.reconstructions, targets)
        return parts
