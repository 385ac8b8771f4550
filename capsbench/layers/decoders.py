"""Decoders: from the class capsules back to images, and what the error of the images costs."""

import itertools
import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.losses import Labels, Scalar, Scores, reconstruction_loss
from capsbench.registry import DECODERS, Count, Counts, Fraction, NonNegative

BATCH_NORM_EPSILON = 1e-3  # Keras's

Poses = Float[Tensor, "batch classes dim"]
Values = Float[Tensor, "*batch values"]
Images = Float[Tensor, "*batch channels height width"]

Input = Literal["masked", "selected"]
Reduction = Literal["sum", "mean"]


class DecoderSize(NamedTuple):
    """The sizes that a decoder joins: classes, elements of a class capsule, and the image shape (C, H, W)."""

    classes: int
    class_dim: int
    image_shape: tuple[int, int, int]


class Decoder(nn.Module):
    """Base of all decoders: built as Class(size, *, options); `layers` takes values [N, V] to images [N, C, H, W].

    The decoder sees the capsule of the true class where labels are given (training) and of the predicted class where
    they are not (test). Several objects in an image are decoded one by one (S17, sections 4.1 and 6).

    input: `masked`, all capsules with the others set to zero; `selected`, the values of the one capsule alone.
    weight: of the reconstruction error in the loss. reduction: whether that is the sum of squared errors of an image
    (S17) or their mean over all that is reconstructed of it.
    """

    layers: nn.Module

    def __init__(self, input: Input, weight: float, reduction: Reduction):
        super().__init__()
        self.input, self.weight, self.reduction = input, weight, reduction

    def forward(self, poses: Poses, scores: Scores, labels: Labels | None) -> Images:
        """Poses [B, K, D], scores [B, K] -> images in [0, 1]: [B, C, H, W], or [B, S, C, H, W] for labels [B, S]."""
        values = masked_poses(poses, scores, labels)  # [B, (S,) K, D]
        values = values.flatten(-2) if self.input == "masked" else values.sum(dim=-2)  # [B, (S,) V]
        return self.decode(values)

    def decode(self, values: Values) -> Images:
        """Values [..., V] -> images in [0, 1], [..., C, H, W]."""
        images: Tensor = self.layers(values.flatten(0, -2)).unflatten(0, values.shape[:-1])
        return images

    def loss(self, reconstructions: Tensor, targets: Tensor) -> Scalar:
        """Return the weighted reconstruction error, a mean over the batch; both [B, (S,) C, H, W]."""
        error = reconstruction_loss(reconstructions, targets)
        if self.reduction == "mean":
            error = error / reconstructions[0].numel()
        return self.weight * error


def masked_poses(poses: Poses, scores: Scores, labels: Labels | None) -> Float[Tensor, "batch *objects classes dim"]:
    """Zero all capsules but that of the true class, or, without labels, of the class with the highest score.

    poses [B, K, D], scores [B, K], labels int64 [B] or none -> [B, K, D]. With labels [B, S], of S objects in an
    image, each object is chosen alone -> [B, S, K, D]. Source: S17, sections 4.1 and 6.
    """
    chosen = scores.argmax(dim=1) if labels is None else labels  # [B], or [B, S]
    mask = F.one_hot(chosen, poses.shape[1]).to(poses.dtype)  # [B, (S,) K]
    return torch.einsum("b...k,bkd->b...kd", mask, poses)


@DECODERS.register("fully_connected")
class FullyConnectedDecoder(Decoder):
    """The decoder of S17: hidden ReLU layers and a sigmoid, so that targets lie in [0, 1]."""

    def __init__(
        self,
        size: DecoderSize,
        *,
        hidden: Counts = (512, 1024),
        dropout: Fraction = 0.0,
        input: Input = "masked",
        weight: NonNegative = 0.0005,
        reduction: Reduction = "sum",
    ):
        super().__init__(input, weight, reduction)
        layers: list[nn.Module] = []
        for width_in, width_out in itertools.pairwise((_values(size, input), *hidden)):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        layers += [nn.Linear(hidden[-1], math.prod(size.image_shape)), nn.Sigmoid(), nn.Unflatten(-1, size.image_shape)]
        self.layers = nn.Sequential(*layers)


