"""EM routing of matrix capsules by the kernels of a GPU, from poses and transforms: votes are never stored.

The same procedure as in `em`, whose form with stored votes is the reference. Symbols and settings are explained there.
Shapes: B batch, C child positions, T child types, P parent positions, KK places in the kernel of each, N = KK * T, J
parents. A fully connected layer has one parent position, which sees all child positions.
"""

from jaxtyping import Float
from torch import Tensor

from capsbench.routing.contract import check_iterations
from capsbench.routing.em import AUTHORS, EMSettings
from capsbench.routing.kernels.forms import counts_launches, takes_plain_forms
from capsbench.routing.kernels.windows import Windows


def takes_kernels(poses: Tensor, transforms: Tensor) -> bool:
    """Tell whether a GPU takes the kernels for these poses [..., 16] and transforms [N, J, 4, 4]."""
    if counts_launches():
        return transforms.shape[2:] == (4, 4)
    if not poses.is_cuda or takes_plain_forms():
        return False
    from capsbench.routing.kernels.fused_em import runs_here  # imports Triton

    return runs_here(poses, transforms)


def matrix_em_routing(
    poses: Float[Tensor, "batch cells types 16"],
    activations: Float[Tensor, "batch cells types"],
    transforms: Float[Tensor, "maps parents 4 4"],
    windows: Windows,
    betas: tuple[Float[Tensor, " parents"], Float[Tensor, " parents"]],
    settings: EMSettings = AUTHORS,
    offsets: Float[Tensor, "places 16"] | None = None,
    keep: bool = False,
) -> tuple[
    Float[Tensor, "batch positions parents 16"],
    Float[Tensor, "batch positions parents"],
    Float[Tensor, "batch positions children parents"] | None,
]:
    """Route by EM, votes made in registers -> means [B, P, J, 16], logits of the activations [B, P, J], assignments.

    Args:
        poses: 4x4 matrices M, row by row, [B, C, T, 16].
        activations: in [0, 1], [B, C, T].
        transforms: W [N, J, 4, 4] with N in the order (place, type), or [T, J, 4, 4] where places share them: a vote is
            M W.
        windows: which children each parent position sees, and what competes for them.
        betas: beta_u and beta_a, [J] each.
        settings: as in `conv_em_routing`.
        offsets: added to the votes of each place, [KK, 16].
        keep: return the assignments [B, P, N, J] of the last iteration too, in place of None.

    Raises ValueError where iterations < 1.
    """
    from capsbench.routing.kernels.fused_em import Children, Gaussians, Step, iterate

    check_iterations(settings.iterations)
    positions = (len(poses), windows.positions)
    children = Children(poses.contiguous(), activations.contiguous(), transforms.flatten(2), offsets)
    gaussians: Gaussians | None = None
    for iteration in range(settings.iterations):
        damped = iteration > 0 or settings.damp_first_mean
        temperature = settings.inverse_temperature * (1 - settings.annealing ** (iteration + 1))  # lambda
        step = Step(settings.damping if damped else 0.0, settings.variance_floor, temperature)
        last = iteration == settings.iterations - 1
        gaussians, logits, shares = iterate(children, gaussians, betas, windows, step, keep and last)
    assert gaussians is not None
    assignments = shares.unflatten(0, positions) if keep else None
    return gaussians.means.unflatten(0, positions), logits.unflatten(0, positions), assignments
