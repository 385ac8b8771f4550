"""The baseline CNN on MNIST of Sabour, Frosst, Hinton 2017 (S17), section 5."""

from itertools import pairwise

from torch import nn

from capsbench.losses import Labels, Scalar, classification_loss
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import MODELS, Counts, Fraction


@MODELS.register("cnn_sabour_mnist", title="CNN (S17, MNIST)", published_on=((1, 28, 28), 10))
class CnnSabourMnist(Network):
    """Three 5x5 convolutions (SAME) of 256, 256, 128, then 328 and 192 units, dropout, softmax.

    35,445,522 parameters on 28x28x1. The paper gives no dropout rate: 0.5 here.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        conv_channels: Counts = (256, 256, 128),
        hidden: Counts = (328, 192),
        dropout: Fraction = 0.5,
    ):
        super().__init__()
        channels, height, width = image_shape
        layers: list[nn.Module] = []
        for channels_in, channels_out in pairwise((channels, *conv_channels)):
            layers += [nn.Conv2d(channels_in, channels_out, 5, padding="same"), nn.ReLU()]
        layers.append(nn.Flatten())
        for units_in, units_out in pairwise((conv_channels[-1] * height * width, *hidden)):
            layers += [nn.Linear(units_in, units_out), nn.ReLU()]
        layers += [nn.Dropout(dropout), nn.Linear(hidden[-1], num_classes)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K], logits."""
        return Output(self.layers(images))

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the cross-entropy."""
        return {"cross_entropy": classification_loss(output.scores, labels)}
