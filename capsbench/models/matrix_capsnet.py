"""Matrix capsules of Hinton, Sabour, Frosst 2018, *Matrix Capsules with EM Routing* (H18), section 4.

A capsule has a pose of 16 numbers and an activation in (0, 1). The pose is a 4x4 matrix M whose vote is M W with W a
4x4 matrix, or, in two rows of H18, Table 1, a vector whose vote is a 16x16 matrix times it: 16 and 256 parameters for
each pair of a child and a parent. Either is kept as 16 numbers, a matrix row by row.

Layers pass on poses [B, rows, columns, T, 16] and activations [B, rows, columns, T], T the number of types. Where the
paper gives no number (how weights and betas start, the bias of the primary activation), it is that of the authors'
code (google-research, capsule_em).
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from capsbench.losses import Labels, Scalar
from capsbench.models.output import Images, Network, Output, Targets, class_loss
from capsbench.registry import LOSSES, MODELS, ROUTINGS, Chosen, Count, Counts, Said
from capsbench.routing.contract import Routed, RoutedByLogits
from capsbench.routing.em import AUTHORS, Betas, EMSettings, conv_em_routing, route_by_em
from capsbench.routing.em import Competition as EMCompetition
from capsbench.routing.kernels.windows import Windows
from capsbench.routing.matrix_em import matrix_em_routing, takes_kernels

Features = Float[Tensor, "batch channels rows columns"]
Poses = Float[Tensor, "batch rows columns types 16"]
Activations = Float[Tensor, "batch rows columns types"]

SIDE = 4
POSE_SIZE = SIDE * SIDE

# How the betas of the convolutional capsules start, and the unit of beta_a, as a logit (the authors' code).
CONV_BETA, CONV_LOGIT_UNIT = 0.5, 50.0
AUTHORS_CLASS_LAYER = AUTHORS.of_class_layer()

# How many numbers of votes are made at once. On a CPU 16 MiB: memory that the process keeps, where larger pieces come
# fresh from the system each time, which costs more than making the votes twice. On a GPU 2 GiB.
CPU_VOTES = 2**22
GPU_VOTES = 2**29

Pose = Literal["matrix", "vector"]
Competition = Literal["positions", "parents", "positions_as_coded"]


@MODELS.register("matrix_capsnet", title="matrix capsules", published_on=((2, 32, 32), 5))
class MatrixCapsNet(Network):
    """Conv 5x5 stride 2 ReLU -> primary capsules -> convolutional capsules 3x3 -> class capsules, all EM-routed.

    The first convolutional capsules have stride 2, the others 1; nothing is padded: 32 -> 14 -> 6 -> 4. On 2x32x32
    and 5 classes the defaults have 316,650 parameters, and 64 channels with 8 primary and (16, 16) convolutional
    types 68,618. That is: a bias in the first convolution, none in the primary capsules, two betas per type (shared
    over positions) in each routed layer, no batch norm.

    From the authors' code, where the paper is silent: the settings of EM routing (see capsbench.routing.em) and how
    weights and betas start.

    competition, of the convolutional capsules: what shares a child. "parents": all parents that it feeds, of every
    type at every position (H18, Procedure 1). "positions": those of each type alone (the authors' code), so that each
    type gets the whole child, and the mass of a parent is as many times larger as there are types. The published
    numbers rest on it. "positions_as_coded": the same at stride 1; at stride 2 their sums run as if it were 1, over
    entries of other children.

    Under "parents" a parent receives as many times less mass as there are types, and what acts is inverse temperature
    times mass; no factor makes up for it, `routing: {inverse_temperature: ...}` does.

    The scores are the logits of the class capsules, which the losses take through the logistic function. H18's row
    "cross-entropy" is `loss: {name: cross_entropy, of: activations}`, the softmax over the activations themselves, as
    in the authors' code.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        routing: Annotated[Chosen, ROUTINGS.only("em")] = ROUTINGS.choose("em"),
        competition: Annotated[
            Competition,
            Said(
                "parents",
                "positions; at stride 2 positions_as_coded, whose sums run over entries of other children",
                "H18, Procedure 1",
            ),
        ] = "positions",
        loss: Annotated[Chosen, LOSSES.only("spread", "margin", "cross_entropy")] = LOSSES.choose("spread"),
        pose: Pose = "matrix",
        coordinate_addition: Annotated[
            bool,
            Said(
                "yes, to two elements of the right-hand column",
                "yes, to elements 0 and 1 of 16",
                "H18, 4.1; true adds to the paper's two",
            ),
        ] = True,
        conv_channels: Count = 32,
        primary_types: Count = 32,
        conv_types: Counts = (32, 32),
    ):
        super().__init__()
        channels, height, width = image_shape
        strides = [2, *[1] * (len(conv_types) - 1)]
        windows = [(5, 2), *((3, stride) for stride in strides)]
        needed = 1
        for kernel_size, stride in reversed(windows):
            needed = (needed - 1) * stride + kernel_size
        if min(height, width) < needed:
            raise ValueError(f"matrix_capsnet needs images of at least {needed}x{needed}, not {height}x{width}")
        self.loss_name, self.class_loss = loss.name, loss.build()
        settings = EMSettings(**routing.options)

        self.conv = nn.Conv2d(channels, conv_channels, kernel_size=5, stride=2)
        nn.init.trunc_normal_(self.conv.weight, std=0.05, a=-0.1, b=0.1)
        assert self.conv.bias is not None
        nn.init.constant_(self.conv.bias, 0.1)
        self.primary_caps = PrimaryMatrixCaps(conv_channels, primary_types)
        layers: list[ConvMatrixCaps] = []
        grid = ((height - 5) // 2 + 1, (width - 5) // 2 + 1)
        types = primary_types
        for out_types, stride in zip(conv_types, strides, strict=True):
            layers.append(ConvMatrixCaps(grid, types, out_types, 3, stride, pose, settings, competition))
            grid, types = layers[-1].out_grid, out_types
        self.conv_caps = nn.ModuleList(layers)
        centres = None
        if coordinate_addition:
            centres = (receptive_field_centres(height, windows), receptive_field_centres(width, windows))
        self.class_caps = ClassMatrixCaps(types, num_classes, pose, centres, settings.of_class_layer())

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores (logits) and activations [B, K], poses [B, K, 16], couplings [B, I, K]."""
        features = self.conv(images).relu()  # [B, 32, 14, 14]
        poses, activations = self.primary_caps(features)  # [B, 14, 14, 32, 16], [B, 14, 14, 32]
        for layer in self.conv_caps:
            poses, activations = layer(poses, activations)  # [B, 6, 6, 32, 16], then [B, 4, 4, 32, 16]
        routed = self.class_caps(poses, activations)
        assert routed.logits is not None
        return Output(routed.logits, routed.poses, couplings=routed.couplings, activations=routed.activations)

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return one part, named like the loss."""
        return {self.loss_name: class_loss(self.class_loss, output, labels)}


class PrimaryMatrixCaps(nn.Module):
    """Poses and activations from features by a 1x1 convolution without bias: in_channels x 17 x types parameters.

    The activation is sigmoid(x - 1). The first 16 x types channels are poses, the last are activations; the authors'
    code cuts the channels otherwise than it initialises them, so that nearly all start at 0.5, as all do here.
    """

    def __init__(self, in_channels: int, types: int):
        super().__init__()
        self.types = types
        self.conv = nn.Conv2d(in_channels, (POSE_SIZE + 1) * types, kernel_size=1, bias=False)
        nn.init.trunc_normal_(self.conv.weight, std=0.5, a=-1.0, b=1.0)

    def forward(self, features: Features) -> tuple[Poses, Activations]:
        """Features [B, C, rows, columns] -> poses [B, rows, columns, T, 16], activations [B, rows, columns, T]."""
        maps = self.conv(features).permute(0, 2, 3, 1)  # [B, rows, columns, 17 T]
        poses, logits = maps.split((POSE_SIZE * self.types, self.types), dim=3)
        return poses.unflatten(3, (self.types, POSE_SIZE)), (logits - 1).sigmoid()


class ConvMatrixCaps(nn.Module):
    """Capsules on a grid, each fed by the K x K positions of its receptive field, under EM routing; no padding.

    K*K x in_types x out_types transforms, and 2 betas for each of the `out_types`.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        in_types: int,
        out_types: int,
        kernel_size: int = 3,
        stride: int = 1,
        pose: Pose = "matrix",
        settings: EMSettings = AUTHORS,
        competition: Competition = "positions",
    ):
        super().__init__()
        self.settings, self.competition = settings, competition
        self.transforms = _transforms(kernel_size**2 * in_types, out_types, pose, std=0.3)
        self.betas = Betas(out_types, settings.inverse_temperature, CONV_BETA, CONV_BETA, CONV_LOGIT_UNIT)
        self.out_grid = ((grid[0] - kernel_size) // stride + 1, (grid[1] - kernel_size) // stride + 1)
        self.child_positions: Tensor
        self.register_buffer("child_positions", _window_positions(grid, kernel_size, stride), persistent=False)
        rivals = None
        if competition == "positions_as_coded":
            grid_at_stride_1 = (self.out_grid[0] + kernel_size - 1, self.out_grid[1] + kernel_size - 1)
            rivals = _window_positions(grid_at_stride_1, kernel_size, 1)
        self.rivals: Tensor | None
        self.register_buffer("rivals", rivals, persistent=False)
        self._windows: Windows | None = None  # of the kernels, on the device that they last ran on

    def forward(
        self, poses: Poses, activations: Activations
    ) -> tuple[
        Float[Tensor, "batch new_rows new_columns new_types 16"], Float[Tensor, "batch new_rows new_columns new_types"]
    ]:
        """Poses [B, rows, columns, T, 16], activations [B, rows, columns, T] -> the same of a smaller grid.

        On a GPU by kernels that store no votes. Otherwise, where the votes of the batch are large, a few samples at a
        time, whose votes are made again on the way back.
        """
        poses, activations = poses.flatten(1, 2), activations.flatten(1, 2)  # [B, C, T, 16], [B, C, T]
        if takes_kernels(poses, self.transforms):
            windows = self._tables(poses)
            means, logits, _ = matrix_em_routing(
                poses, activations, self.transforms, windows, self.betas(), self.settings
            )
            return means.unflatten(1, self.out_grid), logits.sigmoid().unflatten(1, self.out_grid)
        maps, (beta_u, beta_a) = _pose_maps(self.transforms), self.betas()
        parts = list(self._parts(poses, activations))
        if len(parts) == 1 or not torch.is_grad_enabled():
            routed = [self._route(*part, maps, beta_u, beta_a) for part in parts]
        else:
            routed = [
                checkpoint(self._route, *part, maps, beta_u, beta_a, use_reentrant=False, preserve_rng_state=False)
                for part in parts
            ]
        means, activations = (torch.cat(tensors) for tensors in zip(*routed, strict=True))
        return means.unflatten(1, self.out_grid), activations.unflatten(1, self.out_grid)

    def _tables(self, poses: Tensor) -> Windows:
        if self._windows is None or self._windows.seen.device != poses.device:
            over_types, cells = self.competition == "parents", poses.shape[1]
            windows = Windows.of(self.child_positions, cells, over_types, self.rivals)
            self._windows = windows.to(poses.device)
        return self._windows

    def _route(
        self, poses: Tensor, activations: Tensor, maps: Tensor, beta_u: Tensor, beta_a: Tensor
    ) -> tuple[Tensor, Tensor]:
        gathered = poses[:, self.child_positions].flatten(2, 3)  # [B, P, N, 16]
        votes = _votes(gathered, maps)  # [B, P, N, J, 16]
        competition: EMCompetition = "parents" if self.competition == "parents" else "positions"
        means, activations, _ = conv_em_routing(
            votes, activations, self.child_positions, beta_u, beta_a, self.settings, competition, self.rivals
        )  # [B, P, J, 16], [B, P, J]
        return means, activations

    def _parts(self, poses: Tensor, activations: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        children, parents = self.transforms.shape[:2]
        elements = len(self.child_positions) * children * parents * POSE_SIZE  # the votes of a sample
        samples = max(1, (GPU_VOTES if poses.is_cuda else CPU_VOTES) // elements)
        yield from zip(poses.split(samples), activations.split(samples), strict=True)


class ClassMatrixCaps(nn.Module):
    """One capsule a class, fed by all capsules below under EM routing; transforms shared over positions.

    in_types x classes transforms, and 2 betas for each class. With `centres` (rows [rows], columns [columns], as
    `receptive_field_centres` gives them) each vote gets the row and the column of its child added: coordinate
    addition. H18 adds them to the first two elements of the right-hand column of a matrix vote, numbers 3 and 7 of
    16 here; codes differ, the authors' own takes numbers 0 and 1, as is done here for a vector, which has no columns.
    """

    def __init__(
        self,
        in_types: int,
        classes: int,
        pose: Pose = "matrix",
        centres: tuple[Float[Tensor, " rows"], Float[Tensor, " columns"]] | None = None,
        settings: EMSettings = AUTHORS_CLASS_LAYER,
    ):
        super().__init__()
        self.settings = settings
        self.transforms = _transforms(in_types, classes, pose, std=0.01)
        self.betas = Betas.of_class_layer(classes, settings)
        self.coordinates: Tensor | None
        self.register_buffer("coordinates", None if centres is None else _coordinates(*centres, pose), persistent=False)
        self._windows: Windows | None = None  # of the kernels, on the device that they last ran on

    def forward(self, poses: Poses, activations: Activations) -> Routed:
        """As a ConvMatrixCaps gives them -> poses [B, K, 16], activations [B, K], assignments [B, I, K].

        Child number = position x types + type.
        """
        poses, activations = poses.flatten(1, 2), activations.flatten(1, 2)  # [B, C, T, 16], [B, C, T]
        if takes_kernels(poses, self.transforms):
            means, logits, assignments = matrix_em_routing(
                poses, activations, self.transforms, self._tables(poses), self.betas(), self.settings, self.coordinates,
                keep=True,
            )  # fmt: skip
            assert assignments is not None
            return RoutedByLogits(means.squeeze(1), logits.squeeze(1), assignments.squeeze(1))
        votes = _votes(poses, _pose_maps(self.transforms))  # [B, C, T, K, 16]
        if self.coordinates is not None:
            votes = votes + self.coordinates[:, None, None]  # [C, 1, 1, 16]
        beta_u, beta_a = self.betas()
        return route_by_em(votes.flatten(1, 2), activations.flatten(1), beta_u, beta_a, self.settings)

    def _tables(self, poses: Tensor) -> Windows:
        cells = poses.shape[1]
        if self._windows is None or self._windows.seen.device != poses.device or self._windows.cells != cells:
            self._windows = Windows.of(torch.arange(cells)[None], cells, over_types=True).to(poses.device)
        return self._windows


def receptive_field_centres(size: int, windows: list[tuple[int, int]]) -> Float[Tensor, " places"]:
    """Where each place's receptive field has its centre along one side, from the middle of the image.

    size: pixels of that side; windows: (kernel size, stride) of each layer, none padded -> [places], in units of
    100 pixels (as the authors' code; the paper says "scaled").
    """
    centres = torch.arange(size) - (size - 1) / 2
    for kernel_size, stride in windows:
        centres = centres.unfold(0, kernel_size, stride).mean(dim=1)
    return centres / 100


def _window_positions(grid: tuple[int, int], kernel_size: int, stride: int) -> Int[Tensor, "positions places"]:
    """The child position at each place of each parent position's kernel, [P, K*K]; grid: of the children."""
    numbers = torch.arange(grid[0] * grid[1]).view(grid)
    windows = numbers.unfold(0, kernel_size, stride).unfold(1, kernel_size, stride)
    return windows.flatten(2).flatten(0, 1)


def _coordinates(rows: Tensor, columns: Tensor, pose: Pose) -> Tensor:
    """Rows [rows], columns [columns] -> what is added to votes, zero but for two elements, [C, 16]."""
    coordinates = torch.zeros(len(rows), len(columns), POSE_SIZE)
    first, second = (SIDE - 1, 2 * SIDE - 1) if pose == "matrix" else (0, 1)
    coordinates[:, :, first] = rows[:, None]
    coordinates[:, :, second] = columns
    return coordinates.flatten(0, 1)


def _transforms(children: int, parents: int, pose: Pose, std: float) -> nn.Parameter:
    side = SIDE if pose == "matrix" else POSE_SIZE
    transforms = nn.Parameter(torch.empty(children, parents, side, side))
    nn.init.trunc_normal_(transforms, std=std, a=-2 * std, b=2 * std)
    return transforms


def _pose_maps(transforms: Tensor) -> Tensor:
    """Transforms [N, J, 4, 4] or [N, J, 16, 16] -> what takes a pose to its votes, [N, 16, J * 16].

    A 4x4 transform W is the map of M to M W, a 16x16 matrix with four copies of W along its diagonal.
    """
    side = transforms.shape[2]
    if side == POSE_SIZE:
        return transforms.permute(0, 3, 1, 2).flatten(2)
    copies = torch.eye(SIDE, dtype=transforms.dtype, device=transforms.device)
    maps = torch.einsum("rt,njqs->nrqjts", copies, transforms)  # element (r, q) of M to (t, s) of M W
    return maps.flatten(3).flatten(1, 2)


def _votes(poses: Tensor, maps: Tensor) -> Tensor:
    """Poses [B, P, N, 16], maps [N, 16, J * 16] -> votes [B, P, N, J, 16].

    One matrix product a child. A view of memory in the order [B, P, J, 16, N], in which routing goes through it.
    """
    votes = torch.bmm(poses.flatten(0, 1).transpose(0, 1), maps)  # [N, B * P, J * 16]
    votes = votes.unflatten(2, (-1, POSE_SIZE)).permute(1, 2, 3, 0).contiguous()  # [B * P, J, 16, N]
    split: Tensor = votes.unflatten(0, poses.shape[:2])
    return split.permute(0, 1, 4, 2, 3)
