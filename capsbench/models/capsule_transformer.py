"""A capsule transformer: parts and wholes joined by the Set Transformer of Kosiorek, Sabour, Teh, Hinton 2019, *Stacked
Capsule Autoencoders*, section 2.3, here under labels and on CapsNet's parts.

The Set Transformer itself is that of Lee et al. 2019. "Authors' code" is google-research/stacked_capsule_autoencoders.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import nn

from capsbench.layers import DecoderSize
from capsbench.layers.transformer import TransformerLayer
from capsbench.losses import Labels, Scalar
from capsbench.models.capsnet import KERNEL, PrimaryCaps
from capsbench.models.output import Images, Network, Output, Targets, class_loss
from capsbench.registry import DECODERS, LOSSES, MODELS, Chosen, Count, Positive
from capsbench.routing.contract import capsule_lengths, squash

EMBEDDING_STD = 0.02  # of positions, types and the queries of wholes, as BERT has it


@MODELS.register("capsule_transformer", title="capsule transformer", published_on=((1, 28, 28), 10))
class CapsuleTransformer(Network):
    """Conv 9x9 ReLU -> part capsules -> self-attention between parts -> wholes attend to parts -> class capsules.

    A part is a primary capsule of S17 (`part_types` of `part_dim` numbers at each position of the grid); its length is
    its presence. Tokens are a linear map of its pose plus learned embeddings of position and type, which a pose from a
    convolution does not tell. As in Kosiorek 2019:

    - `part_layers` layers of self-attention between all parts; attention is weighted by presence;
    - each whole is a learned query that attends to the parts, weighted by presence. A part may be seen by many wholes:
      nothing makes the wholes compete for it, so there are no couplings.

    Then, as in Lee 2019, `whole_layers` layers of self-attention between wholes (Kosiorek 2019: none). There is a whole
    for each class; its pose is a squashed linear map of its token, its activation the length of the pose, and loss and
    decoder are S17's. 2,759,008 parameters on 28x28x1 with the decoder.

    Deviations: labels in place of the likelihood of the parts. Presence p weights attention by p; theirs takes
    (1 - p) x 1e32 from the logits, which leaves only the parts of the highest presence. Layers have their norms first
    and twice the width between; sizes are ours (theirs: 3 layers, 1 head, width 16, one layer of pooling to 256).
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        loss: Annotated[Chosen, LOSSES] = LOSSES.choose("margin"),
        decoder: Annotated[Chosen, DECODERS] | None = DECODERS.choose("fully_connected"),
        conv_channels: Count = 128,
        part_types: Count = 4,
        part_dim: Count = 16,
        width: Count = 128,
        heads: Count = 4,
        part_layers: Count = 3,
        whole_layers: Annotated[int, Field(ge=0)] = 1,
        mlp_ratio: Positive = 2.0,
        class_dim: Count = 16,
    ):
        super().__init__()
        height, columns = image_shape[1:]
        if min(height, columns) < 2 * KERNEL - 1:
            least = f"{2 * KERNEL - 1}x{2 * KERNEL - 1}"
            raise ValueError(f"capsule_transformer needs images of at least {least}, not {height}x{columns}")
        if width % heads:
            raise ValueError(f"capsule_transformer: a width of {width} cannot be cut into {heads} heads")
        positions = ((height - 2 * KERNEL + 1) // 2 + 1) * ((columns - 2 * KERNEL + 1) // 2 + 1)
        hidden = max(1, round(mlp_ratio * width))
        self.conv = nn.Conv2d(image_shape[0], conv_channels, KERNEL)
        self.parts = PrimaryCaps(conv_channels, part_types, part_dim)
        self.embed = nn.Linear(part_dim, width)
        self.positions = nn.Parameter(torch.empty(positions, 1, width))
        self.types = nn.Parameter(torch.empty(part_types, width))
        self.part_layers = nn.ModuleList(TransformerLayer(width, heads, hidden) for _ in range(part_layers))
        self.part_norm = nn.LayerNorm(width)
        self.wholes = nn.Parameter(torch.empty(num_classes, width))
        self.pooling = TransformerLayer(width, heads, hidden)
        self.whole_layers = nn.ModuleList(TransformerLayer(width, heads, hidden) for _ in range(whole_layers))
        self.poses = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, class_dim))
        for embedding in (self.positions, self.types, self.wholes):
            nn.init.normal_(embedding, std=EMBEDDING_STD)
        self.decoder = decoder.build(DecoderSize(num_classes, class_dim, image_shape)) if decoder else None
        self.loss_name, self.class_loss = loss.name, loss.build()

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores and activations [B, K] (lengths), poses [B, K, D], reconstructions."""
        inputs, presences = self.parts(self.conv(images).relu())  # u [B, 144, 16], [B, 144]
        tokens = self.embed(inputs) + (self.positions + self.types).flatten(0, 1)  # [B, 144, 128]
        for layer in self.part_layers:
            tokens = layer(tokens, presences=presences)
        tokens = self.part_norm(tokens)
        wholes = self.pooling(self.wholes.expand(len(images), -1, -1), tokens, presences)  # [B, K, 128]
        for layer in self.whole_layers:
            wholes = layer(wholes)
        poses = squash(self.poses(wholes))  # [B, K, 16]
        lengths = capsule_lengths(poses)
        output = Output(lengths, poses, activations=lengths)
        return output._replace(reconstructions=self.reconstruct(output, labels))  # [B, (S,) C, H, W]

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the loss of the classes and that of the reconstructions."""
        parts = {self.loss_name: class_loss(self.class_loss, output, labels)}
        if self.decoder is not None and output.reconstructions is not None:
            parts["reconstruction"] = self.decoder.loss(output.reconstructions, targets)
        return parts
