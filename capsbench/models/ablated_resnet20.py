"""The ResNet-20 of He, Zhang, Ren, Sun 2016 without its mean over positions: a control for moved images, OURS."""

from torch import nn

from capsbench.layers.residual import Shortcut
from capsbench.losses import Labels
from capsbench.models.output import Images, Output
from capsbench.models.resnet20 import ResNet20
from capsbench.registry import MODELS, Count, Counts


@MODELS.register("resnet20_ablated", title="ResNet-20, no mean over positions", published_on=((3, 32, 32), 10))
class ResNet20Ablated(ResNet20):
    """`resnet20` whose last layer has weights for each position in place of the mean over positions.

    Its last layer has as many times the weights as there are positions, 64 on 3x32x32 and 100 on 1x40x40. All else, and
    the first weights of all other layers at the same seed, is that of `resnet20`. Not from a paper.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        widths: Counts = (16, 32, 64),
        blocks: Count = 3,
        shortcut: Shortcut = "padding",
    ):
        super().__init__(image_shape, num_classes, widths=widths, blocks=blocks, shortcut=shortcut)
        height, width = self.features.grid
        self.classifier = nn.Linear(widths[-1] * height * width, num_classes)

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K], logits."""
        return Output(self.classifier(self.features(images).flatten(1)))
