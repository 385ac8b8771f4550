"""EM routing of Hinton, Sabour, Frosst 2018, *Matrix Capsules with EM Routing* (H18), Procedure 1, in two forms.

Symbols of the paper: i a child, j a parent, h an element of a pose, V_ijh the vote, a_i and a_j activations,
R_ij the assignment of child i to parent j, mu_jh and sigma_jh mean and standard deviation of parent j's Gaussian,
beta_u what a vote without an explanation costs, beta_a what an active parent saves, lambda the inverse temperature.
Shapes: B batch, I children, J parents, H elements; where children lie on a grid: C child positions, T child types,
P parent positions, K x K the kernel, N = K*K*T the children of one parent.

Where the paper is silent this follows the authors' code (google-research, capsule_em): lambda grows with the
iteration as inverse_temperature x (1 - annealing^(t+1)); a class layer, one without parents above it, has
`class_temperature_factor` of that; `variance_floor` is ADDED to the variance; `damping` of the previous mean stays in
the new one, and `damp_first_mean` draws the first one, which has none before it, towards zero by as much; the cost of
a parent is not divided by its number of children. Their code has log sigma^2 in the cost where the paper has
log sigma, so that their inverse temperature of 0.01 is 0.02 here.

On a grid, code and paper differ in what competes for a child: see `conv_em_routing`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from capsbench.registry import ROUTINGS, Fraction, Iterations, Positive, Said
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
from capsbench.routing.kernels.competition import share_over_parents, share_over_positions
from capsbench.routing.kernels.moments import EPSILON, GaussianVotes

# beta_u = BETA_U_UNIT x a learnt number, so that 1 is the entropy of a unit Gaussian.
BETA_U_UNIT = (math.log(2 * math.pi) + 1) / 2
# beta_a = -CLASS_LOGIT_UNIT / inverse temperature of the class layer x a learnt number.
CLASS_LOGIT_UNIT = 12.5

Competition = Literal["positions", "parents"]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class EMSettings:
    """The options of EM routing. The defaults are those of `em` in a study, except for `damp_first_mean`: true there.

    `em_routing` on its own has other defaults, which programs that call it rest on. beta_u and beta_a: where the betas
    of a class layer start, in the units of `Betas`.
    """

    iterations: int = 3
    inverse_temperature: float = 0.02
    damping: float = 0.1
    variance_floor: float = 5e-4
    annealing: float = 0.95
    damp_first_mean: bool = False
    class_temperature_factor: float = 0.25
    beta_u: float = 2.0
    beta_a: float = 1.0

    def of_class_layer(self) -> "EMSettings":
        """Return the settings of a class layer, whose inverse temperature is lower."""
        return replace(self, inverse_temperature=self.class_temperature_factor * self.inverse_temperature)


AUTHORS = EMSettings(damp_first_mean=True)


class Betas(nn.Module):
    """The learnt beta_u [J] and beta_a [J] of EM routing, each kept as a number of about 1 times a unit.

    They act through a small inverse temperature, and Adam moves all weights at one speed: beta_a in its own size
    would stand still. Its unit is -logit_unit / inverse_temperature, so that a parent without data starts alike
    whatever the inverse temperature. At 0.02, the authors' 0.01 in the terms of this code, units and starts are theirs.

    Args:
        parents: J.
        inverse_temperature: that of the layer.
        u: where the number for beta_u starts; 0 starts beta_u at 0, and so for `a`.
        a: where the number for beta_a starts.
        logit_unit: beta_a x inverse temperature at a = 1, without its sign.
    """

    def __init__(self, parents: int, inverse_temperature: float, u: float, a: float, logit_unit: float):
        super().__init__()
        self.beta_a_unit = -logit_unit / inverse_temperature
        self.u = nn.Parameter(torch.full((parents,), float(u)))
        self.a = nn.Parameter(torch.full((parents,), float(a)))

    @classmethod
    def of_class_layer(cls, parents: int, settings: EMSettings) -> "Betas":
        """Return the betas of a class layer; settings: those of the layer, see `EMSettings.of_class_layer`."""
        return cls(parents, settings.inverse_temperature, settings.beta_u, settings.beta_a, CLASS_LOGIT_UNIT)

    def forward(self) -> tuple[Float[Tensor, " parents"], Float[Tensor, " parents"]]:
        """Nothing -> beta_u [J], beta_a [J]."""
        return BETA_U_UNIT * self.u, self.beta_a_unit * self.a


@ROUTINGS.register("em", title="EM", loss="spread")
class EMRouting(Routing):
    """EM routing of a class layer, as the authors start theirs. The options are explained in the head of this file.

    Learns beta_u and beta_a [J] in units, see `Betas`. Both started at 0 (beta_u 0, beta_a 0), which says that coding
    a vote costs nothing, class capsules start near 1. At the default temperature they learn, and on smallNORB faster;
    at higher ones they saturate within ten steps, and nothing is learnt after that.
    """

    def __init__(  # noqa: PLR0913 (options)
        self,
        size: LayerSize,
        *,
        iterations: Annotated[Iterations, Said("3", "3", "H18, Table 1 has 1, 2, 3 and 5")] = AUTHORS.iterations,
        inverse_temperature: Annotated[
            Positive, Said("silent", "0.01, on a cost with the log of variances", "0.01 there is 0.02 here")
        ] = AUTHORS.inverse_temperature,
        class_temperature_factor: Annotated[
            Positive, Said("silent", "1/4", "inverse temperature of the class layer over that of the others")
        ] = AUTHORS.class_temperature_factor,
        damping: Annotated[Fraction, Said("none", "0.1 of the previous mean stays")] = AUTHORS.damping,
        damp_first_mean: Annotated[
            bool, Said("no", "yes: 0.9 of the first mean", "damping acts on the first mean too, from zero")
        ] = AUTHORS.damp_first_mean,
        variance_floor: Annotated[Positive, Said("none", "0.0005, added")] = AUTHORS.variance_floor,
        annealing: Annotated[
            Fraction, Said("silent", "lambda x (1 - 0.95^(t+1)) at iteration t = 0, 1, ...")
        ] = AUTHORS.annealing,
        beta_u: Annotated[
            Finite,
            Said(
                "learnt, no start",
                "2 x 1.419",
                "start of the class layer; the option counts units of 1.419, half of log(2 pi e)",
            ),
        ] = AUTHORS.beta_u,
        beta_a: Annotated[
            Finite,
            Said(
                "learnt, no start",
                "-2500",
                "start of the class layer; the option counts units of -12.5 / its inverse temperature",
            ),
        ] = AUTHORS.beta_a,
    ):
        super().__init__()
        self.settings = EMSettings(
            iterations,
            inverse_temperature,
            damping,
            variance_floor,
            annealing,
            damp_first_mean,
            class_temperature_factor,
            beta_u,
            beta_a,
        ).of_class_layer()
        self.betas = Betas.of_class_layer(size.parents, self.settings)

    def forward(self, poses: Poses, activations: Activations, weight: Weight) -> Routed:
        """Route by `route_by_em`."""
        beta_u, beta_a = self.betas()
        return route_by_em(stored_votes(poses, weight), activations, beta_u, beta_a, self.settings)


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
    -> means [B, J, H], activations [B, J], assignments [B, I, J], which are those of the last M-step; as `logits`
    [B, J] those of the activations.
    One iteration is one M-step from the uniform start 1/J. From the second on, `damping` of the previous mean stays
    in the new one (the authors' code: 0.1). With `annealing` 0 the inverse temperature is the same throughout. Half
    precision is computed in float32 and returned in the dtype of the votes.
    Raises ValueError where iterations < 1.
    """
    settings = EMSettings(iterations, inverse_temperature, damping, variance_floor, annealing)
    return route_by_em(votes, activations, beta_u, beta_a, settings)


