"""EM routing of Hinton, Sabour, Frosst 2018, *Matrix Capsules with EM Routing* (H18), Procedure 1, in two forms.

Symbols of the paper: i a child, j a parent, h an element of a pose, V_ijh the vote, a_i and a_j activations,
R_ij the assignment of child i to parent j, mu_jh and sigma_jh mean and standard deviation of parent j's Gaussian,
beta_u what a vote without an explanation costs, beta_a what an active parent saves, lambda the inverse temperature.
Shapes: B batch, I children, J parents, H elements; where children lie on a grid: C child positions, T child types,
P parent positions, K x K the kernel, N = K*K*T the children of one parent.

Where the paper is silent this follows the authors' code (google-research, capsule_em): lambda grows with the
iteration as inverse_temperature x (1 - annealing^(t+1)), `annealing` 0.95; `variance_floor` is ADDED to the variance;
the cost of a parent is not divided by its number of children. Their code has log sigma^2 in the cost where the paper
has log sigma, so that their inverse temperature of 0.01 is 0.02 here. And it departs from the paper in three ways not
followed here: in convolutional layers it normalises assignments over the positions of each parent type alone, starts
them at 1/types, and damps the first mean, towards zero.

beta_a acts through lambda alone: learnt in its own size (as in `capsnet`), it hardly moves. `Betas` in
capsbench.models.matrix_capsnet has units in which it does.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from capsbench.registry import ROUTINGS, Count, Fraction, Positive
from capsbench.routing.contract import (
    Activations,
    LayerSize,
    Poses,
    Routed,
    Routing,
    Weight,
    check_iterations,
    stored_votes,
)
from capsbench.routing.kernels.moments import EPSILON, squared_distances, weighted_moments


@dataclass(frozen=True)
class EMSettings:
    """The settings of EM routing in every network; the defaults are those of the authors' code.

    `em_routing` on its own has other defaults, which programs that call it rest on.
    """

    iterations: int = 3
    inverse_temperature: float = 0.02
    damping: float = 0.1
    variance_floor: float = 5e-4
    annealing: float = 0.95


AUTHORS = EMSettings()


@ROUTINGS.register("em", title="EM")
class EMRouting(Routing):
    """EM routing; learns beta_u and beta_a [J]. The options are explained in the head of this file."""

    def __init__(
        self,
        size: LayerSize,
        *,
        iterations: Count = AUTHORS.iterations,
        inverse_temperature: Positive = AUTHORS.inverse_temperature,
        damping: Fraction = AUTHORS.damping,
        variance_floor: Positive = AUTHORS.variance_floor,
        annealing: Fraction = AUTHORS.annealing,
    ):
        super().__init__()
        self.settings = EMSettings(iterations, inverse_temperature, damping, variance_floor, annealing)
        self.beta_u = nn.Parameter(torch.zeros(size.parents))
        self.beta_a = nn.Parameter(torch.zeros(size.parents))

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `em_routing`."""
        votes = stored_votes(poses, weight)
        return em_routing(votes, activations, self.beta_u, self.beta_a, **vars(self.settings))


def em_routing(  # noqa: PLR0913 (the symbols of the paper; other programs call it)
    votes: Float[Tensor, "batch children parents dim"],
    activations: Float[Tensor, "batch children"],
    beta_u: Float[Tensor, " parents"],
    beta_a: Float[Tensor, " parents"],
    iterations: int = 3,
    inverse_temperature: float = 0.01,
    damping: float = 0.0,
    variance_floor: float = 1e-4,
    annealing: float = 0.95,
) -> Routed:
    """Route every child to every parent: H18, Procedure 1.

    votes [B, I, J, H], activations [B, I] in [0, 1], beta_u [J], beta_a [J]
    -> means [B, J, H], activations [B, J], assignments [B, I, J], which are those of the last M-step.
    One iteration is one M-step from the uniform start 1/J. From the second on, `damping` of the previous mean stays
    in the new one (the authors' code: 0.1). With `annealing` 0 the inverse temperature is the same throughout. Half
    precision is computed in float32 and returned in the dtype of the votes.
    Raises ValueError where iterations < 1.
    """

    def share(log_likelihood: Tensor) -> Tensor:  # [B, 1, J, I]
        return log_likelihood.softmax(dim=2)

    settings = EMSettings(iterations, inverse_temperature, damping, variance_floor, annealing)
    means, parent_activations, assignments = _route(
        votes.unsqueeze(1), activations.unsqueeze(1), beta_u, beta_a, share, settings
    )
    return Routed(means.squeeze(1), parent_activations.squeeze(1), assignments.squeeze(1))


