"""The baseline CNN on smallNORB of Hinton, Sabour, Frosst 2018 (H18), section 5."""

from itertools import pairwise

from torch import nn

from capsbench.losses import Labels, Scalar, classification_loss
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import MODELS, Count, Counts, Fraction


@MODELS.register("cnn_hinton_norb", title="CNN (H18)", published_on=((2, 32, 32), 5))
class CnnHintonNorb(Network):
    """Two 5x5 convolutions (SAME) of 32 and 64, each with ReLU and 2x2 max-pooling; 1024 units, dropout, softmax.

    4,253,349 parameters on 2x32x32 and 5 classes. The paper gives no dropout rate: 0.5 here.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        conv_channels: Counts = (32, 64),
        hidden: Count = 1024,
        dropout: Fraction = 0.5,
    ):
        super().__init__()
        channels, height, width = image_shape
        shrink = 2 ** len(conv_channels)
        if min(height, width) < shrink:
            raise ValueError(f"cnn_hinton_norb needs images of at least {shrink}x{shrink}, not {height}x{width}")
        layers: list[nn.Module] = []
        for channels_in, channels_out in pairwise((channels, *conv_channels)):
            layers += [nn.Conv2d(channels_in, channels_out, 5, padding="same"), nn.ReLU(), nn.MaxPool2d(2)]
        features = conv_channels[-1] * (height // shrink) * (width // shrink)
        layers += [nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout)]
        layers.append(nn.Linear(hidden, num_classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K], logits."""
        return Output(self.layers(images))

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the cross-entropy."""
        return {"cross_entropy": classification_loss(output.scores, labels)}
