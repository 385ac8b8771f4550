"""Augmentation of whole batches, on the device, drawn for each image on its own.

Images float [B, C, H, W] in [0, 1]; draws come from a CPU generator, so that every device sees the same ones.
"""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from capsbench.config import Augmentation


def augment(images: Tensor, augmentation: Augmentation, generator: Generator) -> Tensor:
    """Apply what moves, hides or mirrors pixels, in this order: flip, rotation and scale, shift, cutout."""
    if augmentation.flip:
        images = flip(images, generator)
    if augmentation.rotation or augmentation.scale:
        images = rotate_and_scale(images, augmentation.rotation, augmentation.scale, generator)
    if augmentation.shift:
        images = shift(images, augmentation.shift, generator)
    if augmentation.cutout:
        images = cutout(images, augmentation.cutout, generator)
    return images


def shift(images: Tensor, pixels: int, generator: Generator) -> Tensor:
    """Move each image by whole pixels, up to `pixels` on each axis, zeros coming in (S17: 2)."""
    batch, _, height, width = images.shape
    offsets = torch.randint(0, 2 * pixels + 1, (2, batch), generator=generator).to(images.device)
    return windows(images, pixels, height, width)[torch.arange(batch, device=images.device), :, *offsets]


def windows(images: Tensor, padding: int, height: int, width: int) -> Tensor:
    """View all height x width parts of images with a frame of zeros: [N, C, H, W] -> [N, C, rows, columns, h, w].

    windows(...)[image, :, row, column] with indices [B] gathers the parts [B, C, h, w], each from its own place.
    """
    padded = F.pad(images, (padding, padding, padding, padding)) if padding else images
    return padded.unfold(2, height, 1).unfold(3, width, 1)


def flip(images: Tensor, generator: Generator) -> Tensor:
    """Mirror every second image or so, left to right."""
    mirrored = torch.rand(len(images), 1, 1, 1, generator=generator).to(images.device) < 0.5
    return torch.where(mirrored, images.flip(3), images)


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


def brightness_and_contrast(images: Tensor, brightness: float, contrast: float, generator: Generator) -> Tensor:
    """Add up to `brightness` either way, then spread each channel about its mean by 1 - contrast to 1 + contrast.

    Nothing is clipped, as in H18's authors' code. Standardisation afterwards undoes the brightness altogether, and
    the contrast but for what the channels' means differ, and where it leaves a std under the floor of `standardise`.
    """
    draws = torch.rand(2, len(images), 1, 1, 1, generator=generator).mul(2).sub(1).to(images.device)
    images = images + brightness * draws[0]
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + (images - mean) * (1 + contrast * draws[1])


def standardise(images: Tensor) -> Tensor:
    """Bring each image, all channels together, to mean 0 and std 1: [B, C, H, W].

    The std counts as no less than 1 / sqrt(values) of the scale 0..255, as in H18's authors' code, so that an even
    image stays finite.
    """
    std, mean = torch.std_mean(images, dim=(1, 2, 3), correction=0, keepdim=True)
    return (images - mean) / std.clamp_min(images[0].numel() ** -0.5 / 255)