def route_by_em(
    votes: Float[Tensor, "batch children parents dim"],
    activations: Float[Tensor, "batch children"],
    beta_u: Float[Tensor, " parents"],
    beta_a: Float[Tensor, " parents"],
    settings: EMSettings = AUTHORS,
) -> Routed:
    """Route as `em_routing`, with settings. The inverse temperature is used as it stands in them, without a factor."""

    def share(log_likelihood: Tensor) -> Tensor:  # [B, 1, J, I]
        return log_likelihood.softmax(dim=2)

    means, logits, assignments = _route(
        votes.unsqueeze(1), activations.unsqueeze(1), beta_u, beta_a, share, 1 / votes.shape[2], settings
    )
    return RoutedByLogits(means.squeeze(1), logits.squeeze(1), assignments.squeeze(1))


def conv_em_routing(
    votes: Float[Tensor, "batch positions children parents dim"],
    activations: Float[Tensor, "batch child_positions child_types"],
    children: Int[Tensor, "positions places"],
    beta_u: Float[Tensor, " parents"],
    beta_a: Float[Tensor, " parents"],
    settings: EMSettings = AUTHORS,
    competition: Competition = "parents",
    rivals: Int[Tensor, "positions places"] | None = None,
) -> tuple[
    Float[Tensor, "batch positions parents dim"],
    Float[Tensor, "batch positions parents"],
    Float[Tensor, "batch positions children parents"],
]:
    """Route the children on a grid to the parents whose receptive fields hold them.

    votes [B, P, N, J, H] with N in the order (place in the kernel, child type), activations [B, C, T], children int64
    [P, K*K]: the child position at each place of each parent position's kernel
    -> (means [B, P, J, H], activations [B, P, J], assignments [B, P, N, J]).

    competition `parents`, as the paper: a child's assignments sum to one over ALL parents that it feeds, of every type
    at every position, and start uniform over them: a child at the border feeds fewer and starts higher. With one parent
    position that is `em_routing`. `positions`, as the authors' code: from the second iteration on they sum to one over
    the positions of EACH parent type, so to J over all parents; they start at 1/J at every position.

    rivals int64 [P, K*K], under `positions`: a number for each entry, which is normalised with those of the same
    number instead of those of the same child. Where the paper's assignments add up over the parents of a child, theirs
    then do over rivals. Raises ValueError where iterations < 1, and for rivals under `parents`.
    """
    if competition == "parents" and rivals is not None:
        raise ValueError("all parents of a child compete for it under 'parents'; rivals belong to 'positions'")
    groups = children if rivals is None else rivals
    number = activations.shape[1] if rivals is None else int(rivals.max()) + 1
    start: Tensor | float = 1 / votes.shape[3]
    share_out = share_over_parents if competition == "parents" else share_over_positions
    if competition == "parents":
        fed = torch.bincount(children.flatten(), minlength=number)[children]  # [P, K*K]
        types = activations.shape[2]
        start = start / fed.to(torch.promote_types(votes.dtype, torch.float32)).repeat_interleave(types, dim=1)[:, None]

    def share(log_likelihood: Tensor) -> Tensor:
        return share_out(log_likelihood, groups, number)

    gathered = activations[:, children].flatten(2)  # [B, P, N]
    means, logits, assignments = _route(votes, gathered, beta_u, beta_a, share, start, settings)
    return means, logits.sigmoid(), assignments


