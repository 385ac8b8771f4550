"""Self-routing of Hahn, Pyeon, Kim 2019, *Self-Routing Capsule Networks* (NeurIPS), section "Self-Routing".

Every child decides alone where it goes, by a small linear network on its own pose, as the gate of a mixture of experts
does; no agreement between children, no iterations. Symbols of the paper: i a child, j a parent, u_i the child's pose,
û_j|i its vote W^pose_ij u_i, a_i and a_j activations, W^route_i the child's routing network, c_ij the coupling:

    c_ij = softmax(W^route_i u_i)_j,   a_j = sum_i c_ij a_i / sum_i a_i,   u_j = sum_i c_ij a_i û_j|i / sum_i c_ij a_i.

Shapes: B batch, I children, J parents, d and D the size of a child's and of a parent's pose.

From the authors' code (coder3000/SR-CapsNet, modules.py), not in these equations: a bias added to the logits of each
pair, and the start of both at zero, hence uniform. OURS: EPSILON in both denominators, so that values are finite, and
zero, where no child is active.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.registry import ROUTINGS
from capsbench.routing.contract import Activations, LayerSize, Poses, Routed, Routing, Weight
from capsbench.routing.kernels.moments import EPSILON
from capsbench.routing.votes import Votes, as_votes, votes_of


@ROUTINGS.register("self", title="self-routing", loss="share_likelihood")
class SelfRouting(Routing):
    """Self-routing; learns the routing network of each child, W^route [I, J, d] and a bias [I, J]."""

    def __init__(self, size: LayerSize):
        super().__init__()
        self.route = nn.Parameter(torch.zeros(size.children, size.parents, size.child_dim))
        self.bias = nn.Parameter(torch.zeros(size.children, size.parents))

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `self_routing`."""
        return self_routing(votes_of(poses, weight), poses, activations, self.route, self.bias)


def self_routing(
    votes: Float[Tensor, "batch children parents dim"] | Votes,
    inputs: Float[Tensor, "batch children child_dim"],
    activations: Float[Tensor, "batch children"],
    route: Float[Tensor, "children parents child_dim"],
    bias: Float[Tensor, "children parents"],
) -> Routed:
    """Route each child by its own pose.

    votes [B, I, J, D], inputs [B, I, d], activations [B, I] in [0, 1], route [I, J, d], bias [I, J]
    -> poses [B, J, D], activations [B, J], couplings [B, I, J].
    Rows of couplings sum to one, and so do the parents' activations of a sample: they are shares of what is active
    below, and their logarithm is the log-probability that the authors train with. Poses are not squashed.
    """
    logits = torch.einsum("ijc,bic->jbi", route, inputs) + bias.T.unsqueeze(1)  # W^route u [J, B, I]
    couplings = logits.softmax(dim=0)  # c [J, B, I]
    weights = couplings * activations  # c_ij a_i [J, B, I]
    mass = weights.sum(dim=2)  # [J, B]
    parent_activations = mass / (activations.sum(dim=1) + EPSILON)  # a [J, B]
    shares = weights / (mass.unsqueeze(2) + EPSILON)  # [J, B, I], of each parent over its children
    poses = as_votes(votes).weighted_sum(shares)  # u_j [J, B, D]
    return Routed(poses.transpose(0, 1), parent_activations.T, couplings.permute(1, 2, 0))
