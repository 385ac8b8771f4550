"""Capsules whose poses are rotations of the plane: Lenssen 2018, *Group Equivariant Capsule Networks*.

A pose is a unit vector (cos, sin), the group SO(2). Coordinates are x to the right and y down. A capsule layer keeps
poses [B, I, rows, columns, 2] and activations [B, I, rows, columns]; features [B, C, rows, columns] are numbers that do
not turn with the image. Turning an image by a quarter turns all maps, and every pose by the same quarter; activations
and features move and stay as they are.

"Authors' code" is janericlenssen/group_equivariant_capsules_pytorch.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

SIDE = 5  # of the grid of control points of a kernel
FLOOR = 1e-4  # gradients of the image that are shorter are rounding, whose direction means nothing
MEAN_SQUARE_SHARES = 4 / 9  # sum of the squares of four shares, on average over where a kernel is read
ANGLE_WIDTH = 32

Features = Float[Tensor, "batch channels rows columns"]
Poses = Float[Tensor, "batch capsules rows columns 2"]
Activations = Float[Tensor, "batch capsules rows columns"]


def unit(vectors: Float[Tensor, "*shape 2"]) -> Float[Tensor, "*shape 2"]:
    """Return vectors with length one; zero stays zero, with a finite gradient."""
    return vectors / (vectors.square().sum(dim=-1, keepdim=True) + 1e-12).sqrt()


def turned(
    vectors: Float[Tensor, "*shape 2"], by: Float[Tensor, "*shape_of_by 2"]
) -> Float[Tensor, "*shape_of_both 2"]:
    """Turn vectors by rotations (cos, sin)."""
    x, y = vectors.unbind(-1)
    return _turned(x, y, by)


def _turned(x: Tensor | int, y: Tensor | int, by: Tensor) -> Tensor:
    cos, sin = by.unbind(-1)
    return torch.stack([cos * x - sin * y, sin * x + cos * y], dim=-1)


def inverse(poses: Float[Tensor, "*shape 2"]) -> Float[Tensor, "*shape 2"]:
    """Return the rotations back."""
    cos, sin = poses.unbind(-1)
    return torch.stack([cos, -sin], dim=-1)


def image_gradients(images: Features) -> tuple[Poses, Activations]:
    """Images [B, C, H, W] -> direction [B, 1, H, W, 2] and length [B, 1, H, W] of the gradient of their channels' mean.

    By Sobel's filters, with zeros around the image. Where the gradient is shorter than 1e-4, both are zero.
    """
    steps = torch.arange(-1.0, 2.0, device=images.device, dtype=images.dtype)  # made there: a GPU need not wait
    across = (2 - steps.abs()).unsqueeze(1) * steps  # 1, 2, 1 down, and -1, 0, 1 to the right
    filters = torch.stack([across, across.T]).unsqueeze(1)  # [2, 1, 3, 3]
    found = F.conv2d(images.mean(dim=1, keepdim=True), filters, padding=1)  # [B, 2, H, W]
    gradients = found.permute(0, 2, 3, 1).unsqueeze(1)  # [B, 1, H, W, 2]
    lengths = (gradients.square().sum(dim=-1) + 1e-12).sqrt()
    there = lengths > FLOOR
    return unit(gradients) * there.unsqueeze(-1), lengths * there


class PosedConv(nn.Module):
    """A 3x3 convolution whose kernel is turned by the pose at each position, one output channel for each capsule.

    The kernel is a linear B-spline over 5x5 control points (`weight` [I, 25, C]), which reach just as far as the corner
    of a 3x3 window that is turned by 45 degrees. Poses say where the kernel is read; as in the authors' code, no
    gradient goes through them.
    """

    def __init__(self, in_channels: int, capsules: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(capsules, SIDE**2, in_channels))
        bound = math.sqrt(6 / (MEAN_SQUARE_SHARES * 9 * in_channels))  # He et al. 2015
        nn.init.uniform_(self.weight, -bound, bound)
        self.bias = nn.Parameter(torch.zeros(capsules))

    def forward(
        self, features: Features, poses: Float[Tensor, "batch _ rows columns 2"]
    ) -> Float[Tensor, "batch capsules rows columns"]:
        """Features [B, C, H, W], poses [B, I, H, W, 2], or [B, 1, ...] of one for all capsules -> [B, I, H, W]."""
        rows, columns = features.shape[2:]
        shared = poses.shape[1] == 1  # then the window is read before the kernel is applied, which costs least
        weight = self.weight.flatten(1) if shared else self.weight.flatten(0, 1)  # [I, 25 C] or [25 I, C]
        maps = features.unsqueeze(2)  # [B, C, 1, H, W]
        if not shared:  # each control point at every position
            maps = F.conv2d(features, weight[:, :, None, None]).unflatten(1, (-1, SIDE**2))  # [B, I, 25, H, W]
        maps, frames, found = F.pad(maps, (1, 1, 1, 1)), inverse(poses.detach()), None
        for down, right in itertools.product((-1, 0, 1), repeat=2):
            seen = _turned(right, down, frames)  # the offset in the capsule's frame
            read = maps[..., 1 + down : 1 + down + rows, 1 + right : 1 + right + columns] * _shares(seen)
            part = read if shared else read.sum(dim=2)  # [B, C, 25, H, W] or [B, I, H, W]
            found = part if found is None else found + part
        assert found is not None
        if shared:
            return F.conv2d(found.transpose(1, 2).flatten(1, 2), weight[:, :, None, None], self.bias)
        return found + self.bias[:, None, None]


def _shares(offsets: Tensor) -> Tensor:
    """Offsets [B, I, H, W, 2] of pixels -> shares [B, I, 25, H, W] of the control points, by linear interpolation."""
    places = SIDE // 2 + math.sqrt(2) * offsets.unsqueeze(2)  # [B, I, 1, H, W, 2]
    points = torch.arange(SIDE, device=offsets.device, dtype=offsets.dtype)[:, None, None, None]
    across, down = (1 - (places - points).abs()).clamp(min=0).unbind(-1)  # [B, I, 5, H, W]
    return (down.unsqueeze(3) * across.unsqueeze(2)).flatten(2, 3)


class PosedPooling(nn.Module):
    """Capsules of each window vote for the poses of its parents, by agreement of poses (the paper's Algorithm 1).

    Child i at cell n votes with its pose turned by an angle that depends on where n lies as seen from the mean pose of
    the capsules i of the window, and is otherwise learned for each pair of child and parent. A parent's pose is the
    weighted mean of its votes, on the circle; weights are the children's activations, then, in `iterations`, those
    times how close each vote is to the mean, (1 + cosine) / 2. Its activation is the logistic function of how close
    they are on average, scaled and shifted by learned numbers. Features pass a maximum over the window, then a linear
    map.
    """

    def __init__(self, window: tuple[int, int], children: int, parents: int, channels: int, iterations: int = 1):
        super().__init__()
        self.window, self.parents, self.iterations = window, parents, iterations
        self.angles = nn.Sequential(
            nn.Linear(2 * children, ANGLE_WIDTH, bias=False), nn.Linear(ANGLE_WIDTH, parents * children, bias=False)
        )
        self.scale, self.shift = nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))
        self.linear = nn.Linear(channels, parents)
        nn.init.kaiming_uniform_(self.linear.weight, nonlinearity="linear")
        nn.init.zeros_(self.linear.bias)

    def features(self, features: Features) -> Float[Tensor, "batch parents new_rows new_columns"]:
        """Features [B, C, H, W] -> [B, J, H', W']."""
        highest = F.max_pool2d(features, self.window).movedim(1, 3)
        found: Tensor = self.linear(highest)
        return found.movedim(3, 1)

    def forward(
        self, poses: Poses, activations: Activations
    ) -> tuple[
        Float[Tensor, "batch parents new_rows new_columns 2"], Float[Tensor, "batch parents new_rows new_columns"]
    ]:
        """Poses [B, I, H, W, 2], activations [B, I, H, W] -> the same of the parents, [B, J, H', W', (2)]."""
        inputs = self._windows(poses)  # [B, H', W', N, I, 2], of N cells
        active = self._windows(activations).flatten(3).unsqueeze(3)  # a [B, H', W', 1, N I]
        frames = inverse(unit(inputs.sum(dim=3, keepdim=True)))  # [B, H', W', 1, I, 2]
        cells = turned(self._cells(poses).unsqueeze(1), frames)  # [B, H', W', N, I, 2]
        angles = self.angles(cells.detach().flatten(4)).unflatten(4, (self.parents, -1))  # [B, H', W', N, J, I]
        angles = angles.transpose(3, 4)  # [B, H', W', J, N, I]
        votes = turned(inputs.unsqueeze(3), torch.stack([angles.cos(), angles.sin()], dim=-1)).flatten(4, 5)
        means, weights = self._mean(votes, active), active
        for _ in range(self.iterations):
            weights = _closeness(means, votes) * active  # [B, H', W', J, N I]
            means = self._mean(votes, weights)
        there = (active > 0).sum(dim=4)  # [B, H', W', 1]
        agreement = (_closeness(means, votes) * weights).sum(dim=4) / there.clamp(min=1)
        found = (self.scale * agreement + self.shift - 1).sigmoid() * (there > 0)
        return means.movedim(3, 1), found.movedim(3, 1)

    @staticmethod
    def _mean(votes: Tensor, weights: Tensor) -> Tensor:
        return unit((votes * weights.unsqueeze(5)).sum(dim=4))

    def _windows(self, values: Tensor) -> Tensor:
        """Values [B, I, H, W, ...] -> those of each window, [B, H', W', N, I, ...]."""
        rows, columns = self.window
        cut: Tensor = values.unflatten(2, (-1, rows)).unflatten(4, (-1, columns))  # [B, I, H', rows, W', columns, ...]
        return cut.permute(0, 2, 4, 3, 5, 1, *range(6, cut.ndim)).flatten(3, 4)

    def _cells(self, like: Tensor) -> Tensor:
        """Return where the cells of a window lie from its middle, [N, 2]: at -1 and 1, or -1, 0 and 1, and so on."""
        down, right = (
            (2 * torch.arange(side, device=like.device) - (side - 1)) / (1 + side % 2) for side in self.window
        )
        cells: Tensor = torch.stack(torch.meshgrid(right, down, indexing="xy"), dim=-1).flatten(0, 1)
        return cells.to(like.dtype)


def _closeness(means: Tensor, votes: Tensor) -> Tensor:
    """Return (1 + cosine) / 2 of votes [..., J, N I, 2] and their means [..., J, 2]."""
    return (1 + (votes * means.unsqueeze(4)).sum(dim=5)) / 2
