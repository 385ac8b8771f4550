"""Augmentation of whole batches, on the device, drawn for each image on its own.

Images float [B, C, H, W] in [0, 1]; draws come from a CPU generator, so that every device sees the same ones.
"""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor


def shift(images: Tensor, pixels: int, generator: Generator) -> Tensor:
    """Move each image by whole pixels, up to `pixels` on each axis, zeros coming in (S17: 2)."""
    batch, _, height, width = images.shape
    offsets = torch.randint(0, 2 * pixels + 1, (2, batch, 1), generator=generator).to(images.device)
    padded = F.pad(images, (pixels, pixels, pixels, pixels))
    rows = offsets[0] + torch.arange(height, device=images.device)  # [B, H]
    columns = offsets[1] + torch.arange(width, device=images.device)  # [B, W]
    sample = torch.arange(batch, device=images.device)
    moved = padded[sample[:, None, None], :, rows[:, :, None], columns[:, None, :]]  # [B, H, W, C]
    return moved.permute(0, 3, 1, 2).contiguous()


def rotate_and_scale(images: Tensor, degrees: float, scale: float, generator: Generator) -> Tensor:
    """Turn each image by up to `degrees` either way and size it by 1 - scale to 1 + scale, bilinear, zeros come in."""
    angle_draw, scale_draw = torch.rand(2, len(images), generator=generator).mul(2).sub(1).to(images.device)
    angle = torch.deg2rad(angle_draw * degrees)
    factor = 1 + scale_draw * scale
    cos, sin = angle.cos() / factor, angle.sin() / factor
    zero = torch.zeros_like(cos)
    matrix = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)  # [B, 2, 3]
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def cutout(images: Tensor, side: int, generator: Generator) -> Tensor:
    """Set one square of side x side pixels to zero in each image, its centre anywhere in the image."""
    batch, _, height, width = images.shape
    draws = torch.rand(2, batch, 1, generator=generator).to(images.device)
    top = (draws[0] * height).floor() - side // 2
    left = (draws[1] * width).floor() - side // 2
    row = torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device)
    in_rows = (row >= top) & (row < top + side)  # [B, H]
    in_columns = (column >= left) & (column < left + side)  # [B, W]
    hole = in_rows[:, None, :, None] & in_columns[:, None, None, :]  # [B, 1, H, W]
    return images.masked_fill(hole, 0.0)
