"""What gives images back from class capsules: which capsules a decoder sees, and the two kinds of decoder."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN = (512, 1024)  # of the fully connected decoder of S17


def masked_poses(poses: Tensor, scores: Tensor, labels: Tensor | None) -> Tensor:
    """Zero all capsules but that of the true class, or, without labels, of the class with the highest score.

    poses [B, K, D], scores [B, K], labels int64 [B] or none -> [B, K, D]. With labels [B, S], of S objects in an
    image, each object is chosen alone -> [B, S, K, D]. Source: S17, sections 4.1 and 6.
    """
    chosen = scores.argmax(dim=1) if labels is None else labels  # [B], or [B, S]
    mask = F.one_hot(chosen, poses.shape[1]).to(poses.dtype)  # [B, (S,) K]
    return torch.einsum("b...k,bkd->b...kd", mask, poses)


def build_decoder(
    kind: str, in_features: int, image_shape: tuple[int, int, int], hidden: tuple[int, ...], dropout: float = 0.0
) -> nn.Module:
    """Build the decoder of the kind "fully_connected" or "convolutional": values [..., in_features] -> images.

    Raises ValueError where hidden widths other than S17's, or dropout, are asked of the convolutional one, which has
    neither.
    """
    if kind == "fully_connected":
        return Decoder(in_features, image_shape, hidden, dropout)
    if tuple(hidden) != HIDDEN or dropout:
        raise ValueError("decoder_hidden and dropout are of the fully connected decoder, not of the convolutional one")
    return ConvDecoder(in_features, image_shape)


class Decoder(nn.Module):
    """The fully connected decoder of S17: two hidden ReLU layers, a sigmoid, so that targets lie in [0, 1].

    values [..., in_features] -> images [..., C, H, W].
    """

    def __init__(
        self,
        in_features: int,
        image_shape: tuple[int, int, int],
        hidden: tuple[int, ...] = HIDDEN,
        dropout: float = 0.0,
    ):
        super().__init__()
        widths = (in_features, *hidden)
        layers: list[nn.Module] = []
        for width_in, width_out in itertools.pairwise(widths):
            layers += [nn.Linear(width_in, width_out), nn.ReLU()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        layers += [
            nn.Linear(widths[-1], math.prod(image_shape)),
            nn.Sigmoid(),
            nn.Unflatten(-1, image_shape),
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, values: Tensor) -> Tensor:
        """Values [..., in_features] -> images in [0, 1], [..., C, H, W]."""
        return self.layers(values)


class ConvDecoder(nn.Module):
    """The decoder of Efficient-CapsNet's authors (EscVM/Efficient-CapsNet) on smallNORB.

    64 values as an 8x8 image, thrice doubled and convolved, to 2x48x48. A side of n values becomes 8 n - 16; for a
    side that is no such number, n is the next larger one, and the image is cut from the middle. Layers start as
    PyTorch has them, and a sigmoid ends them, so that targets lie in [0, 1]; the authors' are standardised images.
    values [..., in_features] -> images [..., C, H, W].
    """

    def __init__(self, in_features: int, image_shape: tuple[int, int, int]):
        super().__init__()
        self.image_shape = image_shape
        channels, *sides = image_shape
        small = [math.ceil((side + 16) / 8) for side in sides]
        self.layers = nn.Sequential(
            nn.Linear(in_features, math.prod(small)),
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

    def forward(self, values: Tensor) -> Tensor:
        """Values [..., in_features] -> images in [0, 1], [..., C, H, W]."""
        images = self.layers(values.flatten(0, -2))
        for dim, side in zip((2, 3), self.image_shape[1:], strict=True):
            images = images.narrow(dim, (images.shape[dim] - side) // 2, side)
        return images.unflatten(0, values.shape[:-1])
