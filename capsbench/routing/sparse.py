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
    stored_votes,
)


@ROUTINGS.register("sparse")
class SparseRouting(Routing):
    """Sparse top-k dynamic routing; learns nothing."""

    def __init__(self, size: LayerSize, *, iterations: Iterations = 3, keep: Count = 2):
        super().__init__()
        self.iterations, self.keep = iterations, keep

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `sparse_routing`."""
        return sparse_routing(stored_votes(poses, weight), self.iterations, self.keep)


def sparse_routing(votes: Float[Tensor, "batch children parents dim"], iterations: int = 3, keep: int = 2) -> Routed:
    """Route stored votes, each input to its `keep` outputs of highest logit.

    votes [B, I, J, D] -> poses [B, J, D], activations [B, J], couplings [B, I, J] of the last iteration.
    Activations are the lengths of the poses. Rows of couplings sum to one and have, but for ties, `keep` entries above
    zero.
    One iteration is the uniform average; keep >= J is dynamic routing. At keep = 1 couplings are 0 or 1 and have no
    gradient, hence the default of 2. Raises ValueError where iterations < 1 or keep < 1.
    """
    check_iterations(iterations)
    if keep < 1:
        raise ValueError(f"each input keeps at least 1 coupling, not {keep}")
    logits = votes.new_zeros(votes.shape[:3])  # b [B, I, J]
    for _ in range(iterations - 1):
        poses = squash(_weighted_sum(_share_over_best(logits, keep), votes))  # v [B, J, D]
        logits = logits + torch.einsum("bijd,bjd->bij", votes, poses)  # the agreement û · v, of dropped outputs too
    couplings = _share_over_best(logits, keep)
    poses = squash(_weighted_sum(couplings, votes))
    return Routed(poses, capsule_lengths(poses), couplings)


def _share_over_best(logits: Tensor, keep: int) -> Tensor:
    """Softmax of [B, I, J] over the `keep` highest logits of each input and those equal to the last of them."""
    lowest_kept = logits.topk(min(keep, logits.shape[2]), dim=2).values[..., -1:]  # [B, I, 1]
    return logits.masked_fill(logits < lowest_kept, -torch.inf).softmax(dim=2)


def _weighted_sum(couplings: Tensor, votes: Tensor) -> Tensor:
    return torch.einsum("bij,bijd->bjd", couplings, votes)  # s [B, J, D]
