"""ResNet-20 of He, Zhang, Ren, Sun 2016, *Deep Residual Learning for Image Recognition*, section 4.2 (CIFAR-10)."""

from typing import Literal

from torch import nn

from capsbench.layers.residual import ResidualFeatures
from capsbench.losses import Labels, Scalar, classification_loss
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import MODELS, Count, Counts


@MODELS.register("resnet20", title="ResNet-20", published_on=((3, 32, 32), 10))
class ResNet20(Network):
    """A 3x3 convolution, three stages of three residual blocks (16, 32, 64 channels), the mean over positions, softmax.

    269,722 parameters on 3x32x32 and 10 classes; 6 x `blocks` + 2 layers with three `widths`. `shortcut` "padding" is
    the paper's option A, "projection" its option B (272,474 parameters). Deviation: the paper's weight decay of 0.0001
    is left out: with its rate of 0.1 it takes 1e-5 of a weight per step, AdamW's with ours 1e-7. Images of other sizes
    end in a grid of another size, of which the mean is taken as well.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        widths: Counts = (16, 32, 64),
        blocks: Count = 3,
        shortcut: Literal["padding", "projection"] = "padding",
    ):
        super().__init__()
        self.features = ResidualFeatures("resnet20", image_shape, widths, blocks, shortcut)
        self.classifier = nn.Linear(widths[-1], num_classes)

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K], logits."""
        features = self.features(images)  # [B, 64, 8, 8]
        return Output(self.classifier(features.mean(dim=(2, 3))))

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the cross-entropy."""
        return {"cross_entropy": classification_loss(output.scores, labels)}
