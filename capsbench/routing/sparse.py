"""Sparse top-k dynamic routing: dynamic routing in which a child sends only to its `keep` best parents.

OURS, made of two parts: Procedure 1 of Sabour, Frosst, Hinton 2017 (S17), and in place of its softmax the one of the
sparsely-gated mixture of experts of Shazeer et al. 2017 (section 2.1, Softmax(KeepTopK(b, k))): logits below a child's
k-th highest count as minus infinity, which is to drop those couplings and share theirs out over the ones that stay.
Symbols as in `dynamic`. Shapes: B batch, I inputs, J outputs, D output size.

Differences from Shazeer et al.: no noise, and parents that TIE with the k-th are kept too. At the first iteration all
logits are zero, so that all parents tie and the start is S17's uniform one; a choice among equals would depend on their
order. Public code that prunes routing drops an edge for good; here all logits continue to collect agreement, so that a
parent dropped at one iteration may return at the next.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from capsbench.registry import ROUTINGS, Count, Iterations
from capsbench.routing.contract import (
    Activations,
    LayerSize,
    Poses,
    Routed,
    Routing,
    Weight,
    capsule_lengths,
    check_iterations,
    squash,
)
from capsbench.routing.votes import Votes, as_votes, votes_of


@ROUTINGS.register("sparse")
class SparseRouting(Routing):
    """Sparse top-k dynamic routing; learns nothing."""

    def __init__(self, size: LayerSize, *, iterations: Iterations = 3, keep: Count = 2):
        super().__init__()
        self.iterations, self.keep = iterations, keep

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `sparse_routing`."""
        return sparse_routing(votes_of(poses, weight), self.iterations, self.keep)


def sparse_routing(
    votes: Float[Tensor, "batch children parents dim"] | Votes, iterations: int = 3, keep: int = 2
) -> Routed:
    """Route votes, each input to its `keep` outputs of highest logit.

    votes [B, I, J, D] -> poses [B, J, D], activations [B, J], couplings [B, I, J] of the last iteration.
    Activations are the lengths of the poses. Rows of couplings sum to one and have, but for ties, `keep` entries above
    zero.
    One iteration is the uniform average; keep >= J is dynamic routing. At keep = 1 couplings are 0 or 1 and have no
    gradient, hence the default of 2. Raises ValueError where iterations < 1 or keep < 1.
    """
    check_iterations(iterations)
    if keep < 1:
        raise ValueError(f"each input keeps at least 1 coupling, not {keep}")
    votes = as_votes(votes)
    poses = squash(votes.total() / votes.parents)  # v [J, B, D], of logits b that are all zero
    couplings, logits = None, None
    for _ in range(iterations - 1):
        agreements = votes.agreement(poses)  # û · v, of dropped outputs too
        logits = agreements if logits is None else logits + agreements  # b [J, B, I]
        couplings = _share_over_best(logits, keep)
        poses = squash(votes.weighted_sum(couplings))
    poses = poses.transpose(0, 1)  # [B, J, D]
    last = votes.uniform() if couplings is None else couplings.permute(1, 2, 0)
    return Routed(poses, capsule_lengths(poses), last)


def _share_over_best(logits: Tensor, keep: int) -> Tensor:
    """Softmax of [J, B, I] over the `keep` highest logits of each input and those equal to the last of them."""
    lowest_kept = logits.detach().topk(min(keep, len(logits)), dim=0).values[-1:]  # [1, B, I]
    return logits.masked_fill(logits < lowest_kept, -torch.inf).softmax(dim=0)
