"""The baseline CNN on MultiMNIST of Sabour, Frosst, Hinton 2017 (S17), section 6."""

from torch import nn

from capsbench.losses import Labels, Scalar, classification_loss
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import MODELS, Count, Counts


@MODELS.register("cnn_sabour_multimnist", title="CNN (S17, MultiMNIST)", published_on=((1, 36, 36), 10))
class CnnSabourMultimnist(Network):
    """Convolutions 9x9 of 512 and 5x5 of 256 (SAME), each with ReLU and 2x2 max-pooling; 1024 units; K sigmoids.

    24,563,978 parameters on 1x36x36 and 10 classes. Kernels beyond the second convolution are 5x5. No dropout:
    the paper names none.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        conv_channels: Counts = (512, 256),
        hidden: Count = 1024,
    ):
        super().__init__()
        channels, height, width = image_shape
        shrink = 2 ** len(conv_channels)
        if min(height, width) < shrink:
            raise ValueError(f"cnn_sabour_multimnist needs images of at least {shrink}x{shrink}, not {height}x{width}")
        layers: list[nn.Module] = []
        channels_in = channels
        for number, channels_out in enumerate(conv_channels):
            kernel_size = 9 if number == 0 else 5
            layers += [nn.Conv2d(channels_in, channels_out, kernel_size, padding="same"), nn.ReLU(), nn.MaxPool2d(2)]
            channels_in = channels_out
        features = channels_in * (height // shrink) * (width // shrink)
        layers += [nn.Flatten(), nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, num_classes)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K], logits of the sigmoids."""
        return Output(self.layers(images))

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the cross-entropy: of a softmax for labels [B], of K sigmoids for labels [B, S] of present classes."""
        return {"cross_entropy": classification_loss(output.scores, labels)}
