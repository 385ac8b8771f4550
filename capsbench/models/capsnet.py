"""CapsNet of Sabour, Frosst, Hinton 2017, *Dynamic Routing Between Capsules* (S17), section 4."""

import math
from typing import Annotated, Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.layers import DecoderSize
from capsbench.layers.residual import ResidualFeatures
from capsbench.losses import Labels, Scalar
from capsbench.models.output import Images, Network, Output, Targets, class_loss
from capsbench.registry import DECODERS, LOSSES, MODELS, ROUTINGS, TRANSFORMS, Chosen, Count, Later, Positive, Said
from capsbench.routing.contract import Activations, LayerSize, Poses, capsule_lengths, squash

KERNEL = 9
PRIMARY_WINDOW = {"conv": (KERNEL, 2), "residual": (3, 2), "resnet20": (3, 1)}  # kernel and stride by backbone
SHRINK = {"conv": 1, "residual": 2, "resnet20": 4}  # of the side of an image by its features
RESNET20_WIDTHS = (16, 32, 64)
AUTHORS_BIAS, AUTHORS_FIRST_STD, AUTHORS_STD = 0.1, 0.05, 0.1

Features = Float[Tensor, "batch channels height width"]


@MODELS.register("capsnet", title="CapsNet", published_on=((1, 28, 28), 10))
class CapsNet(Network):
    """Conv 9x9 ReLU -> primary capsules 9x9 stride 2 -> class capsules under a routing -> decoder.

    The defaults have the paper's 8,215,568 parameters on 28x28x1. Where the authors' code (Sarasra/models,
    research/capsules) differs from the paper or the paper is silent, an option has their form:

    - `initialisation`: "authors" starts weights from truncated normal distributions, of std 0.05 in the first
      convolution and 0.1 elsewhere, and biases at 0.1, and divides what the primary convolution gives by
      `primary_types` before its bias and the squash (a coupling of one routing iteration over the types). With the
      same steps of Adam the primary capsules then learn as slowly as their inputs are divided.
    - `padding`: "same" is theirs on CIFAR-10, with 24x24 crops, 64 primary types and `routing: {leaky: true}`.
    - of dynamic routing `detach`, `bias` and `leaky`, of the decoder `input`, of the margin loss `weight`.

    `children`: "squashed" capsules have their lengths as activations (S17). "normalised" ones are what self-routing's
    paper (Hahn 2019) has: batch-normalised poses, each with an activation of its own, the logistic function of a
    batch-normalised convolution.

    `backbone`: what the primary capsules see. Residual features are those of capsbench.layers.residual, under primary
    capsules of 3x3:

    - "conv" is S17's 9x9 convolution, of `conv_channels`.
    - "residual" follows the authors' code of Tsai 2020 (inverted dot-product attention; `conv_channels` 128 there):
      three residual blocks of half of `conv_channels` on the whole grid, three (there four) of `conv_channels` on half
      of it, shortcuts by 1x1 convolutions. The primary capsules have stride 2, as the first routed layer has there, and
      there are 1152 of them on 28x28, as with "conv".
    - "resnet20" has the 16, 32 and 64 channels of He 2016 and ends in a quarter of the grid, whatever `conv_channels`.
      The primary capsules have stride 1, as in Hahn 2019, who pads them (`padding` "same").

    The margin loss teaches little where activations are not lengths.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: Annotated[Chosen, ROUTINGS] = ROUTINGS.choose("dynamic"),
        loss: Annotated[Chosen, LOSSES] = LOSSES.choose("margin"),
        decoder: Annotated[Chosen, DECODERS] | None = DECODERS.choose("fully_connected"),
        transform: Annotated[Chosen, TRANSFORMS] = TRANSFORMS.choose("full"),
        initialisation: Annotated[
            Literal["pytorch", "authors"],
            Said("silent", "truncated normal 0.05 and 0.1, biases 0.1, primary convolution divided by 32", "S17"),
        ] = "pytorch",
        weight_std: Annotated[Positive, Said("silent", "0.1", "S17; of the transforms")] = 0.1,
        children: Annotated[
            Literal["squashed", "normalised"],
            Said("squashed", "squashed", "S17; Hahn 2019 (self-routing): normalised, with an activation of their own"),
        ] = "squashed",
        padding: Annotated[
            Literal["valid", "same"], Said("valid", "valid; same on CIFAR-10", "S17; both convolutions")
        ] = "valid",
        backbone: Annotated[
            Literal["conv", "residual", "resnet20"],
            Said("conv", "conv", "S17; Tsai 2020 (inverted dot-product attention): residual; Hahn 2019: resnet20"),
            Later(),
        ] = "conv",
        conv_channels: Count = 256,
        primary_types: Annotated[Count, Said("32; CIFAR-10: 64", "32; CIFAR-10: 64", "S17, sections 4 and 7")] = 32,
        primary_dim: Count = 8,
        class_dim: Count = 16,
    ):
        super().__init__()
        if (children, initialisation) == ("normalised", "authors"):
            raise ValueError("capsnet: the authors' initialisation belongs to children 'squashed', not 'normalised'")
        if initialisation == "authors" and backbone != "conv":
            raise ValueError(f"capsnet: the authors' initialisation belongs to backbone 'conv', not '{backbone}'")
        self.padding, self.primary_window = padding, PRIMARY_WINDOW[backbone]
        grid = _primary_grid(backbone, padding, image_shape)
        self.conv: nn.Conv2d | None = None
        self.residual: ResidualFeatures | None = None
        in_channels = conv_channels
        if backbone == "conv":
            self.conv = nn.Conv2d(image_shape[0], conv_channels, KERNEL)
        elif backbone == "residual":
            widths = (max(1, conv_channels // 2), conv_channels)
            self.residual = ResidualFeatures("capsnet", image_shape, widths, 3, "projection")
        else:
            self.residual = ResidualFeatures("capsnet", image_shape, RESNET20_WIDTHS, 3)
            in_channels = RESNET20_WIDTHS[-1]
        self.primary_caps: nn.Module
        if children == "squashed":
            divisor = primary_types if initialisation == "authors" else 1
            self.primary_caps = PrimaryCaps(in_channels, primary_types, primary_dim, *self.primary_window, divisor)
        else:
            self.primary_caps = NormalisedPrimaryCaps(in_channels, primary_types, primary_dim, *self.primary_window)
        size = LayerSize(
            children=grid[0] * grid[1] * primary_types,
            child_dim=primary_dim,
            parents=num_classes,
            parent_dim=class_dim,
        )
        self.transform = transform.build(size, primary_types, weight_std)
        self.routing = routing.build(size)
        self.decoder = decoder.build(DecoderSize(num_classes, class_dim, image_shape)) if decoder else None
        self.loss_name, self.class_loss = loss.name, loss.build()
        if initialisation == "authors":
            self._start_as_the_authors()

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores and activations [B, K] of the class capsules, poses [B, K, D], the rest."""
        if self.conv is not None:
            features = self.conv(self._padded(images, KERNEL, 1)).relu()  # [B, 256, 20, 20]
        else:
            assert self.residual is not None
            features = self.residual(images)  # [B, C', H', W']
        inputs, active = self.primary_caps(self._padded(features, *self.primary_window))  # [B, 1152, 8], [B, 1152]
        weight = self.transform()  # W [1152, K, 16, 8]
        routed = self.routing(inputs, active, weight)
        poses, activations, couplings = routed  # [B, K, 16], [B, K], [B, 1152, K]
        scores = activations if routed.logits is None else routed.logits
        output = Output(scores, poses, None, couplings, activations)
        return output._replace(reconstructions=self.reconstruct(output, labels))  # [B, (S,) C, H, W]

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the loss of the classes and that of the reconstructions (S17, sections 3, 4.1 and 6)."""
        parts = {self.loss_name: class_loss(self.class_loss, output, labels)}
        if self.decoder is not None and output.reconstructions is not None:
            parts["reconstruction"] = self.decoder.loss(output.reconstructions, targets)
        return parts

    def _padded(self, images: Tensor, kernel_size: int, stride: int) -> Tensor:
        """Add the zeros of SAME padding: as many positions come out as there are strides in a side."""
        if self.padding == "valid":
            return images
        missing = [(-(-side // stride) - 1) * stride + kernel_size - side for side in images.shape[2:]]
        rows, columns = missing
        return F.pad(images, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))

    def _start_as_the_authors(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                std = AUTHORS_FIRST_STD if module is self.conv else AUTHORS_STD
                nn.init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)
                assert module.bias is not None
                nn.init.constant_(module.bias, AUTHORS_BIAS)


def _primary_grid(backbone: str, padding: str, image_shape: tuple[int, int, int]) -> tuple[int, int]:
    """Return the rows and columns of primary capsules. Raises ValueError for images that are too small."""
    (kernel_size, stride), shrink = PRIMARY_WINDOW[backbone], SHRINK[backbone]
    cut = KERNEL - 1 if (backbone, padding) == ("conv", "valid") else 0  # by S17's convolution
    lost = kernel_size - 1 if padding == "valid" else 0
    least = max(lost, 0 if backbone == "conv" else 1)  # batch norm needs more than one value of a batch of one
    needed = cut + shrink * least + 1
    height, width = image_shape[1:]
    if min(height, width) < needed:
        raise ValueError(f"capsnet needs images of at least {needed}x{needed}, not {height}x{width}")
    features = [math.ceil((side - cut) / shrink) for side in (height, width)]
    rows, columns = (math.ceil((side - lost) / stride) for side in features)
    return rows, columns


class PrimaryCaps(nn.Module):
    """The first capsule layer of S17: a convolution whose channels are cut into capsules, then squashed.

    A capsule is `dim` neighbouring channels of ONE position; capsule number = position x types + type. `divisor`: of
    what the convolution gives before its bias is added, see `CapsNet`.
    """

    def __init__(
        self, in_channels: int, types: int, dim: int, kernel_size: int = KERNEL, stride: int = 2, divisor: int = 1
    ):
        super().__init__()
        self.types, self.dim, self.divisor = types, dim, divisor
        self.conv = nn.Conv2d(in_channels, types * dim, kernel_size, stride)

    def forward(self, features: Features) -> tuple[Poses, Activations]:
        """Features [B, C, H, W] -> squashed poses [B, I, dim], I = H' x W' x types, and their lengths [B, I]."""
        if self.divisor == 1:
            maps = self.conv(features)  # [B, types * dim, H', W']
        else:
            weight = self.conv.weight / self.divisor
            maps = self.conv._conv_forward(features, weight, self.conv.bias)
        poses = squash(capsules_of(maps, self.types))
        return poses, capsule_lengths(poses)


class NormalisedPrimaryCaps(nn.Module):
    """Primary capsules of self-routing (Hahn 2019): batch-normalised poses, with activations of their own.

    Two convolutions without bias. A pose is not squashed.
    """

    def __init__(self, in_channels: int, types: int, dim: int, kernel_size: int = KERNEL, stride: int = 2):
        super().__init__()
        self.types = types
        self.pose_conv = nn.Conv2d(in_channels, types * dim, kernel_size, stride, bias=False)
        self.pose_norm = nn.BatchNorm2d(types * dim)
        self.activation_conv = nn.Conv2d(in_channels, types, kernel_size, stride, bias=False)
        self.activation_norm = nn.BatchNorm2d(types)

    def forward(self, features: Features) -> tuple[Poses, Activations]:
        """Features [B, C, H, W] -> poses [B, I, dim], activations [B, I] in [0, 1]."""
        poses = capsules_of(self.pose_norm(self.pose_conv(features)), self.types)
        logits = capsules_of(self.activation_norm(self.activation_conv(features)), self.types)
        return poses, logits.squeeze(2).sigmoid()


def capsules_of(maps: Features, types: int) -> Poses:
    """Cut maps [B, types x dim, H, W] into capsules [B, H x W x types, dim], each of one position."""
    maps = maps.unflatten(1, (types, -1))  # [B, types, dim, H, W]
    return maps.permute(0, 3, 4, 1, 2).flatten(1, 3)
