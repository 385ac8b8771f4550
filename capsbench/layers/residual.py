"""The residual features of He, Zhang, Ren, Sun 2016, *Deep Residual Learning for Image Recognition*, section 4.2.

Networks for small images: a 3x3 convolution, then stages of blocks of two, each stage but the first at half the side.
"""

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Shortcut = Literal["padding", "projection"]


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, each with batch norm, around which a shortcut leads; ReLU after the first and the sum.

    Where the shape changes, the shortcut is "padding", the paper's option A (every `stride`-th pixel, new channels are
    zero, no parameters), or "projection", its option B (a 1x1 convolution with batch norm). The paper does not say
    where the new channels lie: half of them before the old ones and half behind, as most public code has it.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, shortcut: Shortcut = "padding"):
        super().__init__()
        self.stride = stride
        before = (out_channels - in_channels) // 2
        self.new_channels = (before, out_channels - in_channels - before)
        self.conv1 = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.projection: nn.Module | None = None
        if shortcut == "projection" and (stride != 1 or in_channels != out_channels):
            conv = nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False)
            self.projection = nn.Sequential(conv, nn.BatchNorm2d(out_channels))

    def forward(self, maps: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch _ _ _"]:
        """Maps [B, C, H, W] -> [B, C', H', W'], H' = ceil(H / stride)."""
        residual: Tensor = self.norm1(self.conv1(maps)).relu()
        residual = self.norm2(self.conv2(residual))
        if self.projection is not None:
            projected: Tensor = self.projection(maps)
            return (residual + projected).relu()
        unchanged = maps[:, :, :: self.stride, :: self.stride]
        return (residual + F.pad(unchanged, (0, 0, 0, 0, *self.new_channels))).relu()


class ResidualFeatures(nn.Module):
    """A 3x3 convolution with batch norm and ReLU, then a stage of `blocks` blocks for each of `widths`.

    images [B, C, H, W] -> features [B, widths[-1], *grid], where `grid` is the image halved, rounding up, in each
    stage but the first. Weights start as in He et al. 2015. Raises ValueError, naming `network`, for images whose grid
    is less than 2x2 (batch norm needs more than one value of a batch of one) and for padding to fewer channels.
    """

    def __init__(
        self,
        network: str,
        image_shape: tuple[int, int, int],
        widths: tuple[int, ...],
        blocks: int,
        shortcut: Shortcut = "padding",
    ):
        super().__init__()
        channels, height, width = image_shape
        shrink = 2 ** (len(widths) - 1)
        if min(height, width) <= shrink:
            raise ValueError(f"{network} needs images of at least {shrink + 1}x{shrink + 1}, not {height}x{width}")
        if shortcut == "padding" and list(widths) != sorted(widths):
            raise ValueError(f"{network}: widths {widths} must not shrink where shortcuts are padded")
        self.grid = (-(-height // shrink), -(-width // shrink))
        layers: list[nn.Module] = [
            nn.Conv2d(channels, widths[0], kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(widths[0]),
            nn.ReLU(),
        ]
        in_channels = widths[0]
        for stage, out_channels in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(ResidualBlock(in_channels, out_channels, stride, shortcut))
                in_channels = out_channels
        self.layers = nn.Sequential(*layers)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch _ rows columns"]:
        """Images [B, C, H, W] -> features [B, widths[-1], *grid]."""
        features: Tensor = self.layers(images)
        return features
