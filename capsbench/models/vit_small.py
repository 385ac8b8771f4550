"""ViT-Lite of Hassani, Walton, Shah, Abuduweili, Li, Shi 2021, *Escaping the Big Data Paradigm with Compact
Transformers*: the transformer of Dosovitskiy et al. 2021, *An Image is Worth 16x16 Words*, for 28 to 48 pixels.

"Authors' code" is SHI-Labs/Compact-Transformers.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from capsbench.layers.transformer import TransformerLayer
from capsbench.losses import Labels, Scalar, classification_loss
from capsbench.models.output import Images, Network, Output, Targets
from capsbench.registry import MODELS, Count, Fraction, Positive

WEIGHT_STD, POSITION_STD = 0.02, 0.2  # the authors' code


@MODELS.register("vit_small", title="ViT-Lite", published_on=((3, 32, 32), 10))
class VitSmall(Network):
    """Patches of 4x4 as tokens, with learned positions -> seven layers of self-attention -> a class token -> softmax.

    The defaults are ViT-Lite-7/4, the recipe for data sets as small as CIFAR-10: 3,722,250 parameters on 3x32x32 and 10
    classes (the paper: 3.72 million); `depth` 6 is ViT-Lite-6/4, 3,195,146. Also from the authors' code: normal starts
    of 0.02 in linear layers and 0.2 in positions, a class token that starts at zero, biases at zero, no dropout but 0.1
    on attention, stochastic depth that grows to 0.1 with the layers. `pooling` "mean" takes the mean over patches in
    place of the class token.

    Deviations: normal starts are cut at two standard deviations, which makes them 12 % smaller (theirs are cut at 2,
    and so hardly at all). Queries, keys and values have biases, as Dosovitskiy's have (their layers have none). The
    norm of the second half of a layer stands within its shortcut, as Dosovitskiy's does; theirs stands before it. The
    first convolution starts like the linear layers. Where a side is no multiple of `patch_size`, zeros are added around
    the image. Their augmentation (CutMix, MixUp, AutoAugment), label smoothing and AdamW are the training's affair.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        *,
        patch_size: Count = 4,
        depth: Count = 7,
        width: Count = 256,
        heads: Count = 4,
        mlp_ratio: Positive = 2.0,
        pooling: Literal["token", "mean"] = "token",
        dropout: Fraction = 0.0,
        attention_dropout: Fraction = 0.1,
        stochastic_depth: Fraction = 0.1,
    ):
        super().__init__()
        channels, *sides = image_shape
        if width % heads:
            raise ValueError(f"vit_small: a width of {width} cannot be cut into {heads} heads")
        rows, columns = (math.ceil(side / patch_size) for side in sides)
        self.missing = (rows * patch_size - sides[0], columns * patch_size - sides[1])
        self.patches = nn.Conv2d(channels, width, patch_size, patch_size)
        self.token = nn.Parameter(torch.zeros(1, width)) if pooling == "token" else None
        self.positions = nn.Parameter(torch.empty(rows * columns + (pooling == "token"), width))
        self.dropout = nn.Dropout(dropout)
        hidden = max(1, round(mlp_ratio * width))
        self.layers = nn.ModuleList(
            TransformerLayer(width, heads, hidden, dropout, attention_dropout, stochastic_depth * share)
            for share in (layer / max(1, depth - 1) for layer in range(depth))
        )
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, num_classes)
        _trunc_normal(self.positions, POSITION_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                _trunc_normal(module.weight, WEIGHT_STD)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, images: Images, labels: Labels | None = None) -> Output:
        """Images [B, C, H, W] -> scores [B, K], logits."""
        rows, columns = self.missing
        images = F.pad(images, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        tokens = self.patches(images).flatten(2).transpose(1, 2)  # [B, 64, 256]
        if self.token is not None:
            tokens = torch.cat([self.token.expand(len(tokens), 1, -1), tokens], dim=1)  # [B, 65, 256]
        tokens = self.dropout(tokens + self.positions)
        for layer in self.layers:
            tokens = layer(tokens)
        tokens = self.norm(tokens)
        return Output(self.classifier(tokens.mean(dim=1) if self.token is None else tokens[:, 0]))

    def loss(self, output: Output, targets: Targets, labels: Labels) -> dict[str, Scalar]:
        """Return the cross-entropy."""
        return {"cross_entropy": classification_loss(output.scores, labels)}


def _trunc_normal(weights: Tensor, std: float) -> None:
    nn.init.trunc_normal_(weights, std=std, a=-2 * std, b=2 * std)
