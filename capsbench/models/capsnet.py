"""CapsNet of Sabour, Frosst, Hinton 2017, *Dynamic Routing Between Capsules* (S17), section 4."""

from typing import Annotated

from jaxtyping import Float
from torch import Tensor, nn

from capsbench.layers import DecoderSize
from capsbench.losses import Labels, Scalar
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import DECODERS, LOSSES, MODELS, ROUTINGS, TRANSFORMS, Chosen, Count, Positive
from capsbench.routing.contract import LayerSize, capsule_lengths, squash


@MODELS.register("capsnet", title="CapsNet", published_on=((1, 28, 28), 10))
class CapsNet(Network):
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
        self.transform = transform.build(size, primary_types, weight_std)
        self.routing = routing.build(size)
        self.decoder = decoder.build(DecoderSize(num_classes, class_dim, image_shape)) if decoder else None
        self.loss_name, self.class_loss = loss.name, loss.build()

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K] (activations of the class capsules), poses [B, K, D], the rest."""
        features = self.conv(images).relu()  # [B, 256, 20, 20]
        inputs = self.primary_caps(features)  # [B, 1152, 8]
        weight = self.transform()  # W [1152, K, 16, 8]
        # poses [B, K, 16], activations [B, K], couplings [B, 1152, K]
        poses, activations, couplings = self.routing(inputs, capsule_lengths(inputs), weight)
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


class PrimaryCaps(nn.Module):
    """The first capsule layer of S17: a convolution whose channels are cut into capsules, then squashed.

    A capsule is `dim` neighbouring channels of ONE position; capsule number = position x types + type.
    """

    def __init__(self, in_channels: int, types: int, dim: int, kernel_size: int = 9, stride: int = 2):
        super().__init__()
        self.types, self.dim = types, dim
        self.conv = nn.Conv2d(in_channels, types * dim, kernel_size, stride)

    def forward(self, features: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch capsules dim"]:
        """Features [B, C, H, W] -> squashed poses [B, I, dim], I = H' x W' x types."""
        maps = self.conv(features)  # [B, types * dim, H', W']
        maps = maps.unflatten(1, (self.types, self.dim))  # [B, types, dim, H', W']
        capsules = maps.permute(0, 3, 4, 1, 2)  # [B, H', W', types, dim]
        return squash(capsules.flatten(1, 3))  # [B, I, dim]
