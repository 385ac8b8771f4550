"""Controls of self-attention routing: routing without its agreement, without its learnt priors, or without both.

Symbols as in `attention`: i a child, j a parent, û_ij a vote, c_ij a coupling, b_ij a learnt log prior, s_j the
weighted sum, u_j a pose. OURS: in the equations of Mazzia, Salvetti, Chiaberge 2021,

    s_j = sum_i (c_ij + b_ij) û_ij,   u_j = (1 - exp(-|s_j|)) * s_j / |s_j|,

c_ij = 1/J where there is no agreement, and b_ij = 0 where there are no priors. Without both, this differs from uniform
routing in the squash alone. Shapes: B batch, I children, J parents, D parent size.
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


@ROUTINGS.register("ablated_attention", loss="margin")
class AblatedAttentionRouting(Routing):
    """Self-attention routing with parts left out; learns the log priors B [I, J] if it has them."""

    def __init__(self, size: LayerSize, *, agreement: bool = False, priors: bool = True):
        super().__init__()
        self.agreement = agreement
        self.priors = nn.Parameter(torch.zeros(size.children, size.parents)) if priors else None

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `ablated_attention_routing`."""
        return ablated_attention_routing(votes_of(poses, weight), self.priors, self.agreement)


def ablated_attention_routing(
    votes: Float[Tensor, "batch children parents dim"] | Votes,
    priors: Float[Tensor, "children parents"] | None,
    agreement: bool,
) -> Routed:
    """Route by agreement or with c_ij = 1/J: votes [B, I, J, D], priors [I, J] or None -> poses [B, J, D] and the rest.

    Activations are the lengths of the poses. The couplings [B, I, J] given back are C, whose rows sum to one; the votes
    were weighted by C + B. With priors and agreement it is `attention_routing`.
    """
    votes = as_votes(votes)
    if agreement:
        couplings = (votes.agreement(votes.total()) / votes.dim**0.5).softmax(dim=0)  # C [J, B, I]
    else:
        couplings = votes.like.new_full((votes.parents, 1, votes.children), 1 / votes.parents)  # for all samples
    weights = couplings if priors is None else couplings + priors.T.unsqueeze(1)  # C + B
    poses = exponential_squash(votes.weighted_sum(weights)).transpose(0, 1)  # [B, J, D]
    return Routed(poses, capsule_lengths(poses), couplings.permute(1, 2, 0).expand(votes.batch, -1, -1))
