"""Self-attention routing with centred couplings: a vote is weighted by how far its coupling is above or below 1/J.

Symbols as in `attention`: i a child, j a parent, û_ij a vote, c_ij a coupling by agreement, s_j the weighted sum, u_j a
pose. OURS, after what the learnt priors b_ij of Mazzia, Salvetti, Chiaberge 2021 become on pairs of digits, where their
mean is near -1/J after 15 epochs (docs/surprises/): nothing is learnt, and

    s_j = sum_i (c_ij - 1/J) û_ij,   u_j = (1 - exp(-|s_j|)) * s_j / |s_j|.

The weights of a child add up to zero over its parents. Shapes: B batch, I children, J parents, D parent size.
"""

from jaxtyping import Float
from torch import Tensor

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


@ROUTINGS.register("centred_attention", loss="margin")
class CentredAttentionRouting(Routing):
    """Self-attention routing with centred couplings; learns nothing."""

    def __init__(self, size: LayerSize):
        super().__init__()

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `centred_attention_routing`."""
        return centred_attention_routing(votes_of(poses, weight))


def centred_attention_routing(votes: Float[Tensor, "batch children parents dim"] | Votes) -> Routed:
    """Route by the agreement of each vote with all: votes [B, I, J, D] -> poses [B, J, D] and the rest.

    Activations are the lengths of the poses. The couplings [B, I, J] given back are C, whose rows sum to one; the votes
    were weighted by C - 1/J. With one parent all poses are zero.
    """
    votes = as_votes(votes)
    couplings = (votes.agreement(votes.total()) / votes.dim**0.5).softmax(dim=0)  # C [J, B, I]
    sums = votes.weighted_sum(couplings - 1 / votes.parents)  # s [J, B, D]
    poses = exponential_squash(sums).transpose(0, 1)  # [B, J, D]
    return Routed(poses, capsule_lengths(poses), couplings.permute(1, 2, 0))
