"""Routing by inverted dot-product attention of Tsai, Srivastava, Goh, Salakhutdinov 2020 (T20), Procedure 1.

T20: *Capsules with Inverted Dot-Product Attention Routing*, ICLR 2020. Attention has queries choose among keys; here it
is inverted, and the parents compete for each child. Symbols of the paper: i a child of layer L, j a parent of layer
L+1, v_ij the vote, p_j the parent's pose, a_ij = p_j · v_ij the agreement, r_ij the routing coefficient (a child's add
up to one over parents), p_j = LayerNorm(sum_i r_ij v_ij). Shapes: B batch, I children, J parents, D elements of a pose.

Where this departs from the paper:
- Routing is sequential: a layer takes all its iterations before the next one starts. The paper's is concurrent (every
  layer takes one iteration at a time, from the poses that its neighbours then have), which needs the whole network at
  once. The authors' code holds both, and there they are the same at one iteration.
- LayerNorm leaves poses whose lengths say nothing of presence, and the paper has no activations: its class logit is one
  linear read-out of the class pose, shared by the classes. `readout` is that read-out, in whatever layer this routes
  to, and the activation its sigmoid, so that `activations.logit()` is the paper's class logit. The read-out's bias is
  readout · shift.
- LayerNorm's scale is 1 + `gain`, so that gain and shift start at zero.
The authors' code (apple/ml-capsules-inverted-attention-routing) divides the agreement by the square root of D, where
the paper's Procedure 1 does not: `scale_agreement`. Both put LayerNorm on the primary capsules too,
in place of a squash; those are not made here.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.registry import ROUTINGS, Iterations
from capsbench.routing.contract import (
    Activations,
    LayerSize,
    Poses,
    Routed,
    RoutedByLogits,
    Routing,
    Weight,
    check_iterations,
)
from capsbench.routing.votes import Votes, as_votes, votes_of


@ROUTINGS.register("inverted_dot_product", loss="cross_entropy")
class InvertedDotProductRouting(Routing):
    """Inverted dot-product attention; learns gain and shift of LayerNorm and the read-out, all [D].

    They are shared by all parents of a layer, as in the authors' code.
    """

    def __init__(self, size: LayerSize, *, iterations: Iterations = 2, scale_agreement: bool = False):
        super().__init__()
        self.iterations, self.scale_agreement = iterations, scale_agreement
        self.gain = nn.Parameter(torch.zeros(size.parent_dim))
        self.shift = nn.Parameter(torch.zeros(size.parent_dim))
        self.readout = nn.Parameter(nn.init.trunc_normal_(torch.zeros(size.parent_dim), std=0.1, a=-0.2, b=0.2))

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `inverted_dot_product_routing`."""
        votes = votes_of(poses, weight)
        return inverted_dot_product_routing(
            votes, self.gain, self.shift, self.readout, self.iterations, self.scale_agreement
        )


def inverted_dot_product_routing(
    votes: Float[Tensor, "batch children parents dim"] | Votes,
    gain: Float[Tensor, " dim"],
    shift: Float[Tensor, " dim"],
    readout: Float[Tensor, " dim"],
    iterations: int = 2,
    scale_agreement: bool = False,
) -> Routed:
    """Route votes: T20, Procedure 1.

    votes [B, I, J, D], gain, shift and readout [D]
    -> poses [B, J, D], activations [B, J] in [0, 1] with their logits, couplings [B, I, J] of the last iteration.
    One iteration is the uniform average over parents, as all poses start at zero: r = 1/J. The paper's CIFAR networks
    take two. With `scale_agreement` the agreement is divided by sqrt(D).
    Raises ValueError where iterations < 1.
    """
    check_iterations(iterations)
    votes = as_votes(votes)
    scale = votes.dim**-0.5 if scale_agreement else 1.0

    def normalised(sums: Tensor) -> Tensor:  # p [J, B, D]
        return F.layer_norm(sums, (votes.dim,)) * (1 + gain) + shift

    poses, couplings = normalised(votes.total() / votes.parents), None  # no pose to agree with: r = 1/J
    for _ in range(iterations - 1):
        couplings = (scale * votes.agreement(poses)).softmax(dim=0)  # r [J, B, I]: parents compete for each child
        poses = normalised(votes.weighted_sum(couplings))
    poses = poses.transpose(0, 1)  # [B, J, D]
    last = votes.uniform() if couplings is None else couplings.permute(1, 2, 0)
    return RoutedByLogits(poses, poses @ readout, last)
