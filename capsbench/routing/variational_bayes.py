"""Variational Bayes routing of Ribeiro, Leontidis, Kollias 2020 (R20), Algorithm 1.

R20: *Capsule Routing via Variational Bayes*, AAAI 2020. Where EM routing fits one Gaussian a parent, this keeps a
distribution over each parent's mean and precision and over the shares of the parents, so that a parent with a single
vote has no variance of zero. Symbols of the paper: i a child, j a parent, V_j|i the vote, a_i and a_j activations,
r_ij the responsibility of parent j for child i, R_j = sum_i r_ij a_i the mass,
    pi ~ Dirichlet(alpha_0),   mu_j ~ Normal(m_0, (kappa_0 Lambda_j)^-1),   Lambda_j ~ Wishart(Psi_0, nu_0),
alpha_j, m_j, kappa_j, Psi_j, nu_j the same of the posterior q, and H_j the entropy of the parent's Gaussian.
Shapes: B batch, I children, J parents, D elements of a pose. Matrix poses are flattened.

The diagonal variant, which is the authors' default: of the Wishart's D x D scale matrix the diagonal alone is kept
(no matrix to invert for each parent of each sample), while E[ln |Lambda|] has its D degrees of freedom as before. The
full matrix is left out.

The authors' code (fabio-deep/Variational-Capsule-Routing) is followed where it says more than the paper, and for the
activation, logistic(beta_a - (exp(E[ln pi_j]) H_j + beta_u)): a parent is active that has a large share of the data and
a small entropy (where H_j is positive, a larger share makes it less active). The paper's own equation 14 was not at
hand; a note in that code names a cost multiplied by R_j as another form, which is left out. In this one the betas act
through their difference alone, as a bias of the class.
Where this departs from the code:
- It standardises the logits of the activations, and the poses, over the batch (BatchNorm without learnt factors): less
  the mean, divided by the deviation, so that the betas cancel. Its loss is the cross-entropy of the activations. Here a
  sample does not depend on its batch mates. Poses are left as they are. The cost exp(E[ln pi_j]) H_j is taken J times,
  so that an even share is 1 (a factor that their BatchNorm takes out again), and less its mean over the parents of the
  sample; the logit is multiplied by exp(`gain`), learnt from zero. Without the mean all activations start next to 1
  (smallNORB) or next to 0 (MNIST), without the factors they stay near 1/2.
- It divides by R_j, and by a sum of densities clamped at 1e-11. Here the sums are rearranged so that a parent
  without data falls back on its prior, and responsibilities are a softmax over log-densities.
- Responsibilities have E[ln pi_j] in the numerator too; a stored version of that code leaves it out there, so that a
  child's do not sum to one.
- The prior mean m_0 is zero, as there, and not an option.
"""

import math

import torch
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
from capsbench.routing.kernels.moments import GaussianVotes


