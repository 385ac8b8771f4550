"""Self-routing capsules of Hahn, Pyeon, Kim 2019, *Self-Routing Capsule Networks* (NeurIPS), its CIFAR-10 network."""

from typing import Literal

from torch import Tensor, nn

from capsbench.models.output import Output
from capsbench.options import Count, Counts
from capsbench.residual_layers import ResidualFeatures
from capsbench.routing.moments import EPSILON
from capsbench.self_routing_layers import ClassSelfRoutingCaps, ConvSelfRoutingCaps, PrimarySelfRoutingCaps

PUBLISHED_ON = ((3, 32, 32), 10)  # CIFAR-10


class SelfRoutingCapsNet(nn.Module):
    """The features of ResNet-20 -> primary capsules -> convolutional capsules -> class capsules, all self-routed.

    `capsule_layers` counts the routed layers: all but the last are convolutional (3x3, padded; the first of them with
    stride 2), the last is one capsule a class fed by the whole grid. `types` is the number of capsules at a position in
    every layer (32 or 16), `pose_dim` that of numbers in a pose, 4x4. On 3x32x32 and 10 classes the defaults, those of
    the authors' code (coder3000/SR-CapsNet), have 931,664 parameters; with `capsule_layers` 2 it is 3,187,536. Both
    are counts of that code's modules: the paper's own are not at hand.

    A score is the logarithm of a class capsule's activation; activations of an image sum to one, so that the loss of
    the paper is their negative log-likelihood. `routing_bias` is the authors' code's: a bias on the routing logits.

    Deviations: 1e-7 is added to the activation before the logarithm and to denominators, for values that stay finite.
    The convolutions of the features start from a normal distribution of the variance that the authors' uniform one has.
    For several classes in an image, which the paper has not, the log-likelihood is averaged over them. The 7-layer
    network that the paper uses on smallNORB is not here: the residual features stand in its place.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: Literal["self"] = "self",
        types: Count = 32,
        pose_dim: Count = 16,
        capsule_layers: Count = 1,
        routing_bias: bool = True,
        widths: Counts = (16, 32, 64),
        blocks: Count = 3,
    ):
        super().__init__()
        self.features = ResidualFeatures("self_routing_capsnet", image_shape, widths, blocks)
        self.primary_caps = PrimarySelfRoutingCaps(widths[-1], types, pose_dim)
        grid = self.features.grid
        layers: list[ConvSelfRoutingCaps] = []
        for layer in range(capsule_layers - 1):
            stride = 2 if layer == 0 else 1
            layers.append(ConvSelfRoutingCaps(grid, types, pose_dim, types, pose_dim, stride=stride, bias=routing_bias))
            grid = layers[-1].out_grid
        if min(grid) < 2:
            needed = 2 ** len(widths) + 1
            height, width = image_shape[1:]
            raise ValueError(
                f"self_routing_capsnet needs images of at least {needed}x{needed} for convolutional capsules, "
                f"not {height}x{width}"
            )
        self.conv_caps = nn.ModuleList(layers)
        self.class_caps = ClassSelfRoutingCaps(grid[0] * grid[1] * types, pose_dim, num_classes, routing_bias)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K] (log class activations), couplings [B, I, K]; no poses of classes."""
        features = self.features(images)  # [B, 64, 8, 8]
        poses, activations = self.primary_caps(features)  # [B, 8, 8, 32, 16], [B, 8, 8, 32]
        for layer in self.conv_caps:
            poses, activations, _ = layer(poses, activations)  # [B, 4, 4, 32, 16], [B, 4, 4, 32]
        activations, couplings = self.class_caps(poses, activations)  # [B, K], [B, I, K]
        return Output((activations + EPSILON).log(), couplings=couplings)

    def loss(self, output: Output, targets: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Negative log-likelihood of the class, or the mean over the classes where an image has several."""
        likelihoods = output.scores.gather(1, labels.reshape(len(labels), -1))  # [B, S]
        return {"negative_log_likelihood": -likelihoods.mean()}
