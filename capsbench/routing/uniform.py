"""Uniform routing, the control without routing of Paik, Kwak, Kim 2019 (*Capsule Networks Need an Improved Routing
Algorithm*): every input gives the same share to every output, whatever it votes.

Symbols as in `dynamic`: i an input, j an output, û_j|i a vote, c_ij a coupling, s_j the weighted sum, v_j a pose.
Shapes: B batch, I inputs, J outputs, D output size.

The paper's abstract has couplings assigned "uniformly"; its full text was not at hand. The squash is that of Sabour,
Frosst, Hinton 2017, so that this is their routing at one iteration, in value and in gradient.
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
    squash,
)
from capsbench.routing.votes import Votes, as_votes, votes_of


@ROUTINGS.register("uniform")
class UniformRouting(Routing):
    """Uniform couplings; learns nothing."""

    def __init__(self, size: LayerSize):
        super().__init__()

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `uniform_routing`."""
        return uniform_routing(votes_of(poses, weight))


def uniform_routing(votes: Float[Tensor, "batch children parents dim"] | Votes) -> Routed:
    """Route with c_ij = 1/J: votes [B, I, J, D] -> poses [B, J, D], activations [B, J], couplings [B, I, J].

    Activations are the lengths of the poses. Rows of couplings sum to one.
    """
    votes = as_votes(votes)
    poses = squash(votes.total() / votes.parents).transpose(0, 1)  # v [B, J, D]
    return Routed(poses, capsule_lengths(poses), votes.uniform())