@ROUTINGS.register("variational_bayes", title="variational Bayes", loss="cross_entropy")
class VariationalBayesRouting(Routing):
    """Variational Bayes routing; learns beta_a, beta_u and the gain of the parents' logits, all [J]."""

    def __init__(
        self,
        size: LayerSize,
        *,
        iterations: Iterations = 3,
        concentration: Positive = 1.0,
        mean_strength: Positive = 1.0,
        inverse_scale: Positive = 1.0,
        extra_degrees: Positive = 1.0,
    ):
        super().__init__()
        self.iterations = iterations
        self.priors = (concentration, mean_strength, inverse_scale, extra_degrees)
        self.beta_a = nn.Parameter(torch.zeros(size.parents))
        self.beta_u = nn.Parameter(torch.zeros(size.parents))
        self.gain = nn.Parameter(torch.zeros(size.parents))

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `variational_bayes_routing`."""
        votes = stored_votes(poses, weight)
        learnt = (self.beta_a, self.beta_u, self.gain)
        return variational_bayes_routing(votes, activations, *learnt, self.iterations, *self.priors)


def variational_bayes_routing(  # noqa: PLR0913 (the symbols of the paper)
    votes: Float[Tensor, "batch children parents dim"],
    activations: Float[Tensor, "batch children"],
    beta_a: Float[Tensor, " parents"],
    beta_u: Float[Tensor, " parents"],
    gain: Float[Tensor, " parents"],
    iterations: int = 3,
    concentration: float = 1.0,
    mean_strength: float = 1.0,
    inverse_scale: float = 1.0,
    extra_degrees: float = 1.0,
) -> Routed:
    """Route every child to every parent: R20, Algorithm 1, with diagonal precisions.

    votes [B, I, J, D], activations [B, I] in [0, 1], beta_a, beta_u and gain [J]
    -> posterior means [B, J, D], activations [B, J], responsibilities [B, I, J] behind the last posterior; a child's
    add up to one over parents; `logits` [B, J] of the activations.
    One iteration is one update of the posterior from the uniform start 1/J. The priors, with the authors' values as
    defaults: `concentration` alpha_0, `mean_strength` kappa_0, `inverse_scale` the diagonal of Psi_0^-1,
    `extra_degrees` nu_0 - D. Half precision is computed in float32 and returned in the dtype of the votes.
    Raises ValueError where iterations < 1, or where a prior is none: the first three must be positive, the last > -1.
    """
    check_iterations(iterations)
    if min(concentration, mean_strength, inverse_scale) <= 0 or extra_degrees <= -1:
        raise ValueError(
            "concentration, mean_strength and inverse_scale must be positive and extra_degrees above -1, not "
            f"{concentration}, {mean_strength}, {inverse_scale} and {extra_degrees}"
        )
    given = votes.dtype
    with torch.autocast(votes.device.type, enabled=False):
        votes, activations, beta_a, beta_u, gain = (
            x.to(torch.promote_types(given, torch.float32)) for x in (votes, activations, beta_a, beta_u, gain)
        )
        num_parents, dim = votes.shape[2:]
        votes = votes.permute(0, 2, 3, 1).contiguous()  # V [B, J, D, I]
        data = GaussianVotes(votes, sums=2 * iterations - 1)
        below = torch.arange(dim, dtype=votes.dtype, device=votes.device)  # 0 ... D - 1
        responsibilities = votes.new_full(votes[:, :, 0].shape, 1 / num_parents)  # r [B, J, I], uniform

        means = scales = votes.new_empty(0)  # none before the first posterior
        strengths = degrees = log_share = log_precision = votes.new_empty(0)
        for iteration in range(iterations):
            if iteration > 0:  # q(z): ln r_ij = E[ln pi_j] + E[ln N(V_j|i; mu_j, Lambda_j^-1)], up to a constant
                distances = degrees.unsqueeze(2) * data.distances(means, scales)  # [B, J, I]
                log_parent = log_share + 0.5 * (log_precision - dim / strengths)  # [B, J]
                responsibilities = (log_parent.unsqueeze(2) - 0.5 * distances).softmax(dim=1)

            # q(pi, mu, Lambda), from the data r_ij a_i assigned to each parent
            weights = responsibilities * activations.unsqueeze(1)  # [B, J, I]
            mass = weights.sum(dim=2)  # R [B, J]
            concentrations = concentration + mass  # alpha [B, J]
            strengths = mean_strength + mass  # kappa [B, J]
            degrees = dim + extra_degrees + mass  # nu [B, J]
            weighted_means, squares = data.moments(weights)  # [B, J, D]
            share = (mass / strengths).unsqueeze(2)  # of the data in the mean; the rest is the prior's
            means = share * weighted_means  # m [B, J, D]
            scales = 1 / (inverse_scale + squares + mean_strength * share * weighted_means.square())  # Psi [B, J, D]

            log_share = concentrations.digamma() - concentrations.sum(dim=1, keepdim=True).digamma()  # E[ln pi_j]
            log_precision = (0.5 * (degrees.unsqueeze(2) - below)).digamma() + math.log(2) + scales.log()
            log_precision = log_precision.sum(dim=2)  # E[ln |Lambda_j|] [B, J]

        entropies = 0.5 * (dim * math.log(2 * math.pi * math.e) - log_precision)  # H [B, J]
        relative_shares = num_parents * log_share.exp()  # 1 for an even share
        costs = relative_shares * entropies
        costs = costs - costs.mean(dim=1, keepdim=True)  # in place of their BatchNorm
        parent_logits = gain.exp() * (beta_a - (costs + beta_u))  # of a_j [B, J]
    couplings = responsibilities.transpose(1, 2).to(given)
    return RoutedByLogits(means.to(given), parent_logits.to(given), couplings)
