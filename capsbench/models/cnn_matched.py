"""A plain CNN with a given number of parameters: the fair opponent of a capsule network of that size."""

import itertools

from torch import Tensor, nn

from capsbench.losses import classification_loss
from capsbench.models.output import Output
from capsbench.options import Count, Fraction


class CnnMatched(nn.Module):
    """Three blocks of 3x3 convolution, batch norm, ReLU, 2x2 max-pooling; one hidden layer; dropout; softmax.

    Widths are w, 2w, 4w with a hidden layer of about 8w: w is the largest that leaves the count at or under
    `parameters`, then the hidden layer grows to meet it. The default is the count of CapsNet on 28x28x1 with
    its decoder. Not from a paper: no published CNN has that size.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        parameters: Count = 8_215_568,
        dropout: Fraction = 0.5,
    ):
        super().__init__()
        channels, height, width = image_shape
        if min(height, width) < 8:
            raise ValueError(f"cnn_matched needs images of at least 8x8, not {height}x{width}")
        positions = (height // 8) * (width // 8)
        base = 1
        while _count(channels, positions, num_classes, base + 1, 8 * (base + 1)) <= parameters:
            base += 1
        fixed = _count(channels, positions, num_classes, base, 0)
        hidden = max(1, round((parameters - fixed) / (4 * base * positions + 1 + num_classes)))
        if abs(_count(channels, positions, num_classes, base, hidden) / parameters - 1) > 0.02:
            raise ValueError(f"no cnn_matched for {height}x{width} has {parameters} parameters within 2 %")

        layers: list[nn.Module] = []
        widths = (channels, base, 2 * base, 4 * base)
        for channels_in, channels_out in itertools.pairwise(widths):
            # the bias is in the batch norm
            layers.append(nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(channels_out), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(4 * base * positions, hidden), nn.ReLU(), nn.Dropout(dropout)]
        layers.append(nn.Linear(hidden, num_classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K], logits."""
        return Output(self.layers(images))

    def loss(self, output: Output, targets: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cross-entropy."""
        return {"cross_entropy": classification_loss(output.scores, labels)}


def _count(channels: int, positions: int, num_classes: int, base: int, hidden: int) -> int:
    convolutions = 9 * (channels * base + 2 * base * base + 8 * base * base) + 2 * 7 * base
    return convolutions + (4 * base * positions + 1) * hidden + (hidden + 1) * num_classes
