"""The control of self-attention routing: everything that it has but the agreement of votes, so no routing.

Symbols as in `attention`: i a child, j a parent, û_ij a vote, c_ij a coupling, b_ij a learnt log prior, s_j the weighted
sum, u_j a pose. OURS: in the equations of Mazzia, Salvetti, Chiaberge 2021 the couplings are equal,

    c_ij = 1/J,   s_j = sum_i (c_ij + b_ij) û_ij,   u_j = (1 - exp(-|s_j|)) * s_j / |s_j|.

Uniform routing differs from self-attention routing in three things: the squash, the priors, and the couplings. Without
priors this differs from uniform routing in the squash alone, and with them from self-attention routing in the couplings
alone. Shapes: B batch, I children, J parents, D parent size.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.registry import ROUTINGS
from capsbench.routing.contract import (
    Activations,
    LayerSize,
    Poses,
    Routed,
    Routing,
    Weight,
    capsule_lengths,
    exponential_squash,
)
from capsbench.routing.votes import Votes, as_votes, votes_of


@ROUTINGS.register("uniform_attention", title="attention with equal couplings", loss="margin")
class UniformAttentionRouting(Routing):
    """Self-attention routing with equal couplings; learns the log priors B [I, J], or nothing."""

    def __init__(self, size: LayerSize, *, learn_priors: bool = True):
        super().__init__()
        self.priors = nn.Parameter(torch.zeros(size.children, size.parents)) if learn_priors else None

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `uniform_attention_routing`."""
        return uniform_attention_routing(votes_of(poses, weight), self.priors)


def uniform_attention_routing(
    votes: Float[Tensor, "batch children parents dim"] | Votes, priors: Float[Tensor, "children parents"] | None
) -> Routed:
    """Route with c_ij = 1/J: votes [B, I, J, D], priors [I, J] or None -> poses [B, J, D] and the rest.

    Activations are the lengths of the poses. The couplings [B, I, J] given back are C, whose rows sum to one; the votes
    were weighted by C + B.
    """
    votes = as_votes(votes)
    if priors is None:
        sums = votes.total() / votes.parents  # s [J, B, D]
    else:
        sums = votes.weighted_sum((priors.T + 1 / votes.parents).unsqueeze(1))  # of c + b [J, 1, I], for all samples
    poses = exponential_squash(sums).transpose(0, 1)  # u [B, J, D]
    return Routed(poses, capsule_lengths(poses), votes.uniform())
