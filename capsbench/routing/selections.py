"""Two controls of sparse routing, for what it does that parents are chosen by agreement and for each image.

OURS. As under `random_selection` a child i sends to `keep` parents, in equal shares; û_j|i is a vote,
v_j = squash(sum_i c_ij û_j|i), a_j = |v_j|. They differ in how the parents are chosen:

    common    by agreement, for all images alike: the parents with the highest running mean of û_j|i · v'_j over the
              images of training, where v' are the poses under equal couplings
    redrawn   by a draw, for each image and pass anew; at test couplings are equal, which is what they are in the mean

Shapes: B batch, I inputs, J outputs, D output size.
"""

import torch
from torch import Tensor

from capsbench.registry import ROUTINGS, Count
from capsbench.routing.contract import (
    Activations,
    LayerSize,
    Poses,
    Routed,
    Routing,
    Weight,
    capsule_lengths,
    squash,
)
from capsbench.routing.votes import Votes, votes_of

MOMENTUM = 0.01  # of the running mean of agreements: it forgets within a few hundred steps


@ROUTINGS.register("common_selection", title="common selection", loss="margin")
class CommonSelectionRouting(Routing):
    """Each child sends to the `keep` parents with which it agrees most on average; learns nothing by gradients."""

    agreement: Tensor

    def __init__(self, size: LayerSize, *, keep: Count = 2):
        super().__init__()
        self.keep = keep
        self.register_buffer("agreement", torch.zeros(size.parents, size.children))  # mean of û_j|i · v'_j, [J, I]

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route poses u [B, I, d] through weight W [I, J, D, d]; in training take note of the agreements first."""
        votes = votes_of(poses, weight)
        if self.training:
            self._take_note(votes)
        couplings = shares_of_best(self.agreement, self.keep).to(votes.like.dtype)  # c [J, I]
        return _routed(votes, couplings.unsqueeze(1))

    @torch.no_grad()
    def _take_note(self, votes: Votes) -> None:
        found = votes.agreement(squash(votes.total() / votes.parents)).mean(dim=1)  # [J, I]
        self.agreement.lerp_(found.to(self.agreement.dtype), MOMENTUM)


@ROUTINGS.register("redrawn_selection", title="redrawn selection", loss="margin")
class RedrawnSelectionRouting(Routing):
    """In training `keep` parents per child, drawn for each image anew; at test all parents. Learns nothing."""

    def __init__(self, size: LayerSize, *, keep: Count = 2):
        super().__init__()
        self.keep = keep

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route poses u [B, I, d] through weight W [I, J, D, d]."""
        votes = votes_of(poses, weight)
        if not self.training:
            return _routed(votes, votes.like.new_full((votes.parents, 1, votes.children), 1 / votes.parents))
        drawn = torch.rand(votes.parents, votes.batch, votes.children, device=votes.like.device)
        return _routed(votes, shares_of_best(drawn, self.keep).to(votes.like.dtype))


def shares_of_best(logits: Tensor, keep: int) -> Tensor:
    """Return equal shares [J, ...] over the `keep` highest logits of each child and those equal to the last of them.

    Where all logits of a child are equal, as before training, all parents are kept. Raises ValueError where keep < 1.
    """
    if keep < 1:
        raise ValueError(f"each input keeps at least 1 coupling, not {keep}")
    kept = logits >= logits.topk(min(keep, len(logits)), dim=0).values[-1:]
    return kept / kept.sum(dim=0, keepdim=True)


def _routed(votes: Votes, couplings: Tensor) -> Routed:
    """Sum votes under couplings [J, B, I], or [J, 1, I] for all images."""
    poses = squash(votes.weighted_sum(couplings)).transpose(0, 1)  # v [B, J, D]
    return Routed(poses, capsule_lengths(poses), couplings.permute(1, 2, 0).expand(votes.batch, -1, -1))
