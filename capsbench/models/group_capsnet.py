"""The group equivariant capsule network of Lenssen, Fey, Libuschewski 2018, *Group Equivariant Capsule Networks*, for
rotations of the plane: layers of posed capsules that steer convolutions.

"Authors' code" is janericlenssen/group_equivariant_capsules_pytorch.
"""

import itertools
from typing import Annotated

import torch.nn.functional as F
from torch import nn

from capsbench.layers.group_capsules import PosedConv, PosedPooling, image_gradients
from capsbench.losses import Labels, Scalar, classification_loss
from capsbench.models.output import Images, Network, Output, Targets, class_loss
from capsbench.registry import LOSSES, MODELS, Chosen, Counts, Iterations


@MODELS.register("group_capsnet", title="group capsules", published_on=((1, 28, 28), 10))
class GroupCapsNet(Network):
    """Gradients of the image as poses -> five times a posed convolution and a pooling of poses by agreement.

    Each level halves the grid, the last pools what is left of it: 32x32, to which 28x28 is padded, becomes 1x1. A class
    has a logit from the features, which is its score, and a capsule: its activation, and its pose, a direction
    [cos, sin] that turns with the image. Both are trained, the capsules by the spread loss and the features by the
    cross-entropy. 310,164 parameters on 28x28x1.

    Turned by a quarter, a square image of an even side gives the same scores and activations, and poses turned by a
    quarter, up to rounding, which grows where votes nearly cancel out. Turns between are met as far as pixels allow.

    Deviations: the authors' reconstruction from features and poses is left out. Kernels and linear maps start as in He
    et al. 2015; under the smaller starts of their code the features of five levels come out near zero. Their spread
    loss has its margin grow by epochs, here it is that of `loss`. Images of several channels have the gradient of their
    mean. Gradients under 1e-4 count as none. Sides are padded with zeros to a multiple of 2 to the power of the number
    of `channels`.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        loss: Annotated[Chosen, LOSSES.only("spread", "margin")] = LOSSES.choose("spread"),
        channels: Counts = (16, 32, 32, 64),
        iterations: Iterations = 1,
    ):
        super().__init__()
        step = 2 ** len(channels)
        height, width = (-(-side // step) * step for side in image_shape[1:])
        missing_rows, missing_columns = height - image_shape[1], width - image_shape[2]
        self.padding = (
            missing_columns // 2, missing_columns - missing_columns // 2, missing_rows // 2,
            missing_rows - missing_rows // 2,
        )  # fmt: skip
        windows = [(2, 2)] * len(channels) + [(height // step, width // step)]
        first = channels[0]
        self.convs = nn.ModuleList([PosedConv(image_shape[0], first), *(PosedConv(count, count) for count in channels)])
        children_and_parents = itertools.pairwise((1, *channels, num_classes))
        self.pools = nn.ModuleList(
            PosedPooling(window, children, parents, features, iterations)
            for window, (children, parents), features in zip(
                windows, children_and_parents, (first, *channels), strict=True
            )
        )
        self.class_loss = loss.build()
        self.loss_name = loss.name

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K] (logits), poses [B, K, 2] and activations [B, K] of the capsules."""
        features = F.pad(images, self.padding)  # [B, C, 32, 32]
        poses, activations = image_gradients(features)  # [B, 1, 32, 32, 2], [B, 1, 32, 32]
        for level, (conv, pool) in enumerate(zip(self.convs, self.pools, strict=True)):
            features = conv(features, poses).relu()  # [B, 16, 32, 32], then [B, I, H, W]
            if level > 0:
                features = features * activations
            assert isinstance(pool, PosedPooling)
            features = pool.features(features)  # [B, J, H', W']
            poses, activations = pool(poses, activations)
        return Output(features[:, :, 0, 0], poses[:, :, 0, 0], activations=activations[:, :, 0, 0])

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the loss of the capsules and the cross-entropy of the features."""
        return {
            self.loss_name: class_loss(self.class_loss, output, labels),
            "cross_entropy": classification_loss(output.scores, labels),
        }
