"""Random routing, a control of Paik, Kwak, Kim 2019 (*Capsule Networks Need an Improved Routing Algorithm*): couplings
that are as uneven as routed ones may be, and know nothing of the votes.

Symbols as in `dynamic`: i an input, j an output, û_j|i a vote, b_ij a logit, c_ij a coupling, s_j the weighted sum, v_j
a pose. Shapes: B batch, I inputs, J outputs, D output size.

The paper's abstract has couplings assigned "randomly"; its full text was not at hand and we know of no public code.
OURS, then: how they are drawn (logits b_ij from a standard normal, then the softmax over outputs of Sabour, Frosst,
Hinton 2017, and their squash), and that they stay as drawn (fixed by `coupling_seed`, which is not the seed of a run;
the same for all samples, in training and at test). Couplings drawn afresh at each step would be noise on the votes, a
regulariser, and not a control of routing.
"""

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from capsbench.registry import ROUTINGS, Seed
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


@ROUTINGS.register("random")
class RandomRouting(Routing):
    """Random couplings, the same for every sample; learns nothing."""

    def __init__(self, size: LayerSize, *, coupling_seed: Seed = 0):
        super().__init__()
        self.coupling_seed = coupling_seed

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `random_routing`."""
        return random_routing(votes_of(poses, weight), self.coupling_seed)


def random_routing(votes: Float[Tensor, "batch children parents dim"] | Votes, coupling_seed: int = 0) -> Routed:
    """Route with couplings drawn once: votes [B, I, J, D] -> poses [B, J, D], activations [B, J], couplings [B, I, J].

    Activations are the lengths of the poses. Rows of couplings sum to one, and are the same for every sample. They
    belong to places: where inputs or outputs are permuted, they stay. `coupling_seed` alone decides them, on every
    device and in every precision, so that layers of the same I and J share them unless their seeds differ.
    """
    votes = as_votes(votes)
    couplings = _drawn(votes.children, votes.parents, coupling_seed, votes.like.device, votes.like.dtype)  # c [I, J]
    poses = squash(votes.weighted_sum(couplings.T.unsqueeze(1))).transpose(0, 1)  # v [B, J, D]
    return Routed(poses, capsule_lengths(poses), couplings.expand(votes.batch, -1, -1))


@functools.lru_cache(maxsize=16)  # drawn on the CPU: not at each step, which would wait for a GPU
def _drawn(children: int, parents: int, coupling_seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):  # training may take what a test has drawn
        generator = torch.Generator().manual_seed(coupling_seed)  # its own: the run's random numbers stay as they are
        logits = torch.randn(children, parents, dtype=torch.float32, generator=generator)  # b [I, J]
        return logits.softmax(dim=1).to(device, dtype)
