"""A control of sparse routing: each child sends to `keep` parents that were drawn once, in equal shares.

OURS, to tell what it does that a child sends to a few parents from what it does that routing chooses them. Symbols as
in `dynamic`: û_j|i a vote, c_ij = 1 / `keep` a coupling to one of the drawn parents, otherwise 0,

    v_j = squash(sum_i c_ij û_j|i),   a_j = |v_j|.

As in `random_couplings`, the draw is fixed by `coupling_seed`, which is not the seed of a run, and is the same for all
samples, in training and at test. Shapes: B batch, I inputs, J outputs, D output size.
"""

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from capsbench.registry import ROUTINGS, Count, Seed
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
from capsbench.routing.votes import Votes, as_votes, votes_of


@ROUTINGS.register("random_selection", title="random selection", loss="margin")
class RandomSelectionRouting(Routing):
    """Equal couplings to `keep` parents per child, drawn once; learns nothing."""

    def __init__(self, size: LayerSize, *, keep: Count = 2, coupling_seed: Seed = 0):
        super().__init__()
        self.keep, self.coupling_seed = keep, coupling_seed

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `random_selection_routing`."""
        return random_selection_routing(votes_of(poses, weight), self.keep, self.coupling_seed)


def random_selection_routing(
    votes: Float[Tensor, "batch children parents dim"] | Votes, keep: int = 2, coupling_seed: int = 0
) -> Routed:
    """Send each input to `keep` drawn outputs: votes [B, I, J, D] -> poses [B, J, D], activations [B, J], couplings.

    Activations are the lengths of the poses. Couplings [B, I, J] are the same for every sample. `coupling_seed` and
    `keep` alone decide them; keep >= J is uniform routing. Raises ValueError where keep < 1.
    """
    if keep < 1:
        raise ValueError(f"each input keeps at least 1 coupling, not {keep}")
    votes = as_votes(votes)
    couplings = _drawn(votes.children, votes.parents, keep, coupling_seed, votes.like.device, votes.like.dtype)
    poses = squash(votes.weighted_sum(couplings.T.unsqueeze(1))).transpose(0, 1)  # v [B, J, D]
    return Routed(poses, capsule_lengths(poses), couplings.expand(votes.batch, -1, -1))


@functools.lru_cache(maxsize=16)  # drawn on the CPU: not at each step, which would wait for a GPU
def _drawn(
    children: int, parents: int, keep: int, coupling_seed: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    with torch.inference_mode(False):  # training may take what a test has drawn
        generator = torch.Generator().manual_seed(coupling_seed)  # its own: the run's random numbers stay as they are
        kept = min(keep, parents)
        chosen = torch.rand(children, parents, generator=generator).topk(kept, dim=1).indices  # [I, keep]
        couplings = torch.zeros(children, parents).scatter_(1, chosen, 1 / kept)  # c [I, J]
        return couplings.to(device, dtype)