def _route(
    votes: Tensor,  # [B, P, N, J, H]
    activations: Tensor,  # [B, P, N]
    beta_u: Tensor,
    beta_a: Tensor,
    share: Callable[[Tensor], Tensor],  # unnormalised log-probabilities [B, P, J, N] -> assignments [B, P, J, N]
    start: Tensor | float,  # the first assignments, [P, 1, N] or one number
    settings: EMSettings,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return means [B, P, J, H], logits of the activations [B, P, J], assignments [B, P, N, J]."""
    check_iterations(settings.iterations)
    given = votes.dtype
    with torch.autocast(votes.device.type, enabled=False):
        votes, activations, beta_u, beta_a = (
            x.to(torch.promote_types(given, torch.float32)) for x in (votes, activations, beta_u, beta_a)
        )
        positions = votes.shape[:2]
        votes = votes.permute(0, 1, 3, 4, 2).flatten(0, 1).contiguous()  # V [B * P, J, H, N]
        beta_u = beta_u.unsqueeze(1)  # [J, 1]
        assignments = votes.new_ones(votes[:, :, 0].shape).unflatten(0, positions) * start  # R [B, P, J, N], uniform
        data = GaussianVotes(votes, sums=2 * settings.iterations - 1)

        means, variances, parent_logits = votes.new_zeros(()), votes.new_empty(0), votes.new_empty(0)  # none yet
        for iteration in range(settings.iterations):
            if iteration > 0:  # E-step: p_ij = N(V_ij; mu_j, sigma_j^2), R_ij = a_j p_ij / sum of these
                distances = data.distances(means, 0.5 / variances)  # [B * P, J, N]
                log_parent = F.logsigmoid(parent_logits) - 0.5 * variances.log().sum(dim=2)  # [B * P, J]
                log_likelihood = log_parent.unsqueeze(2) - distances  # up to a constant, the same for all parents
                assignments = share(log_likelihood.unflatten(0, positions))  # [B, P, J, N]

            # M-step: each parent's Gaussian, from the data R_ij a_i assigned to it
            weights = (assignments * activations.unsqueeze(2)).flatten(0, 1)  # [B * P, J, N]
            mass = weights.sum(dim=2, keepdim=True)  # [B * P, J, 1]
            weighted_means, squares = data.moments(weights)  # [B * P, J, H]
            damped = iteration > 0 or settings.damp_first_mean
            new_means = torch.lerp(weighted_means, means, settings.damping) if damped else weighted_means
            # the variance about the new mean, which damping has moved off the weighted one
            squares = squares + mass * (weighted_means - new_means).square()
            means, variances = new_means, squares / (mass + EPSILON) + settings.variance_floor
            costs = (beta_u + 0.5 * variances.log()) * mass  # [B * P, J, H]
            temperature_term = settings.inverse_temperature * (1 - settings.annealing ** (iteration + 1))  # lambda
            parent_logits = temperature_term * (beta_a - costs.sum(dim=2))  # [B * P, J]
    return (
        means.unflatten(0, positions).to(given),
        parent_logits.unflatten(0, positions).to(given),
        assignments.transpose(2, 3).to(given),
    )
