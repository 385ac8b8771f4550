"""What every network is, what it returns, and the predictions in it."""

from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor, nn

from capsbench.losses import Labels, Loss, Scalar, Scores

Images = Float[Tensor, "batch channels height width"]
Targets = Float[Tensor, "batch *objects channels height width"]


class Output(NamedTuple):
    """scores [B, K] (the largest is the prediction); the rest is None where a network has no such thing.

    Scores are logits where a network has them, as CNNs and capsules under EM routing do, else lengths or shares. poses
    [B, K, D] of the class capsules; reconstructions in [0, 1], [B, C, H, W], or [B, S, C, H, W] of S classes; couplings
    [B, I, K] of the last routing iteration, each row summing to one (less under leaky routing); activations [B, K] of
    the class capsules, in [0, 1], which the losses of capsule networks take.
    """

    scores: Scores
    poses: Float[Tensor, "batch classes dim"] | None = None
    reconstructions: Targets | None = None
    couplings: Float[Tensor, "batch children classes"] | None = None
    activations: Scores | None = None


class Network(nn.Module):
    """Base of all networks: built as Class(image_shape, num_classes, *, options); see capsbench.models."""

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W], and in training their labels -> Output."""
        raise NotImplementedError

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the parts of the loss by name, scalars: what is trained is their sum."""
        raise NotImplementedError

    def reconstruct(self, output: Output, labels: Labels | None) -> Targets | None:
        """Draw classes with the decoder, where there is one: what forward(images, labels) reconstructs.

        Args:
            output: of the network, whose poses the decoder gets.
            labels: the classes, [B] or [B, S]; None: those with the highest scores.
        """
        decoder = getattr(self, "decoder", None)
        return None if decoder is None else decoder(output.poses, output.scores, labels)


def class_loss(loss: Loss, output: Output, labels: Labels) -> Scalar:
    """Return a loss of an output, which takes activations or scores as the loss says."""
    values = output.scores if loss.takes == "scores" or output.activations is None else output.activations
    found: Scalar = loss(values, labels)
    return found


def predicted_classes(scores: Scores, objects: int = 1) -> Int[Tensor, "batch ..."]:
    """Return the classes of the highest scores [B, K]: int64 [B], or [B, objects] ascending for several objects."""
    if objects == 1:
        return scores.argmax(dim=1)
    return scores.topk(objects, dim=1).indices.sort(dim=1).values


def predict(model: Network, images: Images, objects: int = 1) -> Output:
    """Run a network on images [B, C, H, W] without their labels; its decoder draws the classes that it predicts."""
    output: Output = model(images)
    if objects > 1 and output.reconstructions is not None:
        drawn = model.reconstruct(output, predicted_classes(output.scores, objects))
        output = output._replace(reconstructions=drawn)
    return output


def count_parameters(model: nn.Module) -> int:
    """Count the trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