def conv_em_routing(
    votes: Float[Tensor, "batch positions children parents dim"],
    activations: Float[Tensor, "batch child_positions child_types"],
    children: Int[Tensor, "positions places"],
    beta_u: Float[Tensor, " parents"],
    beta_a: Float[Tensor, " parents"],
    settings: EMSettings = AUTHORS,
) -> tuple[
    Float[Tensor, "batch positions parents dim"],
    Float[Tensor, "batch positions parents"],
    Float[Tensor, "batch positions children parents"],
]:
    """Route the children on a grid to the parents whose receptive fields hold them.

    votes [B, P, N, J, H] with N in the order (place in the kernel, child type), activations [B, C, T], children int64
    [P, K*K]: the child position at each place of each parent position's kernel
    -> (means [B, P, J, H], activations [B, P, J], assignments [B, P, N, J]).
    A child's assignments sum to one over ALL parents that it feeds, of every type at every position, and start
    uniform over them: a child at the border feeds fewer and starts higher. With one parent position that is
    `em_routing`. Raises ValueError where iterations < 1.
    """
    child_positions = activations.shape[1]

    def share(log_likelihood: Tensor) -> Tensor:
        return _share_over_positions(log_likelihood, children, child_positions)

    gathered = activations[:, children].flatten(2)  # [B, P, N]
    return _route(votes, gathered, beta_u, beta_a, share, settings)


def _route(
    votes: Tensor,  # [B, P, N, J, H]
    activations: Tensor,  # [B, P, N]
    beta_u: Tensor,
    beta_a: Tensor,
    share: Callable[[Tensor], Tensor],  # unnormalised log-probabilities [B, P, J, N] -> assignments [B, P, J, N]
    settings: EMSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    check_iterations(settings.iterations)
    given = votes.dtype
    with torch.autocast(votes.device.type, enabled=False):
        votes, activations, beta_u, beta_a = (
            x.to(torch.promote_types(given, torch.float32)) for x in (votes, activations, beta_u, beta_a)
        )
        positions = votes.shape[:2]
        votes = votes.transpose(2, 3).flatten(0, 1).contiguous()  # V [B * P, J, N, H]
        beta_u = beta_u.unsqueeze(1)  # [J, 1]
        assignments = share(votes.new_zeros(votes.shape[:3]).unflatten(0, positions))  # R, uniform

        means = variances = parent_logits = votes.new_empty(0)  # none before the first M-step
        for iteration in range(settings.iterations):
            if iteration > 0:  # E-step: p_ij = N(V_ij; mu_j, sigma_j^2), R_ij = a_j p_ij / sum of these
                distances = squared_distances(votes, means, 0.5 / variances)  # [B * P, J, N]
                log_parent = F.logsigmoid(parent_logits) - 0.5 * variances.log().sum(dim=2)  # [B * P, J]
                log_likelihood = log_parent.unsqueeze(2) - distances  # up to a constant, the same for all parents
                assignments = share(log_likelihood.unflatten(0, positions))  # [B, P, J, N]

            # M-step: each parent's Gaussian, from the data R_ij a_i assigned to it
            weights = (assignments * activations.unsqueeze(2)).flatten(0, 1)  # [B * P, J, N]
            mass = weights.sum(dim=2, keepdim=True)  # [B * P, J, 1]
            weighted_means, squares = weighted_moments(votes, weights)  # [B * P, J, H]
            new_means = torch.lerp(weighted_means, means, settings.damping) if iteration > 0 else weighted_means
            # the variance about the new mean, which damping has moved off the weighted one
            squares = squares + mass * (weighted_means - new_means).square()
            means, variances = new_means, squares / (mass + EPSILON) + settings.variance_floor
            costs = (beta_u + 0.5 * variances.log()) * mass  # [B * P, J, H]
            temperature_term = settings.inverse_temperature * (1 - settings.annealing ** (iteration + 1))  # lambda
            parent_logits = temperature_term * (beta_a - costs.sum(dim=2))  # [B * P, J]

        parent_activations = parent_logits.sigmoid()
    return (
        means.unflatten(0, positions).to(given),
        parent_activations.unflatten(0, positions).to(given),
        assignments.transpose(2, 3).to(given),
    )


def _share_over_positions(log_likelihood: Tensor, children: Tensor, child_positions: int) -> Tensor:
    """Softmax of [B, P, J, N] over the parents, of all types and positions, that each child feeds.

    Types first, in place; then a log-sum-exp over parent positions, as sums into the children's own grid [B, C, T].
    """
    log_likelihood = log_likelihood.unflatten(3, (children.shape[1], -1))  # [B, P, J, K*K, T]
    over_types = log_likelihood.logsumexp(dim=2)  # [B, P, K*K, T]
    index = children.flatten()  # [P * K*K]
    entries = over_types.flatten(1, 2)  # [B, P * K*K, T]: one for each parent position that a child feeds
    grid = (entries.shape[0], child_positions, entries.shape[2])  # [B, C, T]
    with torch.no_grad():  # the shift by the highest entry leaves the result as it is
        highest = entries.new_full(grid, -torch.inf)
        highest = highest.scatter_reduce(1, index[:, None].expand_as(entries), entries, "amax")[:, index]
    total = entries.new_zeros(grid).index_add(1, index, (entries - highest).exp())[:, index]
    log_total = (total.log() + highest).view_as(over_types)  # gathered before the log: no child without a parent
    return (log_likelihood - log_total.unsqueeze(2)).exp().flatten(3)
