"""Losses: margin and reconstruction (S17), spread (H18), cross-entropy. Scalars, means over the batch.

First the losses that a study can choose, modules with their options; below them the pure functions.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsbench.registry import LOSSES, Fraction, NonNegative, Positive, Said

Labels = Int[Tensor, " batch"] | Int[Tensor, "batch objects"]
Scores = Float[Tensor, "batch classes"]
Scalar = Float[Tensor, ""]


class Loss(nn.Module):
    """Base of all losses: built as Class(*, options), values [B, K] and labels int64 [B] or [B, S] -> a scalar.

    takes: which values those are, the activations of capsules in [0, 1] or a network's scores.
    """

    takes: Literal["activations", "scores"] = "activations"

    def begin(self, steps: int, stretch: float) -> None:
        """Take note of the training that begins, where a loss has a schedule.

        Args:
            steps: how many steps the training has.
            stretch: how many steps of the paper's schedule each of them counts for.
        """

    def forward(self, values: Scores, labels: Labels) -> Scalar:
        """Return the mean over the batch."""
        raise NotImplementedError


@LOSSES.register("margin")
class MarginLoss(Loss):
    """The margin loss of S17, for capsules whose lengths are their activations."""

    def __init__(
        self,
        *,
        positive_margin: Fraction = 0.9,
        negative_margin: Fraction = 0.1,
        negative_weight: NonNegative = 0.5,
        weight: Annotated[Positive, Said("1", "1/20: a half times the mean over ten classes", "S17")] = 1.0,
    ):
        super().__init__()
        self.margins = (positive_margin, negative_margin, negative_weight)
        self.weight = weight

    def forward(self, values: Scores, labels: Labels) -> Scalar:
        """Return weight x `margin_loss`."""
        present = present_classes(labels, values.shape[1], values.dtype)
        return self.weight * margin_loss(values, present, *self.margins)


@LOSSES.register("spread")
class SpreadLoss(Loss):
    """The spread loss of H18, for one class per image, under a margin that grows during training.

    "linear": from 0.2 at the first step of the training to 0.9 at its last (H18, 4.1); 0.9 where no training has begun.
    "authors": 0.2 + 0.79 x sigmoid(min(10, step / 50,000 - 4)), which is 0.26 after 76,000 steps and passes 0.9 after
    302,600. Steps are the calls in training mode.
    """

    step: Tensor

    def __init__(
        self,
        *,
        schedule: Annotated[
            Literal["linear", "authors"],
            Said("linear, 0.2 to 0.9 during training", "sigmoid centred at step 200,000, to 0.99", "H18, 4.1"),
        ] = "linear",
    ):
        super().__init__()
        self.schedule = schedule
        self.steps, self.stretch = 0, 1.0
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def begin(self, steps: int, stretch: float) -> None:
        """Spread the linear schedule over `steps`, and let each count `stretch` times in the authors'."""
        self.steps, self.stretch = steps, stretch

    def margin(self) -> Scalar:
        """Return the margin at this step."""
        if self.schedule == "linear":
            trained = self.step / max(1, self.steps - 1) if self.steps else torch.ones_like(self.step)
            return 0.2 + 0.7 * trained.clamp(max=1)
        return 0.2 + 0.79 * torch.sigmoid((self.step * self.stretch / 50_000 - 4).clamp(max=10))

    def forward(self, values: Scores, labels: Labels) -> Scalar:
        """Return `spread_loss` under the present margin; in training mode that is a step."""
        margin = self.margin()
        if self.training:
            self.step += 1
        return spread_loss(values, labels, margin)


@LOSSES.register("share_likelihood")
class ShareLikelihoodLoss(Loss):
    """The loss of self-routing (Hahn 2019)."""

    def forward(self, values: Scores, labels: Labels) -> Scalar:
        """Return `share_likelihood_loss`."""
        return share_likelihood_loss(values, labels)


