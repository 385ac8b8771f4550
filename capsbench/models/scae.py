"""The stacked capsule autoencoder of Kosiorek, Sabour, Teh, Hinton 2019, *Stacked Capsule Autoencoders* (NeurIPS).

"Authors' code" is google-research/google-research, folder stacked_capsule_autoencoders, with the settings of its
run_mnist.sh.
"""

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.layers.object_capsules import ObjectCapsules, SetTransformer, Standardise, Votes
from capsbench.layers.part_capsules import TINY, Mixture, PartEncoder, Parts, TemplateDecoder
from capsbench.losses import Labels, Scalar, classification_loss
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import MODELS, Count, NonNegative, Positive, Said

Objects = Float[Tensor, "batch objects"]


class Explained(Output):
    """An output that also has what the loss of the autoencoder is made of: parts, what draws them, what explains them.

    drawn: the mixture of `pixels`, of all where these are None.
    """

    parts: Parts
    drawn: Mixture
    pixels: Tensor | None
    votes: Votes
    likelihoods: Float[Tensor, "batch parts"]
    shares: Float[Tensor, "batch objects parts"]


@MODELS.register("scae", title="SCAE", counts_steps=True, one_class=True)
class SCAE(Network):
    """Images -> part capsules, which draw the image from templates; parts -> object capsules, which vote for the parts.

    An autoencoder that learns without labels. Object capsules see and explain parts as they are: their gradients do not
    reach these, so that parts are learned from pixels alone. A linear classifier on the presences of objects, a probe,
    gives the scores; labels train it and nothing else, since its gradients go no further either. Its inputs are prior
    presences (that of an object's most present vote) and posterior ones (how many parts it explains), standardised; the
    authors have a probe on each as it is, and report the better one. `objects` is the number of object capsules, which
    are no class capsules: the output has no poses.

    Weights of the loss are those of the authors' code but for the posterior ones, 0.7 and 0.2 there: of the entropy of
    what objects explain, in an image (to be small) and over images (to be large). `present_objects` are to be present
    in an image, objects / classes by default, as in their code (`run_mnist.sh` names 4.3 of 32).

    Deviations, without which it collapses in a training of minutes: components of `pixel_deviation` 0.3, not 1; of each
    image `drawn_pixels`, drawn by lot, in training; templates that learn `template_gain` times as fast; object capsules
    that begin after `parts_alone` steps; parts that start apart (PartEncoder); standardised values and small starts
    (SetTransformer, ObjectCapsules). Attention goes by presence (Attention). Noise is added in training alone.
    """

    step: Tensor

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        parts: Annotated[Count, Said("not at hand", "40")] = 16,
        objects: Annotated[Count, Said("not at hand", "32")] = 24,
        template_size: Count = 11,
        part_features: Count = 16,
        conv_channels: Annotated[Count, Said("not at hand", "128")] = 64,
        pixel_deviation: Annotated[Positive, Said("not at hand", "1", "standard deviation of a pixel")] = 0.3,
        drawn_pixels: Annotated[Count | None, Said("not at hand", "all", "of each image, in training")] = 100,
        parts_alone: Annotated[Count | None, Said("not at hand", "none", "steps before object capsules learn")] = 1500,
        template_gain: Annotated[Positive, Said("not at hand", "1")] = 10.0,
        attention_dim: Annotated[Count, Said("not at hand", "16")] = 32,
        attention_layers: Annotated[Count, Said("not at hand", "3")] = 2,
        object_dim: Annotated[Count, Said("not at hand", "256")] = 64,
        object_params: Count = 32,
        hidden: Count = 128,
        noise: NonNegative = 4.0,
        deformation_weight: NonNegative = 10.0,
        present_objects: Positive | None = None,
        prior_within_weight: NonNegative = 2.0,
        prior_between_weight: NonNegative = 0.35,
        posterior_within_weight: Annotated[NonNegative, Said("not at hand", "0.7 (flag: 10)")] = 10.0,
        posterior_between_weight: Annotated[NonNegative, Said("not at hand", "0.2 (flag: 10)")] = 20.0,
    ):
        super().__init__()
        channels, rows, columns = image_shape
        grid = tuple((((side - 3) // 2 + 1) - 3) // 2 + 1 - 4 for side in (rows, columns))
        if min(grid) < 1:
            raise ValueError(f"scae needs images of at least 23x23, not {rows}x{columns}")
        self.image_shape, self.num_classes, self.pixel_deviation = image_shape, num_classes, pixel_deviation
        self.drawn_pixels = drawn_pixels if drawn_pixels is not None and drawn_pixels < rows * columns else None
        self.parts_alone = parts_alone or 0
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
        self.deformation_weight = deformation_weight
        self.prior_weights = prior_within_weight, prior_between_weight
        self.posterior_weights = posterior_within_weight, posterior_between_weight
        self.present_objects = objects / num_classes if present_objects is None else present_objects
        self.part_encoder = PartEncoder(channels, (grid[0], grid[1]), conv_channels, parts, part_features, noise)
        self.part_decoder = TemplateDecoder(image_shape, parts, template_size, part_features, template_gain)
        seen = 6 + 1 + part_features
        self.object_encoder = SetTransformer(parts, seen, attention_dim, attention_layers, objects, object_dim)
        presence = min(max(self.present_objects / objects, 0.01), 0.99)
        self.object_capsules = ObjectCapsules(objects, parts, object_dim, object_params, hidden, noise, presence)
        self.standardise = Standardise(objects, 2)
        self.probe = nn.Linear(2 * objects, num_classes)

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K]; reconstructions where all pixels are drawn, as they are in a test."""
        parts = self.part_encoder(images)
        pixels = None
        if self.training and self.drawn_pixels is not None:
            pixels = torch.randperm(images[0, 0].numel(), device=images.device)[: self.drawn_pixels]
        drawn = self.part_decoder(parts, pixels)
        poses, presences, features = (part.detach() for part in parts)
        tokens = torch.cat([poses.flatten(2), 1 - presences.unsqueeze(2), features], dim=2)
        votes = self.object_capsules(self.object_encoder(tokens, presences))
        likelihoods, shares = votes.explain(poses)
        found = torch.stack([votes.prior(), shares.sum(dim=2)], dim=2).detach()  # [B, K', 2]
        scores = self.probe(self.standardise(found).flatten(1))
        reconstructions = drawn.mean().unflatten(2, self.image_shape[1:]) if pixels is None else None
        output = Explained(scores, None, reconstructions)
        output.parts, output.drawn, output.pixels = parts, drawn, pixels
        output.votes, output.likelihoods, output.shares = votes, likelihoods, shares
        return output

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the parts of the autoencoder's loss, and the cross-entropy of the probe."""
        if labels.ndim > 1:
            raise ValueError("scae is for one class per image")
        assert isinstance(output, Explained)
        prior_within, prior_between = self.prior_weights
        posterior_within, posterior_between = self.posterior_weights
        pixels = targets.flatten(2)
        if output.pixels is not None:
            pixels = pixels[:, :, output.pixels]
        likelihood = output.drawn.log_likelihood(pixels, self.pixel_deviation) * targets[0, 0].numel()
        waiting = self.training and bool(self.step < self.parts_alone)
        if self.training:
            self.step += 1
        within, between = presence_losses(output.votes.prior(), self.present_objects, self.num_classes)
        alone, alike = share_entropies(output.shares.sum(dim=2))
        explained = {
            "votes": -(output.likelihoods * output.parts.presences.detach()).sum(dim=1).mean(),
            "deformation": self.deformation_weight * output.votes.deformation,
            "presences_within_images": prior_within * within,
            "presences_between_images": prior_between * between,
            "shares_within_images": posterior_within * alone,
            "shares_between_images": -posterior_between * alike,
        }
        if waiting:  # no gradients rather than zeros, which Adam would count, to take too large steps afterwards
            explained = {name: torch.zeros_like(part) for name, part in explained.items()}
        return {
            "reconstruction": -likelihood,
            **explained,
            "probe": classification_loss(output.scores, labels),
        }


def presence_losses(prior: Objects, present_objects: float, num_classes: int) -> tuple[Scalar, Scalar]:
    """Squared distances of presences [B, K'] added up, of an image from `present_objects`, of an object from B / K."""
    within = (prior.sum(dim=1) - present_objects).square().mean()
    between = (prior.sum(dim=0) - len(prior) / num_classes).square().mean()
    return within, between


def share_entropies(masses: Objects) -> tuple[Scalar, Scalar]:
    """Entropies in nats of what objects explain [B, K']: the mean over images, and that of the sum over images."""
    return _entropy(masses).mean(), _entropy(masses.sum(dim=0))


def _entropy(masses: Tensor) -> Tensor:
    shares = masses / (masses.sum(dim=-1, keepdim=True) + TINY)
    return -(shares * (shares + TINY).log()).sum(dim=-1)
