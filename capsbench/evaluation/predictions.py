"""One pass of a network over a test set: never augmented, labels never shown to the network."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from capsbench.data.batches import ordered_batches

BATCH_SIZE = 500


@dataclass(frozen=True)
class Predictions:
    """scores float [N, K], labels [N]; for a network with a decoder also squared_errors [N] (sums over an image)
    and samples: the first test image of each class, originals and reconstructions uint8 [S, C, H, W].
    """

    scores: Tensor
    labels: Tensor
    pixels: int
    squared_errors: Tensor | None
    sample_images: Tensor
    sample_reconstructions: Tensor | None

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what predictions.npz holds."""
        named = {
            "scores": self.scores, "labels": self.labels, "squared_errors": self.squared_errors,
            "sample_images": self.sample_images, "sample_reconstructions": self.sample_reconstructions,
        }  # fmt: skip
        return {name: tensor.cpu().numpy() for name, tensor in named.items() if tensor is not None}


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, labels: Tensor) -> Predictions:
    """Run a network over images uint8 [N, C, H, W], labels int64 [N], all on one device.

    The decoder is masked by the prediction.
    """
    model.eval()
    scores, errors, reconstructed = [], [], []
    for batch, _ in ordered_batches(images, labels, BATCH_SIZE):
        output = model(batch)
        scores.append(output.scores)
        if output.reconstructions is not None:
            errors.append((output.reconstructions - batch).square().flatten(1).sum(dim=1))
            reconstructed.append((output.reconstructions * 255).round().to(torch.uint8))
    samples = torch.stack([(labels == value).nonzero()[0, 0] for value in labels.unique()])
    return Predictions(
        scores=torch.cat(scores),
        labels=labels,
        pixels=images[0].numel(),
        squared_errors=torch.cat(errors) if errors else None,
        sample_images=images[samples],
        sample_reconstructions=torch.cat(reconstructed)[samples] if reconstructed else None,
    )