@LOSSES.register("cross_entropy", title="cross-entropy")
class CrossEntropyLoss(Loss):
    """Cross-entropy of a softmax, or of one sigmoid per class where an image has several classes.

    of: the softmax is over "scores", logits where a network has them, as Heinsen's paper trains; or over "activations",
    as H18's and the variational Bayes authors' code do, so that it cannot fall under log(1 + (K - 1) / e).
    """

    def __init__(self, *, of: Literal["scores", "activations"] = "scores"):
        super().__init__()
        self.takes = of

    def forward(self, values: Scores, labels: Labels) -> Scalar:
        """Return `classification_loss`."""
        return classification_loss(values, labels)


def margin_loss(
    lengths: Scores,
    targets: Tensor,
    positive_margin: float = 0.9,
    negative_margin: float = 0.1,
    negative_weight: float = 0.5,
) -> Scalar:
    """T max(0, m+ - |v|)^2 + lambda (1 - T) max(0, |v| - m-)^2, summed over classes, mean over the batch.

    lengths [B, K]; targets [B, K], one-hot or multi-hot. Source: S17, equation 4.
    """
    if lengths.shape != targets.shape:
        raise ValueError(f"lengths {tuple(lengths.shape)} and targets {tuple(targets.shape)} differ in shape")
    present = targets * (positive_margin - lengths).relu().square()
    absent = (1 - targets) * (lengths - negative_margin).relu().square()
    return (present + negative_weight * absent).sum(dim=1).mean()


def spread_loss(activations: Scores, labels: Labels, margin: float | Scalar) -> Scalar:
    """Sum over the wrong classes of max(0, margin - (a_t - a_i))^2, mean over the batch.

    activations [B, K], labels int64 [B], margin in (0, 1], a number or a scalar tensor: the paper grows it from 0.2 to
    0.9. Raises ValueError for several classes per image. Source: Hinton, Sabour, Frosst 2018 (H18), equation 3.
    """
    if labels.ndim > 1:
        raise ValueError("the spread loss takes one class per image; choose the loss 'margin' for several")
    target = activations.gather(1, labels.unsqueeze(1))  # a_t [B, 1]
    costs = (margin - (target - activations)).relu().square()
    wrong = torch.ones_like(costs).scatter(1, labels.unsqueeze(1), 0.0)
    return (costs * wrong).sum(dim=1).mean()


def share_likelihood_loss(activations: Scores, labels: Labels) -> Scalar:
    """Negative log of the share that the classes of an image have in its activations, mean over classes and batch.

    activations [B, K] >= 0, labels int64 [B] or [B, S]. Self-routing (Hahn 2019) trains with it: its activations sum
    to one.
    """
    shares = activations / (activations.sum(dim=1, keepdim=True) + 1e-7)
    return -(shares.gather(1, labels.reshape(len(labels), -1)) + 1e-7).log().mean()


def classification_loss(logits: Scores, labels: Labels) -> Scalar:
    """Cross-entropy of logits [B, K]: softmax for labels int64 [B], one sigmoid per class for labels [B, S].

    The sigmoid cross-entropies are summed over the classes (S17's MultiMNIST baseline has 10 sigmoids).
    """
    if labels.ndim == 1:
        return F.cross_entropy(logits, labels)
    targets = present_classes(labels, logits.shape[1], logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(dim=1).mean()


def present_classes(labels: Labels, num_classes: int, dtype: torch.dtype = torch.float32) -> Scores:
    """Labels int64 [B] or [B, S] -> targets [B, K], 1 for each class in the image and 0 for the others."""
    return F.one_hot(labels.reshape(len(labels), -1), num_classes).sum(dim=1).to(dtype)


def reconstruction_loss(reconstructions: Tensor, images: Tensor) -> Scalar:
    """Sum of squared errors of an image, mean over the batch: both [B, C, H, W], targets in [0, 1].

    S17 adds it to the margin loss with a weight of 0.0005, which belongs to this SUM: over 784 pixels it is
    0.392 times the mean squared error. For the S sources of an image, [B, S, C, H, W], the losses add up (S17, 6).
    """
    if reconstructions.shape != images.shape:
        raise ValueError(
            f"reconstructions {tuple(reconstructions.shape)} and images {tuple(images.shape)} differ in shape"
        )
    return (reconstructions - images).square().flatten(1).sum(dim=1).mean()
