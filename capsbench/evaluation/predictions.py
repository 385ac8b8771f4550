"""One pass of a network over a test set: never augmented, labels never shown to the network."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from capsbench.data.tasks.stereo import class_shares
from capsbench.data.tasks.task import Batch, Task
from capsbench.models import Network, Output, predict


@dataclass(frozen=True)
class Predictions:
    """What a network says of the evaluation images of a split.

    Attributes:
        scores: float [N, K]; where an image is shown in several crops, the mean of their shares, see `class_shares`.
        labels: int64 [N], or [N, S] for S objects in each image.
        pixels: how many values a squared error is summed over.
        squared_errors: float [N], sums over an image and its sources; None without a decoder.
        sample_images: uint8 [P, C, H, W], the first image of each class.
        sample_targets: uint8 [P, C, H, W] or [P, S, C, H, W], what the decoder should reconstruct of them.
        sample_reconstructions: the same shape, what it reconstructs; None without a decoder.
    """

    scores: Tensor
    labels: Tensor
    pixels: int
    squared_errors: Tensor | None
    sample_images: Tensor
    sample_targets: Tensor
    sample_reconstructions: Tensor | None

    def scored(self) -> dict[str, np.ndarray]:
        """Return scores and labels."""
        return {"scores": self.scores.cpu().numpy(), "labels": self.labels.cpu().numpy()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what predictions.npz holds of the test: beside scores and labels, the decoder's errors and samples."""
        named = {
            "squared_errors": self.squared_errors, "sample_images": self.sample_images,
            "sample_targets": self.sample_targets, "sample_reconstructions": self.sample_reconstructions,
        }  # fmt: skip
        return self.scored() | {name: tensor.cpu().numpy() for name, tensor in named.items() if tensor is not None}


@torch.no_grad()
def collect_predictions(model: Network, task: Task) -> Predictions:
    """Run a network over the evaluation images of a task, both on one device; the decoder sees the predicted class."""
    model.eval()
    objects = 1 if task.labels.ndim == 1 else task.labels.shape[1]
    scores, errors, pixels = torch.zeros(()), [], 0
    for view in range(task.views):
        found = []
        for batch in task.eval_batches(view=view):
            output = predict(model, batch.images, objects)
            found.append(output.scores if task.views == 1 else class_shares(output.scores, output.activations))
            pixels = batch.targets[0].numel()
            if output.reconstructions is not None and view == 0:
                errors.append((output.reconstructions - batch.targets).square().flatten(1).sum(dim=1))
        scores = scores.to(found[0]) + torch.cat(found) / task.views
    batch, output = _samples(model, task, objects)
    return Predictions(
        scores=scores,
        labels=task.labels,
        pixels=pixels,
        squared_errors=torch.cat(errors) if errors else None,
        sample_images=_bytes(batch.targets if objects == 1 else batch.images),
        sample_targets=_bytes(batch.targets),
        sample_reconstructions=None if output.reconstructions is None else _bytes(output.reconstructions),
    )


def _samples(model: Network, task: Task, objects: int) -> tuple[Batch, Output]:
    """Take the first evaluation image of each class."""
    main = task.labels if objects == 1 else task.labels[:, 0]
    chosen = torch.stack([(main == value).nonzero()[0, 0] for value in main.unique()])
    batch = task.eval_batch(chosen, 0)
    return batch, predict(model, batch.images, objects)


def _bytes(images: Tensor) -> Tensor:
    return (images * 255).round().clamp(0, 255).to(torch.uint8)
