"""Augmentation of whole batches, on the device, drawn for each image separately.

Images are float [B, C, H, W] in [0, 1]; draws are uniform in [0, 1), float64 with a row for each image.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from capsbench.data.tasks.draws import Draws
from capsbench.study import Augmentation

Images = Float[Tensor, "batch channels height width"]
Two = Float[Tensor, "batch 2"]


def augment(images: Images, augmentation: Augmentation, draws: Draws) -> Images:
    """Apply what moves, hides or mirrors pixels, in this order: flip, rotation and scale, shift, cutout."""
    if augmentation.flip:
        images = flip(images, draws("flip", 1))
    if augmentation.rotation or augmentation.scale:
        images = rotate_and_scale(images, augmentation.rotation, augmentation.scale, draws("rotation_and_scale", 2))
    if augmentation.shift:
        images = shift(images, augmentation.shift, draws("shift", 2))
    if augmentation.cutout:
        images = cutout(images, augmentation.cutout, draws("cutout", 2))
    return images


def shift(images: Images, pixels: int, draws: Two) -> Images:
    """Move each image by whole pixels, up to `pixels` along each axis, and fill with zeros (S17: 2)."""
    batch, _, height, width = images.shape
    rows, columns = drawn_places(draws, 2 * pixels)
    return windows(images, pixels, height, width)[torch.arange(batch, device=images.device), :, rows, columns]


def drawn_places(draws: Two, room: int) -> tuple[Tensor, Tensor]:
    """Return the row and the column that each image's draws name, int64 [B] each in 0..room."""
    rows, columns = (draws * (room + 1)).long().unbind(1)
    return rows, columns


def windows(images: Tensor, padding: int, height: int, width: int) -> Tensor:
    """View all height x width parts of images with a frame of zeros: [N, C, H, W] -> [N, C, rows, columns, h, w].

    windows(...)[image, :, row, column] with indices [B] gathers the parts [B, C, h, w], each from its own place.
    """
    padded = F.pad(images, (padding, padding, padding, padding)) if padding else images
    return padded.unfold(2, height, 1).unfold(3, width, 1)


def flip(images: Images, draws: Float[Tensor, "batch 1"]) -> Images:
    """Mirror each image left to right with probability 1/2."""
    mirrored = (draws < 0.5)[:, :, None, None]
    return torch.where(mirrored, images.flip(3), images)


def rotate_and_scale(images: Images, degrees: float, scale: float, draws: Two) -> Images:
    """Rotate each image by up to `degrees` either way and scale it by a factor within 1 ± scale (bilinear)."""
    angle_draw, scale_draw = (2 * draws - 1).to(images.dtype).unbind(1)
    angle = torch.deg2rad(angle_draw * degrees)
    factor = 1 + scale_draw * scale
    cos, sin = angle.cos() / factor, angle.sin() / factor
    zero = torch.zeros_like(cos)
    matrix = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)  # [B, 2, 3]
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def cutout(images: Images, side: int, draws: Two) -> Images:
    """Set one square of side x side pixels in each image to zero; its centre is anywhere in the image."""
    height, width = images.shape[2:]
    top = (draws[:, :1] * height).floor() - side // 2
    left = (draws[:, 1:] * width).floor() - side // 2
    row = torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device)
    in_rows = (row >= top) & (row < top + side)  # [B, H]
    in_columns = (column >= left) & (column < left + side)  # [B, W]
    hole = in_rows[:, None, :, None] & in_columns[:, None, None, :]  # [B, 1, H, W]
    return images.masked_fill(hole, 0.0)


def brightness_and_contrast(
    images: Images, brightness: float, contrast: float, draws: Two, means: Tensor | None = None
) -> Images:
    """Add up to `brightness` either way, then stretch each channel about its mean by 1 - contrast to 1 + contrast.

    `means` [B, C, 1, 1] are those of the whole images where `images` are parts of them; by default their own. Nothing
    is clipped, as in H18's authors' code. Standardisation afterwards undoes the brightness completely (what is left,
    about 2e-6, is rounding). It undoes the contrast except where the channels have different means, or the std ends
    below the floor of `standardise`. `brightness` counts in the unit of the images: greys of 0 to 1, or, where they are
    standardised already, standard deviations.
    """
    added, stretch = (2 * draws - 1).to(images.dtype)[:, :, None, None, None].unbind(1)  # [B, 1, 1, 1] each
    mean = images.mean(dim=(2, 3), keepdim=True) if means is None else means
    return mean + brightness * added + (images - mean) * (1 + contrast * stretch)


def standardise(images: Images, whole: Images | None = None) -> Images:
    """Bring each image, all its channels together, to mean 0 and std 1, or parts of images by those of the `whole`.

    The std is taken to be at least 1 / sqrt(values per image) on the scale 0..255, as in H18's authors' code, so that
    an image of one grey stays finite.
    """
    whole = images if whole is None else whole
    std, mean = torch.std_mean(whole, dim=(1, 2, 3), correction=0, keepdim=True)
    return (images - mean) / std.clamp_min(whole.shape[1:].numel() ** -0.5 / 255)
