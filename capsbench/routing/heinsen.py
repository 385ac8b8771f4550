"""Heinsen's routing: Heinsen 2019 (He19), *An Algorithm for Routing Capsules in All Domains*, Algorithm 1.

EM routing in which a parent's activation is what it gains by the data it uses, less what it loses by the data it
ignores, in place of a description length. Symbols of the paper: i an input capsule, j an output capsule, ch the
elements of a pose, V_ijch the vote, a_i and a_j scores, f the logistic function, R_ij the routing probability (an
input's add up to one over outputs), D_ij^use = f(a_i) R_ij and D_ij^ign = f(a_i) - D_ij^use the data used and ignored,
beta_ij^use and beta_ij^ign the net benefit of using and the net cost of ignoring, mu_jch and sigma_jch each output's
Gaussian. Shapes: B batch, I inputs, J outputs, D = c x h elements of a pose, flattened: routing sees no difference.

Scores are log-odds in the paper, and every use of a score by the next layer goes through f. Here activations in [0, 1]
come in and go out, an activation being f(score), and the scores go out beside them as `logits`: the paper's class
scores, which are the logits of its softmax cross-entropy. Within the loop ln f is taken of the score itself.

Where this departs from the paper or the author's code (glassroom/heinsen_routing, the version of 2020):
- The number of inputs is fixed, with betas [I, J]; the paper's form for any number, betas [J], is left out.
- The vote's bias B_ijch belongs to the layer that makes votes, not to routing.
- The code adds 1e-5 both to the data used, where it divides, and to the variance. Here the variance's is
  `variance_floor` and the other is that of `moments`, 1e-7.
- The code's later additions, soft k-means and one beta for both, are not in the paper and left out.
Betas start at zero, as in the paper: all activations are then 1/2, and the first step moves the betas alone.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.registry import ROUTINGS, Iterations, Positive
from capsbench.routing.contract import (
    Activations,
    LayerSize,
    Poses,
    Routed,
    RoutedByLogits,
    Routing,
    Weight,
    check_iterations,
    stored_votes,
)
from capsbench.routing.kernels.moments import EPSILON, GaussianVotes


@ROUTINGS.register("heinsen", title="Heinsen", loss="cross_entropy")
class HeinsenRouting(Routing):
    """Heinsen's routing; learns what using and ignoring each input gains and costs, beta_use and beta_ign [I, J]."""

    def __init__(self, size: LayerSize, *, iterations: Iterations = 3, variance_floor: Positive = 1e-5):
        super().__init__()
        self.iterations, self.variance_floor = iterations, variance_floor
        self.beta_use = nn.Parameter(torch.zeros(size.children, size.parents))
        self.beta_ign = nn.Parameter(torch.zeros(size.children, size.parents))

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `heinsen_routing`."""
        votes = stored_votes(poses, weight)
        return heinsen_routing(votes, activations, self.beta_use, self.beta_ign, self.iterations, self.variance_floor)


def heinsen_routing(
    votes: Float[Tensor, "batch children parents dim"],
    activations: Float[Tensor, "batch children"],
    beta_use: Float[Tensor, "children parents"],
    beta_ign: Float[Tensor, "children parents"],
    iterations: int = 3,
    variance_floor: float = 1e-5,
) -> Routed:
    """Route every input to every output: He19, Algorithm 1.

    votes [B, I, J, D], activations [B, I] in [0, 1], beta_use and beta_ign [I, J]
    -> means [B, J, D], activations [B, J] in [0, 1], routing probabilities [B, I, J] of the last iteration, and as
    `logits` the scores [B, J].
    One iteration is a D-step and an M-step from the uniform start 1/J. `variance_floor` is added to the variance. Half
    precision is computed in float32 and returned in the dtype of the votes. Raises ValueError where iterations < 1.
    """
    check_iterations(iterations)
    given = votes.dtype
    with torch.autocast(votes.device.type, enabled=False):
        votes, activations, beta_use, beta_ign = (
            x.to(torch.promote_types(given, torch.float32)) for x in (votes, activations, beta_use, beta_ign)
        )
        votes = votes.permute(0, 2, 3, 1).contiguous()  # V [B, J, D, I]
        data = GaussianVotes(votes, sums=2 * iterations - 1)
        beta_use, beta_ign = beta_use.T, beta_ign.T  # [J, I]
        activations = activations.unsqueeze(1)  # f(a_i) [B, 1, I]

        means = variances = scores = votes.new_empty(0)  # none before the first M-step
        probabilities = votes.new_full(votes[:, :, 0].shape, 1 / votes.shape[1])  # R [B, J, I], uniform
        for iteration in range(iterations):
            if iteration > 0:  # E-step: R_ij = f(a_j) P_ij / sum of these, P_ij = N(V_ij; mu_j, sigma_j^2)
                distances = data.distances(means, 0.5 / variances)  # [B, J, I]
                log_output = F.logsigmoid(scores) - 0.5 * variances.log().sum(dim=2)  # [B, J]
                probabilities = (log_output.unsqueeze(2) - distances).softmax(dim=1)

            # D-step: what each output uses and ignores of each input
            used = activations * probabilities  # [B, J, I]
            ignored = activations - used

            # M-step
            scores = (beta_use * used - beta_ign * ignored).sum(dim=2)  # a_j [B, J]
            means, squares = data.moments(used)  # mu [B, J, D]
            variances = squares / (used.sum(dim=2, keepdim=True) + EPSILON) + variance_floor  # sigma^2 [B, J, D]
    couplings = probabilities.transpose(1, 2).to(given)
    return RoutedByLogits(means.to(given), scores.to(given), couplings)
