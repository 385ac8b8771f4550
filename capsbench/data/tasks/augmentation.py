"""Augmentation of whole batches, on the device, drawn for each image separately.

Images are float [B, C, H, W] in [0, 1]. Draws come from a generator on the CPU, so that every device sees the same.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from capsbench.study import Augmentation

Images = Float[Tensor, "batch channels height width"]


def augment(images: Images, augmentation: Augmentation, rng: Generator) -> Images:
    """Apply what moves, hides or mirrors pixels, in this order: flip, rotation and scale, shift, cutout."""
    if augmentation.flip:
        images = flip(images, rng)
    if augmentation.rotation or augmentation.scale:
        images = rotate_and_scale(images, augmentation.rotation, augmentation.scale, rng)
    if augmentation.shift:
        images = shift(images, augmentation.shift, rng)
    if augmentation.cutout:
        images = cutout(images, augmentation.cutout, rng)
    return images


def shift(images: Images, pixels: int, rng: Generator) -> Images:
    """Move each image by whole pixels, up to `pixels` along each axis, and fill with zeros (S17: 2)."""
    batch, _, height, width = images.shape
    offsets = torch.randint(0, 2 * pixels + 1, (2, batch), generator=rng).to(images.device)
    return windows(images, pixels, height, width)[torch.arange(batch, device=images.device), :, *offsets]


def windows(images: Tensor, padding: int, height: int, width: int) -> Tensor:
    """View all height x width parts of images with a frame of zeros: [N, C, H, W] -> [N, C, rows, columns, h, w].

    windows(...)[image, :, row, column] with indices [B] gathers the parts [B, C, h, w], each from its own place.
    """
    padded = F.pad(images, (padding, padding, padding, padding)) if padding else images
    return padded.unfold(2, height, 1).unfold(3, width, 1)


def flip(images: Images, rng: Generator) -> Images:
    """Mirror each image left to right with probability 1/2."""
    mirrored = torch.rand(len(images), 1, 1, 1, generator=rng).to(images.device) < 0.5
    return torch.where(mirrored, images.flip(3), images)


def rotate_and_scale(images: Images, degrees: float, scale: float, rng: Generator) -> Images:
    """Rotate each image by up to `degrees` either way and scale it by a factor within 1 ± scale (bilinear)."""
    angle_draw, scale_draw = torch.rand(2, len(images), generator=rng).mul(2).sub(1).to(images.device)
    angle = torch.deg2rad(angle_draw * degrees)
    factor = 1 + scale_draw * scale
    cos, sin = angle.cos() / factor, angle.sin() / factor
    zero = torch.zeros_like(cos)
    matrix = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)  # [B, 2, 3]
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def cutout(images: Images, side: int, rng: Generator) -> Images:
    """Set one square of side x side pixels in each image to zero; its centre is anywhere in the image."""
    batch, _, height, width = images.shape
    draws = torch.rand(2, batch, 1, generator=rng).to(images.device)
    top = (draws[0] * height).floor() - side // 2
    left = (draws[1] * width).floor() - side // 2
    row = torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device)
    in_rows = (row >= top) & (row < top + side)  # [B, H]
    in_columns = (column >= left) & (column < left + side)  # [B, W]
    hole = in_rows[:, None, :, None] & in_columns[:, None, None, :]  # [B, 1, H, W]
    return images.masked_fill(hole, 0.0)


def brightness_and_contrast(images: Images, brightness: float, contrast: float, rng: Generator) -> Images:
    """Add up to `brightness` either way, then stretch each channel about its mean by 1 - contrast to 1 + contrast.

    Nothing is clipped, as in H18's authors' code. Standardisation afterwards undoes the brightness completely (what
    is left, about 2e-6, is rounding). It undoes the contrast except where the channels have different means, or the
    std ends below the floor of `standardise`. `brightness` counts in the unit of the images: greys of 0 to 1, or, where
    they are standardised already, standard deviations.
    """
    draws = torch.rand(2, len(images), 1, 1, 1, generator=rng).mul(2).sub(1).to(images.device)
    images = images + brightness * draws[0]
    mean = images.mean(dim=(2, 3), keepdim=True)
    return mean + (images - mean) * (1 + contrast * draws[1])


def standardise(images: Images) -> Images:
    """Bring each image, all its channels together, to mean 0 and std 1.

    The std is taken to be at least 1 / sqrt(values per image) on the scale 0..255, as in H18's authors' code, so that
    an image of one grey stays finite.
    """
    std, mean = torch.std_mean(images, dim=(1, 2, 3), correction=0, keepdim=True)
    return (images - mean) / std.clamp_min(images.shape[1:].numel() ** -0.5 / 255)
