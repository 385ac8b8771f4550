"""Part capsules of stacked capsule autoencoders: an encoder that finds parts, a decoder that draws them from templates.

Kosiorek, Sabour, Teh, Hinton 2019, section 2.2; "authors' code" is google-research/stacked_capsule_autoencoders.
A transform is a 2x3 matrix that takes coordinates of a part, of which its template covers [-1, 1] x [-1, 1], to those
of the image, likewise.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

Transforms = Float[Tensor, "*batch 2 3"]
Broadcast = Float[Tensor, "*#batch 2 3"]

TINY = 1e-8  # added to probabilities before the logarithm


def affine(raw: Float[Tensor, "*batch 6"]) -> Transforms:
    """Two scales, angle, shear and two translations, unbounded -> shear @ scales @ rotation, then the translation.

    Scales are in (0.01, 1.01); shear and translations are in (-1, 1); an angle of 1 is a full turn.
    """
    scale_x, scale_y, turns, shear, x, y = raw.unbind(-1)
    scale_x, scale_y = scale_x.sigmoid() + 0.01, scale_y.sigmoid() + 0.01
    shear, x, y = (5 * shear).tanh(), (5 * x).tanh(), (5 * y).tanh()
    cos, sin = (2 * math.pi * turns).cos(), (2 * math.pi * turns).sin()
    first = [scale_x * cos + shear * scale_y * sin, -scale_x * sin + shear * scale_y * cos, x]
    rows: Tensor = torch.stack([*first, scale_y * sin, scale_y * cos, y], dim=-1).unflatten(-1, (2, 3))
    return rows


def compose(outer: Broadcast, inner: Broadcast) -> Broadcast:
    """Return the transform that applies `inner`, then `outer`; the shapes before the last two are broadcast."""
    linear = outer[..., :2]
    return torch.cat([linear @ inner[..., :2], linear @ inner[..., 2:] + outer[..., 2:]], dim=-1)


def inverse(transforms: Transforms) -> Transforms:
    """Return the transforms that undo others."""
    (a, b, x), (c, d, y) = (row.unbind(-1) for row in transforms.unbind(-2))
    determinant = a * d - b * c
    a, b, c, d = d / determinant, -b / determinant, -c / determinant, a / determinant
    rows: Tensor = torch.stack([a, b, -(a * x + b * y), c, d, -(c * x + d * y)], dim=-1).unflatten(-1, (2, 3))
    return rows


class Parts(NamedTuple):
    """What is seen of M parts: poses [B, M, 2, 3], presences [B, M] in (0, 1), special features [B, M, f]."""

    poses: Float[Tensor, "batch parts 2 3"]
    presences: Float[Tensor, "batch parts"]
    features: Float[Tensor, "batch parts features"]


class PartEncoder(nn.Module):
    """Four 3x3 convolutions (VALID, strides 2, 2, 1, 1), then, for each part, attention over positions.

    A 1x1 convolution gives at each position, for each part, a pose, features and presence, and how much the position
    says of the part; the part is the mean of what positions say. In training, noise uniform in +-`noise` / 2 is added
    to the logits of presences, so that they move to 0 or 1.

    Deviation: parts start spread out over the image, two fifths of its side long, turned at random. In the authors'
    code all start alike in the centre, half as long as the image, and take long to part.
    """

    def __init__(self, channels: int, grid: tuple[int, int], width: int, parts: int, features: int, noise: float):
        super().__init__()
        self.parts, self.features, self.noise = parts, features, noise
        layers: list[nn.Module] = []
        for ins, stride in ((channels, 2), (width, 2), (width, 1), (width, 1)):
            layers += [nn.Conv2d(ins, width, kernel_size=3, stride=stride), nn.ReLU()]
        self.conv = nn.Sequential(*layers)
        self.bias = nn.Parameter(torch.zeros(width, *grid))
        self.size = 6 + features + 1
        self.heads = nn.Conv2d(width, parts * (self.size + 1), kernel_size=1)
        assert self.heads.bias is not None
        start = self.heads.bias.detach()[: parts * self.size].view(parts, self.size)
        nn.init.constant_(start[:, :2], -0.5)
        nn.init.uniform_(start[:, 2], -0.25, 0.25)
        nn.init.uniform_(start[:, 4:6], -0.1, 0.1)
        nn.init.ones_(start[:, -1])

    def forward(self, images: Float[Tensor, "batch channels rows columns"]) -> Parts:
        """Images [B, C, H, W] -> parts."""
        heads = self.heads(self.conv(images) + self.bias).flatten(2)  # [B, M * size + M, positions]
        values, attention = heads.split([self.parts * self.size, self.parts], dim=1)
        values = values.unflatten(1, (self.parts, self.size))  # [B, M, size, positions]
        seen = (values * attention.softmax(dim=2).unsqueeze(2)).sum(dim=3)  # [B, M, size]
        raw, features, logits = seen.split([6, self.features, 1], dim=2)
        logits = logits.squeeze(2)
        if self.training:
            logits = logits + self.noise * (torch.rand_like(logits) - 0.5)
        return Parts(affine(raw), logits.sigmoid(), features)


class Mixture(NamedTuple):
    """A normal mixture for each pixel: means [B, M + 1, C, P] and log-weights [B, M + 1, P], the background last."""

    means: Float[Tensor, "batch components channels pixels"]
    log_weights: Float[Tensor, "batch components pixels"]

    def mean(self) -> Float[Tensor, "batch channels pixels"]:
        """Return the mean of the mixture, [B, C, P]."""
        return (self.log_weights.exp().unsqueeze(2) * self.means).sum(dim=1)

    def log_likelihood(self, pixels: Float[Tensor, "batch channels pixels"], deviation: float) -> Float[Tensor, ""]:
        """Log-likelihood of a pixel [B, C, P] under components of one standard deviation: the mean over pixels.

        Without the constant that a normal density has.
        """
        squares = ((pixels.unsqueeze(1) - self.means) / deviation).square().sum(dim=2)  # [B, M + 1, P]
        return (self.log_weights - squares / 2).logsumexp(dim=1).mean()


class TemplateDecoder(nn.Module):
    """Draws parts: a template and a mask each, learned, moved by the pose, coloured by the special features.

    At each pixel the parts and a background compete by their masks' logits plus the logarithms of their presences.
    Templates and masks are stored divided by `gain`, so that Adam, whose steps do not depend on the size of a gradient,
    moves them `gain` times as fast as other parameters (1 in the authors' code).
    """

    coords: Tensor

    def __init__(self, image_shape: tuple[int, int, int], parts: int, template_size: int, features: int, gain: float):
        super().__init__()
        channels, rows, columns = image_shape
        self.gain = gain
        area = template_size**2 * channels
        start = torch.rand(max(parts, area), max(parts, area))
        if not start.is_meta:
            start = torch.linalg.qr(start)[0]
        start = start[:parts, :area]
        start = (start - start.min()) / (start.max() - start.min())
        self.templates = nn.Parameter(start.reshape(parts, channels, template_size, template_size) / gain)
        self.masks = nn.Parameter(torch.zeros(parts, 1, template_size, template_size))
        self.colour = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, channels), nn.Sigmoid())
        self.background = nn.Parameter(torch.zeros(channels, 1))
        self.background_mask = nn.Parameter(torch.zeros(1))
        y, x = torch.meshgrid(torch.linspace(-1, 1, rows), torch.linspace(-1, 1, columns), indexing="ij")
        self.register_buffer("coords", torch.stack([x, y, torch.ones_like(x)]).flatten(1), persistent=False)  # [3, P]

    def forward(self, parts: Parts, pixels: Int[Tensor, " pixels"] | None = None) -> Mixture:
        """Parts, and the numbers of the pixels to draw (row by row; all by default) -> their mixture."""
        coords = self.coords if pixels is None else self.coords[:, pixels]  # [3, P]
        samples, count = parts.presences.shape
        places = (inverse(parts.poses) @ coords).transpose(2, 3).flatten(0, 1).unsqueeze(1)  # [B * M, 1, P, 2]
        maps = torch.cat([(self.gain * self.templates).sigmoid(), self.gain * self.masks], dim=1)  # [M, C + 1, s, s]
        maps = maps.expand(samples, -1, -1, -1, -1).flatten(0, 1)
        drawn = F.grid_sample(maps, places, align_corners=True)  # [B * M, C + 1, 1, P], zero outside the template
        drawn = drawn.squeeze(2).unflatten(0, (samples, count))
        means = drawn[:, :, :-1] * self.colour(parts.features).unsqueeze(3)  # [B, M, C, P]
        logits = drawn[:, :, -1] + (parts.presences + TINY).log().unsqueeze(2)  # [B, M, P]
        background = self.background.sigmoid().expand(samples, 1, -1, coords.shape[1])
        last = F.softplus(self.background_mask).expand(samples, 1, coords.shape[1])
        weights = torch.cat([logits, last], dim=1).log_softmax(dim=1)
        return Mixture(torch.cat([means, background], dim=1), weights)
