"""Self-routing capsules of Hahn, Pyeon, Kim 2019, *Self-Routing Capsule Networks* (NeurIPS), its CIFAR-10 network.

A capsule has a pose of d numbers (16 in the authors' code; a vote is a full 16x16 matrix times it, no 4x4 one) and an
activation in (0, 1). Each child decides alone, by a linear network on its pose, where it goes: the equations and their
symbols are in capsbench.routing.self_routing. "Authors' code" is coder3000/SR-CapsNet.

Layers pass on poses [B, rows, columns, T, d] and activations [B, rows, columns, T], T the number of types.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.layers.residual import ResidualFeatures
from capsbench.losses import Labels, Scalar
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import MODELS, Count, Counts
from capsbench.routing.kernels.linear_votes import weighted_sum
from capsbench.routing.kernels.moments import EPSILON

Poses = Float[Tensor, "batch rows columns types dim"]
Activations = Float[Tensor, "batch rows columns types"]


@MODELS.register("self_routing_capsnet", title="self-routing CapsNet", published_on=((3, 32, 32), 10), routing="self")
class SelfRoutingCapsNet(Network):
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

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K] (log class activations), couplings [B, I, K]; no poses of classes."""
        features = self.features(images)  # [B, 64, 8, 8]
        poses, activations = self.primary_caps(features)  # [B, 8, 8, 32, 16], [B, 8, 8, 32]
        for layer in self.conv_caps:
            poses, activations, _ = layer(poses, activations)  # [B, 4, 4, 32, 16], [B, 4, 4, 32]
        activations, couplings = self.class_caps(poses, activations)  # [B, K], [B, I, K]
        return Output((activations + EPSILON).log(), couplings=couplings, activations=activations)

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Negative log-likelihood of the class, or the mean over the classes where an image has several."""
        likelihoods = output.scores.gather(1, labels.reshape(len(labels), -1))  # [B, S]
        return {"negative_log_likelihood": -likelihoods.mean()}


class PrimarySelfRoutingCaps(nn.Module):
    """Poses and activations from features, by a 3x3 convolution each (SAME, no bias) with batch norm.

    The activation is a sigmoid. Channel number = type x d + element of the pose.
    """

    def __init__(self, in_channels: int, types: int, dim: int):
        super().__init__()
        self.types, self.dim = types, dim
        self.pose_conv = nn.Conv2d(in_channels, types * dim, kernel_size=3, padding=1, bias=False)
        self.pose_norm = nn.BatchNorm2d(types * dim)
        self.activation_conv = nn.Conv2d(in_channels, types, kernel_size=3, padding=1, bias=False)
        self.activation_norm = nn.BatchNorm2d(types)
        for conv in (self.pose_conv, self.activation_conv):
            nn.init.kaiming_uniform_(conv.weight)

    def forward(self, features: Float[Tensor, "batch channels rows columns"]) -> tuple[Poses, Activations]:
        """Features [B, C, rows, columns] -> poses [B, rows, columns, T, d], activations [B, rows, columns, T]."""
        poses = self.pose_norm(self.pose_conv(features)).permute(0, 2, 3, 1)  # [B, rows, columns, T * d]
        activations = self.activation_norm(self.activation_conv(features)).sigmoid().permute(0, 2, 3, 1)
        return poses.unflatten(3, (self.types, self.dim)), activations


class ConvSelfRoutingCaps(nn.Module):
    """Capsules on a grid, each fed by the K x K positions of its receptive field, under self-routing.

    A child routes itself anew for each position that it feeds: its couplings sum to one over the types of a position,
    so that, unlike under EM routing, parents at different positions do not compete. Children outside the grid
    (`padding`) have activation zero and hence no influence.

    Parameters, with N = K*K x in_types children of a parent: `weight` [N, out_types, out_dim, in_dim] (W^pose), `route`
    [N, out_types, in_dim] (W^route) and, from the authors' code, `bias` [N, out_types] on the logits. As there, `route`
    and `bias` start at zero, hence uniform, and poses pass a batch norm. Votes are not stored (see linear_votes).
    """

    def __init__(
        self,
        grid: tuple[int, int],
        in_types: int,
        in_dim: int,
        out_types: int,
        out_dim: int,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int = 1,
        bias: bool = True,
    ):
        super().__init__()
        self.window = (kernel_size, stride, padding)
        rows, columns = ((side + 2 * padding - kernel_size) // stride + 1 for side in grid)
        self.out_grid = (rows, columns)
        children = kernel_size**2 * in_types
        self.weight = nn.Parameter(torch.empty(children, out_types, out_dim, in_dim))
        bound = math.sqrt(6 / (out_types * out_dim * in_dim))  # the authors' code; the batch norm takes its size away
        nn.init.uniform_(self.weight, -bound, bound)
        self.route = nn.Parameter(torch.zeros(children, out_types, in_dim))
        self.bias = nn.Parameter(torch.zeros(children, out_types)) if bias else None
        self.norm = nn.BatchNorm1d(out_types * out_dim)

    def forward(
        self, poses: Poses, activations: Activations
    ) -> tuple[
        Float[Tensor, "batch new_rows new_columns parents new_dim"],
        Float[Tensor, "batch new_rows new_columns parents"],
        Float[Tensor, "batch positions children parents"],
    ]:
        """Poses [B, rows, columns, T, d], activations [B, rows, columns, T] -> the same of the new grid, couplings.

        Couplings [B, P, N, J]: of P parent positions, of N children by place in the receptive field and type.
        """
        samples = len(poses)
        inputs = self._windows(poses)  # u [B * P, N, d]
        children = self._windows(activations.unsqueeze(4)).squeeze(2)  # a [B * P, N]
        couplings = _couplings(inputs, self.route, self.bias)  # c [N, J, B * P]
        weights = couplings * children.T.unsqueeze(1)  # c_ij a_i
        mass = weights.sum(dim=0)  # [J, B * P]
        parents = (mass / (children.sum(dim=1) + EPSILON)).T  # a [B * P, J]
        shares = weights / (mass + EPSILON)  # [N, J, B * P]

        maps = self.weight.permute(1, 2, 3, 0).flatten(2)  # W_j [J, D, d * N]
        means = weighted_sum(shares.permute(1, 2, 0).contiguous(), inputs.transpose(1, 2).contiguous(), maps)
        means = means.transpose(0, 1).flatten(1)  # u [B * P, J * D]
        shape = (samples, *self.out_grid, self.weight.shape[1])  # [B, rows', columns', J]
        couplings = couplings.permute(2, 0, 1).unflatten(0, (samples, -1))
        return self.norm(means).view(*shape, -1), parents.reshape(shape), couplings

    def _windows(self, values: Tensor) -> Tensor:
        """Values [B, rows, columns, T, d] -> those of each receptive field, [B * P, K * K * T, d]."""
        kernel_size, stride, padding = self.window
        values = F.pad(values, (0, 0, 0, 0, padding, padding, padding, padding))
        windows = values.unfold(1, kernel_size, stride).unfold(2, kernel_size, stride)  # [B, r', c', T, d, K, K]
        return windows.permute(0, 1, 2, 5, 6, 3, 4).flatten(3, 5).flatten(0, 2)


class ClassSelfRoutingCaps(nn.Module):
    """One capsule a class, fed by all capsules below under self-routing: activations alone, poses are not needed.

    `route` [I, K, d] and, from the authors' code, `bias` [I, K], both zero at the start. Child number = position x
    types + type: transforms are not shared over positions.
    """

    def __init__(self, in_capsules: int, in_dim: int, classes: int, bias: bool = True):
        super().__init__()
        self.route = nn.Parameter(torch.zeros(in_capsules, classes, in_dim))
        self.bias = nn.Parameter(torch.zeros(in_capsules, classes)) if bias else None

    def forward(
        self, poses: Poses, activations: Activations
    ) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch children classes"]]:
        """As a ConvSelfRoutingCaps gives them -> activations [B, K] that sum to one, couplings [B, I, K]."""
        children = activations.flatten(1)  # a [B, I]
        couplings = _couplings(poses.flatten(1, 3), self.route, self.bias)  # c [I, K, B]
        mass = (couplings * children.T.unsqueeze(1)).sum(dim=0)  # [K, B]
        return (mass / (children.sum(dim=1) + EPSILON)).T, couplings.permute(2, 0, 1)


def _couplings(inputs: Tensor, route: Tensor, bias: Tensor | None) -> Tensor:
    """c_ij = softmax(W^route_i u_i + b_i)_j: inputs [B, I, d], route [I, J, d], bias [I, J] -> couplings [I, J, B].

    The batch lies last in memory, along which a softmax over few parents is ten times as fast as along the parents.
    """
    logits = torch.bmm(route, inputs.permute(1, 2, 0))  # [I, J, B]
    return (logits if bias is None else logits + bias.unsqueeze(2)).softmax(dim=1)
