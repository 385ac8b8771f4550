"""A control of EM routing: its couplings, with the poses and activations of dynamic routing.

OURS, to tell what its couplings do from what its activations do. Symbols as in `em`: R_ij are the assignments of its
last iteration, V_ij the votes. In place of its means and activations, as in dynamic and uniform routing,

    v_j = squash(sum_i R_ij V_ij),   a_j = |v_j|.

The sums are not weighted by activations, as those means are. One iteration is uniform routing.
Shapes: B batch, I children, J parents, H elements of a pose.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from capsbench.registry import ROUTINGS
from capsbench.routing.contract import Activations, Poses, Routed, Weight, capsule_lengths, squash, stored_votes
from capsbench.routing.em import AUTHORS, EMRouting, EMSettings, route_by_em


@ROUTINGS.register("ablated_em", title="ablated EM", loss="margin")
class AblatedEMRouting(EMRouting):
    """EM's couplings alone; learns its betas [J], which act on couplings only: not with one iteration."""

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `ablated_em_routing`."""
        beta_u, beta_a = self.betas()
        return ablated_em_routing(stored_votes(poses, weight), activations, beta_u, beta_a, self.settings)


def ablated_em_routing(
    votes: Float[Tensor, "batch children parents dim"],
    activations: Float[Tensor, "batch children"],
    beta_u: Float[Tensor, " parents"],
    beta_a: Float[Tensor, " parents"],
    settings: EMSettings = AUTHORS,
) -> Routed:
    """Sum votes by the assignments of `route_by_em`, whose arguments these are, and squash the sums.

    votes [B, I, J, H], activations [B, I] in [0, 1], beta_u and beta_a [J]
    -> poses [B, J, H], their lengths [B, J], couplings [B, I, J]. Raises ValueError where iterations < 1.
    """
    couplings = route_by_em(votes, activations, beta_u, beta_a, settings).couplings
    poses = squash(torch.einsum("bij,bijh->bjh", couplings, votes))
    return Routed(poses, capsule_lengths(poses), couplings)
