"""Losses: margin and reconstruction (S17), spread (H18), cross-entropy. Scalars, means over the batch."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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


def spread_loss(activations: Tensor, labels: Tensor, margin: float | Tensor) -> Tensor:
    """Sum over the wrong classes of max(0, margin - (a_t - a_i))^2, mean over the batch.

    activations [B, K], labels int64 [B], margin in (0, 1], a number or a scalar tensor: the paper grows it from 0.2 to
    0.9. Raises ValueError for several classes an image. Source: Hinton, Sabour, Frosst 2018 (H18), equation 3.
    """
    if labels.ndim > 1:
        raise ValueError("the spread loss takes one class an image; choose loss 'margin' for several")
    target = activations.gather(1, labels.unsqueeze(1))  # a_t [B, 1]
    costs = (margin - (target - activations)).relu().square()
    wrong = torch.ones_like(costs).scatter(1, labels.unsqueeze(1), 0.0)
    return (costs * wrong).sum(dim=1).mean()


class SpreadMargin(nn.Module):
    """The margin of the spread loss as training goes: start + growth x sigmoid(min(10, s / scale + centre)).

    s: the calls in training mode so far. The schedule and its numbers are those of H18's authors' code; the paper says
    from 0.2 to 0.9, and not how.
    """

    step: Tensor

    def __init__(self, start: float = 0.2, growth: float = 0.79, centre: float = -4.0, scale: float = 50000.0):
        super().__init__()
        self.start, self.growth, self.centre, self.scale = start, growth, centre, scale
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def forward(self) -> Tensor:
        """Nothing -> the margin, a scalar; in training mode that is a step."""
        margin = self.start + self.growth * torch.sigmoid((self.step / self.scale + self.centre).clamp(max=10))
        if self.training:
            self.step += 1
        return margin


def share_likelihood_loss(activations: Tensor, labels: Tensor) -> Tensor:
    """Negative log of the share that the classes of an image have in its activations, mean over classes and batch.

    activations [B, K] >= 0, labels int64 [B] or [B, S]. Self-routing (Hahn 2019) trains with it: its activations sum
    to one.
    """
    shares = activations / (activations.sum(dim=1, keepdim=True) + 1e-7)
    return -(shares.gather(1, labels.reshape(len(labels), -1)) + 1e-7).log().mean()


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