@DECODERS.register("convolutional")
class ConvDecoder(Decoder):
    """The decoder of Efficient-CapsNet's authors (EscVM/Efficient-CapsNet) on smallNORB.

    64 values as an 8x8 image, doubled and convolved three times, to 2x48x48. A side of n values becomes 8 n - 16; for
    a side that is no such number, n is the next larger one, and the image is cut from the middle. Layers start as
    PyTorch has them, and a sigmoid ends them, so that targets lie in [0, 1]; the authors' are standardised images.
    """

    def __init__(
        self,
        size: DecoderSize,
        *,
        input: Input = "masked",
        weight: NonNegative = 0.0005,
        reduction: Reduction = "sum",
    ):
        super().__init__(input, weight, reduction)
        channels, *self.sides = size.image_shape
        small = [math.ceil((side + 16) / 8) for side in self.sides]
        self.layers = nn.Sequential(
            nn.Linear(_values(size, input), math.prod(small)),
            nn.Unflatten(1, (1, *small)),
            *self._doubled(1, 64),
            *self._doubled(64, 128),
            *self._doubled(128, 128),
            nn.Conv2d(128, channels, kernel_size=3),
            nn.Sigmoid(),
        )

    @staticmethod
    def _doubled(channels_in: int, channels_out: int) -> list[nn.Module]:
        upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        return [upsample, nn.Conv2d(channels_in, channels_out, kernel_size=3), nn.LeakyReLU(0.2)]

    def decode(self, values: Values) -> Images:
        """Values [..., V] -> images in [0, 1], [..., C, H, W]."""
        images = super().decode(values)
        for dim, side in zip((-2, -1), self.sides, strict=True):
            images = images.narrow(dim, (images.shape[dim] - side) // 2, side)
        return images


@DECODERS.register("deconvolutional")
class DeconvDecoder(Decoder):
    """The class-independent decoder of DeepCaps (section 4): the values of ONE capsule, grown by deconvolutions.

    A small grid with a fourth of `width` channels, batch norm, then 3x3 deconvolutions: one to `width` channels, two
    (from 64 pixels on, three) that double the grid and halve the channels, one to the image. As in the authors' code
    (brjathu/deepcaps) nothing but the first layer (ReLU) and the last is non-linear. Sides that are no multiple are
    cut at the end. Deviation: a sigmoid ends it, for images in [0, 1]; theirs is a ReLU.
    """

    def __init__(
        self, size: DecoderSize, *, width: Count = 64, weight: NonNegative = 0.4, reduction: Reduction = "mean"
    ):
        super().__init__("selected", weight, reduction)
        channels, *self.sides = size.image_shape
        doublings = 3 if max(self.sides) >= 64 else 2
        grid = [math.ceil(side / 2**doublings) for side in self.sides]
        start = max(1, width // 4)
        layers: list[nn.Module] = [
            nn.Linear(size.class_dim, start * math.prod(grid)),
            nn.ReLU(),
            nn.Unflatten(1, (start, *grid)),
            nn.BatchNorm2d(start, BATCH_NORM_EPSILON, momentum=0.2),
            nn.ConvTranspose2d(start, width, kernel_size=3, padding=1),
        ]
        channels_in: int = width
        for _ in range(doublings):
            narrower = max(1, channels_in // 2)
            layers.append(nn.ConvTranspose2d(channels_in, narrower, 3, stride=2, padding=1, output_padding=1))
            channels_in = narrower
        layers += [nn.ConvTranspose2d(channels_in, channels, kernel_size=3, padding=1), nn.Sigmoid()]
        for layer in layers:
            if isinstance(layer, nn.Linear | nn.ConvTranspose2d):
                nn.init.xavier_uniform_(layer.weight)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        self.layers = nn.Sequential(*layers)

    def decode(self, values: Values) -> Images:
        """Values [..., D] -> images in [0, 1], [..., C, H, W]."""
        return super().decode(values)[..., : self.sides[0], : self.sides[1]]


def _values(size: DecoderSize, input: Input) -> int:
    return size.class_dim * (size.classes if input == "masked" else 1)
