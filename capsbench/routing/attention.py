"""Self-attention routing of Mazzia, Salvetti, Chiaberge 2021, *Efficient-CapsNet: Capsule Network with Self-Attention
Routing*, section on self-attention routing; details from the authors' code (EscVM/Efficient-CapsNet, utils/layers.py).

No iterations: a vote counts as much as it agrees with all votes for the same parent. Symbols of the paper: n^l a child
(i here), n^l+1 a parent (j), Û the votes, A_j = Û_j Û_j^T / sqrt(D) the agreements [I, I] of the votes for parent j,
C the couplings, B learnt log priors, s_j the weighted sum:

    c_ij = exp(sum_i' A_jii') / sum_k exp(sum_i' A_kii'),   s_j = sum_i (c_ij + b_ij) û_ij,   u_j = squash(s_j),

with the softmax over PARENTS. The sum over i' has the vote itself in it, and is one product with the sum of all votes:
A is never stored. Shapes: B batch, I children, J parents, D parent size.

As in the code: D is the size of a vote, that is of a parent; B is added after the softmax, in spite of its name, and
starts at zero. OURS: the length in the squash is softened, where theirs has no gradient at a sum of zero.
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


@ROUTINGS.register("attention", loss="margin")
class AttentionRouting(Routing):
    """Self-attention routing; learns the log priors B [I, J]."""

    def __init__(self, size: LayerSize):
        super().__init__()
        self.priors = nn.Parameter(torch.zeros(size.children, size.parents))

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `attention_routing`."""
        return attention_routing(votes_of(poses, weight), self.priors)


def attention_routing(
    votes: Float[Tensor, "batch children parents dim"] | Votes, priors: Float[Tensor, "children parents"]
) -> Routed:
    """Route by the agreement of each vote with all: votes [B, I, J, D], priors [I, J] -> poses [B, J, D] and the rest.

    Activations are the lengths of the poses. The couplings [B, I, J] given back are C, whose rows sum to one; the votes
    were weighted by C + B, which the learnt B lets sum to anything, below zero included.
    """
    votes = as_votes(votes)
    agreements = votes.agreement(votes.total()) / votes.dim**0.5  # A summed over i' [J, B, I]
    couplings = agreements.softmax(dim=0)  # C [J, B, I]
    sums = votes.weighted_sum(couplings + priors.T.unsqueeze(1))  # s [J, B, D]
    poses = exponential_squash(sums).transpose(0, 1)  # [B, J, D]
    return Routed(poses, capsule_lengths(poses), couplings.permute(1, 2, 0))
