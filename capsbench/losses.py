"""Losses: margin and reconstruction (S17), spread (H18), cross-entropy. Scalars, means over the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor


def margin_loss(
    lengths: Tensor,
    targets: Tensor,
    positive_margin: float = 0.9,
    negative_margin: float = 0.1,
    negative_weight: float = 0.5,
) -> Tensor:
    """T max(0, m+ - |v|)^2 + lambda (1 - T) max(0, |v| - m-)^2, summed over classes, mean over the batch.

    lengths [B, K]; targets [B, K], one-hot or multi-hot. Source: S17, equation 4.
    """
    if lengths.shape != targets.shape:
        raise ValueError(f"lengths {tuple(lengths.shape)} and targets {tuple(targets.shape)} differ in shape")
    present = targets * (positive_margin - lengths).relu().square()
    absent = (1 - targets) * (lengths - negative_margin).relu().square()
    return (present + negative_weight * absent).sum(dim=1).mean()


def spread_loss(activations: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Sum over the wrong classes of max(0, margin - (a_t - a_i))^2, mean over the batch.

    activations [B, K], labels int64 [B], margin in (0, 1]: the paper grows it from 0.2 to 0.9.
    Source: Hinton, Sabour, Frosst 2018 (H18), equation 3.
    """
    target = activations.gather(1, labels.unsqueeze(1))  # a_t [B, 1]
    costs = (margin - (target - activations)).relu().square()
    wrong = torch.ones_like(costs).scatter(1, labels.unsqueeze(1), 0.0)
    return (costs * wrong).sum(dim=1).mean()


def classification_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of logits [B, K]: softmax for labels int64 [B], a sigmoid a class for labels [B, S].

    The sigmoid cross-entropies are summed over the classes (S17's MultiMNIST baseline has 10 sigmoids).
    """
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels)
    targets = present_classes(labels, logits.shape[1], logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1).mean()


def present_classes(labels: Tensor, num_classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Labels int64 [B] or [B, S] -> targets [B, K], 1 for each class in the image and 0 for the others."""
    return F.one_hot(labels.reshape(len(labels), -1), num_classes).sum(dim=1).to(dtype)


def reconstruction_loss(reconstructions: Tensor, images: Tensor) -> Tensor:
    """Sum of squared errors an image, mean over the batch: both [B, C, H, W], targets in [0, 1].

    S17 adds it to the margin loss with a weight of 0.0005, which belongs to this SUM: over 784 pixels it is
    0.392 times the mean squared error. Of [B, S, C, H, W], the S sources of an image, the losses add up (S17, 6).
    """
    if reconstructions.shape != images.shape:
        raise ValueError(
            f"reconstructions {tuple(reconstructions.shape)} and images {tuple(images.shape)} differ in shape"
        )
    return (reconstructions - images).square().flatten(1).sum(dim=1).mean()
