"""A control of Heinsen's routing: its couplings, with the poses and activations of dynamic routing.

OURS, to tell what its couplings do from what its activations do. Symbols as in `heinsen`: R_ij are the routing
probabilities of its last iteration, V_ij the votes. In place of its means and scores, as in dynamic and uniform
routing,

    v_j = squash(sum_i R_ij V_ij),   a_j = |v_j|.

The sums are not weighted by activations, as those means are. One iteration is uniform routing.
Shapes: B batch, I inputs, J outputs, D elements of a pose.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from capsbench.registry import ROUTINGS
from capsbench.routing.contract import Activations, Poses, Routed, Weight, capsule_lengths, squash, stored_votes
from capsbench.routing.heinsen import HeinsenRouting, heinsen_routing


@ROUTINGS.register("ablated_heinsen", title="ablated Heinsen", loss="margin")
class AblatedHeinsenRouting(HeinsenRouting):
    """Heinsen's couplings alone; learns betas [I, J], which act on couplings only: not with one iteration."""

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `ablated_heinsen_routing`."""
        votes = stored_votes(poses, weight)
        betas = self.beta_use, self.beta_ign
        return ablated_heinsen_routing(votes, activations, *betas, self.iterations, self.variance_floor)


def ablated_heinsen_routing(
    votes: Float[Tensor, "batch children parents dim"],
    activations: Float[Tensor, "batch children"],
    beta_use: Float[Tensor, "children parents"],
    beta_ign: Float[Tensor, "children parents"],
    iterations: int = 3,
    variance_floor: float = 1e-5,
) -> Routed:
    """Sum votes by the couplings of `heinsen_routing`, whose arguments these are, and squash the sums.

    votes [B, I, J, D], activations [B, I] in [0, 1], beta_use and beta_ign [I, J]
    -> poses [B, J, D], their lengths [B, J], couplings [B, I, J]. Raises ValueError where iterations < 1.
    """
    couplings = heinsen_routing(votes, activations, beta_use, beta_ign, iterations, variance_floor).couplings
    poses = squash(torch.einsum("bij,bijd->bjd", couplings, votes))
    return Routed(poses, capsule_lengths(poses), couplings)
