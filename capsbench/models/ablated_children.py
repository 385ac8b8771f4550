"""CapsNet with some of what sets the primary capsules of self-routing (Hahn 2019) apart from S17's: a control, OURS.

A primary capsule of S17 is squashed, so that its length says whether its part is there. One of Hahn, Pyeon, Kim 2019
is batch-normalised and not squashed; an activation of its own says whether its part is there.
"""

from torch import nn

from capsbench.models.capsnet import KERNEL, CapsNet, Features, PrimaryCaps, capsules_of
from capsbench.registry import MODELS, ROUTINGS, Count
from capsbench.routing.contract import Activations, Poses, capsule_lengths, squash


@MODELS.register(
    "capsnet_ablated_children", title="CapsNet, other children", published_on=((1, 28, 28), 10), routing="uniform"
)
class CapsNetAblatedChildren(CapsNet):
    """`capsnet` with equal couplings and no decoder, whose primary capsules have any of three properties.

    - `batch_norm`: poses are batch-normalised, and their convolution has no bias. With this alone they are those of
      `children: normalised`.
    - `squashed`: poses are squashed, after that. With this alone the network is `capsnet` under uniform routing.
    - `own_activation`: finally, poses are multiplied by the logistic function of a batch-normalised convolution.

    The first weights are those of `capsnet` with squashed children at the same seed. Not from a paper.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        squashed: bool = True,
        batch_norm: bool = False,
        own_activation: bool = False,
        conv_channels: Count = 256,
        primary_types: Count = 32,
        primary_dim: Count = 8,
        class_dim: Count = 16,
    ):
        super().__init__(
            image_shape,
            num_classes,
            routing=ROUTINGS.choose("uniform"),
            decoder=None,
            conv_channels=conv_channels,
            primary_types=primary_types,
            primary_dim=primary_dim,
            class_dim=class_dim,
        )
        assert isinstance(self.primary_caps, PrimaryCaps)
        self.primary_caps = AblatedPrimaryCaps(self.primary_caps, squashed, batch_norm, own_activation)


class AblatedPrimaryCaps(nn.Module):
    """S17's primary convolution, whose channels are cut into the capsules of `CapsNetAblatedChildren`."""

    def __init__(self, primary_caps: PrimaryCaps, squashed: bool, batch_norm: bool, own_activation: bool):
        super().__init__()
        self.conv, self.types, self.squashed = primary_caps.conv, primary_caps.types, squashed
        self.norm: nn.Module = nn.Identity()
        self.activation: nn.Module | None = None
        if batch_norm:
            self.conv.register_parameter("bias", None)
            self.norm = nn.BatchNorm2d(self.conv.out_channels)
        if own_activation:
            conv = nn.Conv2d(self.conv.in_channels, self.types, KERNEL, stride=2, bias=False)
            self.activation = nn.Sequential(conv, nn.BatchNorm2d(self.types), nn.Sigmoid())

    def forward(self, features: Features) -> tuple[Poses, Activations]:
        """Features [B, C, H, W] -> poses [B, I, dim], their lengths [B, I], I = H' x W' x types."""
        poses = capsules_of(self.norm(self.conv(features)), self.types)
        if self.squashed:
            poses = squash(poses)
        if self.activation is not None:
            poses = poses * capsules_of(self.activation(features), self.types)  # a_i u_i, a [B, I, 1]
        return poses, capsule_lengths(poses)  # uniform routing reads the poses alone
