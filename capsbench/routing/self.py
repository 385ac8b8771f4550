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
from torch import Tensor

from capsbench.routing.moments import EPSILON

LEARNT: dict[str, tuple[str, float]] = {"route": ("IJd", 0.0), "bias": ("IJ", 0.0)}


def self_routing(
    votes: Tensor, inputs: Tensor, activations: Tensor, route: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Route each child by its own pose.

    votes [B, I, J, D], inputs [B, I, d], activations [B, I] in [0, 1], route [I, J, d], bias [I, J]
    -> (poses [B, J, D], activations [B, J], couplings [B, I, J]).
    Rows of couplings sum to one, and so do the parents' activations of a sample: they are shares of what is active
    below, and their logarithm is the log-probability that the authors train with. Poses are not squashed.
    """
    logits = torch.einsum("ijc,bic->bij", route, inputs) + bias  # W^route u [B, I, J]
    couplings = logits.softmax(dim=2)  # c [B, I, J]
    weights = couplings * activations.unsqueeze(2)  # c_ij a_i [B, I, J]
    mass = weights.sum(dim=1)  # [B, J]
    parent_activations = mass / (activations.sum(dim=1, keepdim=True) + EPSILON)  # a [B, J]
    shares = weights / (mass.unsqueeze(1) + EPSILON)  # [B, I, J], of each parent over its children
    poses = torch.einsum("bij,bijd->bjd", shares, votes)  # u_j [B, J, D]
    return poses, parent_activations, couplings
