"""Layers of transformers: Vaswani et al. 2017, *Attention Is All You Need*, with norms first as in Dosovitskiy 2021.

Tokens are vectors in no order, [B, N, W]. `TransformerLayer` computes what torch.nn.TransformerEncoderLayer does; that
one has no presences, no stochastic depth and no tokens that attend to others.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

PRESENCE_FLOOR = 1e-6  # so that the logarithm, and its gradient, stay finite

Tokens = Float[Tensor, "batch tokens width"]
Queries = Float[Tensor, "batch queries width"]
Presences = Float[Tensor, "batch tokens"]


class Attention(nn.Module):
    """Multi-head attention of queries to tokens, scaled by the root of a head's width.

    presences a_i in [0, 1] weight the tokens: attention is in proportion to a_i exp(q k_i), so that a token that is
    absent is not seen. Raises ValueError where the heads do not divide the width.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0):
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} cannot be cut into {heads} heads")
        self.heads, self.dropout = heads, dropout
        self.queries, self.keys, self.values = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, queries: Queries, tokens: Tokens, presences: Presences | None = None) -> Queries:
        """Queries [B, Q, W], tokens [B, N, W], presences [B, N] of the tokens or none -> [B, Q, W]."""
        q, k, v = (
            layer(values).unflatten(2, (self.heads, -1)).transpose(1, 2)  # [B, heads, Q or N, W / heads]
            for layer, values in ((self.queries, queries), (self.keys, tokens), (self.values, tokens))
        )
        weights = None if presences is None else presences.clamp(min=PRESENCE_FLOOR).log()[:, None, None]
        seen = F.scaled_dot_product_attention(q, k, v, weights, self.dropout if self.training else 0.0)
        found: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return found


class TransformerLayer(nn.Module):
    """Attention, then a network of two layers on each token (GELU between), each around a shortcut and after a norm.

    Tokens attend to each other, or, where others are given, to those. `stochastic_depth` (Huang et al. 2016) leaves
    either part out in training, for each sample by itself with this probability, and weights what stays by the inverse
    of that of staying.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
    ):
        super().__init__()
        self.stochastic_depth = stochastic_depth
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, attention_dropout)
        self.dropout = nn.Dropout(dropout)
        layers = [nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, width)]
        self.perceptron = nn.Sequential(nn.LayerNorm(width), *layers, nn.Dropout(dropout))

    def forward(self, tokens: Queries, others: Tokens | None = None, presences: Presences | None = None) -> Queries:
        """Tokens [B, N, W], which attend to others [B, M, W] or to themselves, presences [B, M or N] -> [B, N, W]."""
        normed = self.attention_norm(tokens)
        seen = self.attention(normed, normed if others is None else others, presences)
        tokens = tokens + self._kept(self.dropout(seen))
        return tokens + self._kept(self.perceptron(tokens))

    def _kept(self, change: Tensor) -> Tensor:
        if not self.training or self.stochastic_depth == 0:
            return change
        stays = 1 - self.stochastic_depth
        return change * change.new_empty(len(change), 1, 1).bernoulli_(stays) / stays
