"""Error under attack: images changed by at most eps in every pixel, so that a network errs.

Of each image the smallest swept eps is kept at which an attack succeeded; its change is allowed under every larger eps
too. Hence no error falls as eps grows, and "all" counts an image as soon as any attack fooled it. Attacked are the
network's own loss of the classes, as papers do, and the margin of its scores, which stays a slope where that loss is
flat. Signs of masked gradients (Athalye, Carlini, Wagner 2018) are images without any gradient, images that only
attacks without gradients fool, and images that are still right at an eps of 0.5, where one grey image is allowed to
take the place of all.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from capsbench.errors import InputError
from capsbench.evaluation.chosen import chosen_images, whole_images
from capsbench.evaluation.context import Context
from capsbench.evaluation.result import curve, not_applicable
from capsbench.evaluation.victim import Attack, Draws, Victim, attacks_on, loss_gradients, victim_of
from capsbench.models import Network
from capsbench.registry import PROTOCOLS, Count

TABLE_EPS = 0.1  # always swept: the smallest of H18, and what the table shows
BATCH = 100
ZERO = 1e-12  # a gradient whose largest entry is below is none
WITHOUT_GRADIENTS = ("grey", "square", "transfer")  # of the network that is attacked
PANELS = {
    "fgsm": "FGSM", "bim": "BIM", "pgd": "PGD", "square": "square attack", "transfer": "transfer",
    "all": "all attacks",
}  # fmt: skip
Eps = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)]


@PROTOCOLS.register(
    "adversarial",
    split="test",
    title="error under attack, at an eps of 0.1 of the pixel range",
    beside="transfer_from",
    draws="curves",
    shows={
        "fgsm_error": "FGSM (%)", "all_error": "all attacks (%)",
        "half_eps": "half are wrong at eps",
        "targeted_success": "chosen class reached (%)", "restarts_alone": "by restarts alone, at the worst eps (%)",
        "zero_gradient": "loss without gradient (%)", "masked": "without gradients alone, at the worst eps (%)",
    },
)  # fmt: skip
def adversarial(
    context: Context,
    *,
    images: Count = 500,
    eps: Eps = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5),
    steps: Count = 10,
    restarts: Count = 1,
    queries: Count = 100,
    transfer_from: str | None = None,
) -> dict[str, Any]:
    """Attack a network with FGSM, BIM, PGD, the square attack, and images made with another variant's network.

    Args:
        context: the run.
        images: how many of the test, see `chosen_images`.
        eps: the largest changes of a pixel in [0, 1], before a data set's standardisation; 0 and 0.1 are always there.
        steps: of BIM, PGD and transfer.
        restarts: of PGD, from random points, beside the start from the image itself.
        queries: of the square attack.
        transfer_from: a variant of the same experiment; its run of the same seed gives the network.
    """
    task, rng = context.task(), context.rng()
    chosen = chosen_images(task, images)
    sweep = sorted({0.0, TABLE_EPS, *eps})
    other, transfer = _source(context, transfer_from)
    classes = context.run.data.facts.num_classes
    drawn = Draws.drawn(whole_images(task, chosen), task.labels[chosen], classes, (restarts, queries), rng)
    parts = []
    for numbers in torch.arange(len(chosen), device=chosen.device).split(BATCH):
        draws = drawn.of(numbers)
        victim = victim_of(context.model, task, chosen[numbers], draws.targets)
        source = None if other is None else victim_of(other, task, chosen[numbers], draws.targets)
        parts.append(_attacked(victim, source, steps, draws, sweep))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    alone = joined.pop("fgsm alone")
    gradients = {name: joined.pop(f"gradient of {name}") for name in ("class_loss", "margin")}
    return {"status": "ok", "images": len(chosen)} | summarised(joined, sweep) | {
        "zero_gradient": _share(gradients["class_loss"] < ZERO),
        "zero_gradient_of_margin": _share(gradients["margin"] < ZERO),
        "fgsm_error_at_each_eps_alone": [_share(column) for column in alone.T],
        "transfer": transfer, "chosen": chosen.cpu().numpy(),
    }  # fmt: skip


def _source(context: Context, variant: str | None) -> tuple[Network | None, dict[str, Any]]:
    """Return the network that images are made with, and what the result says of it."""
    if variant is None:
        return None, not_applicable("transfer_from names no variant")
    if variant == context.run.variant:
        return None, not_applicable("transfer_from names this variant")
    try:
        return context.trained(variant), {"status": "ok", "from": variant}
    except InputError as error:
        return None, not_applicable(str(error))


def _attacked(
    victim: Victim, source: Victim | None, steps: int, draws: Draws, sweep: Sequence[float]
) -> dict[str, np.ndarray]:
    """Attack a batch: the smallest eps by attack [B], FGSM's successes [B, E], largest entries of gradients [B]."""
    gradients = loss_gradients(victim)
    attacks = attacks_on(victim, gradients, steps, draws, source)
    wrong, hit = victim.fooled(victim.pixels, victim.all), victim.hit(victim.pixels, victim.all)
    found = {
        name: smallest_eps(attack, hit if name == "targeted" else wrong, sweep) for name, attack in attacks.items()
    }
    for ending in ("", "_margin"):  # PGD's first start is the image itself
        found[f"pgd{ending}"] = np.minimum(found[f"pgd{ending}"], found[f"bim{ending}"])
    found["fgsm alone"] = torch.stack([attacks["fgsm"](victim.all, eps) for eps in sweep], dim=1).cpu().numpy()
    sizes = {f"gradient of {name}": values.abs().flatten(1).amax(dim=1) for name, values in gradients.items()}
    return found | {name: values.cpu().numpy() for name, values in sizes.items()}


def smallest_eps(attack: Attack, unattacked: torch.Tensor, sweep: Sequence[float]) -> np.ndarray:
    """Return the smallest eps at which an attack succeeds on each image, infinite where it never does: [B].

    Args:
        attack: on a batch of B images; those on which it succeeded it gets no more.
        unattacked: on which images there is success at eps 0, bool [B].
        sweep: eps, ascending.
    """
    smallest = torch.where(unattacked, 0.0, torch.inf).double()
    for eps in sweep:
        left = smallest.isinf().nonzero().flatten()
        if eps > 0 and len(left):
            smallest[left[attack(left, eps)]] = eps
    return smallest.cpu().numpy()


def summarised(smallest: Mapping[str, np.ndarray], sweep: Sequence[float]) -> dict[str, Any]:
    """Return errors in % by attack and eps, and what they say of masked gradients.

    `masked`: the share of images that only attacks without the network's gradients fool, at the eps where it is
    highest. `restarts_alone`: the share that PGD fools from random points and not from the image, likewise.

    Args:
        smallest: by attack, [N]: the smallest eps at which it succeeds.
        sweep: eps, ascending, with TABLE_EPS.
    """
    # an image that is predicted as a class that it does not show is wrong, so a targeted success is one of `white`
    white = np.min([values for name, values in smallest.items() if name not in WITHOUT_GRADIENTS], axis=0)
    black = np.min([values for name, values in smallest.items() if name in WITHOUT_GRADIENTS], axis=0)
    near = np.minimum(smallest["bim"], smallest["bim_margin"])
    far = np.minimum(smallest["pgd"], smallest["pgd_margin"])
    errors = {name: [_share(values <= eps) for eps in sweep] for name, values in smallest.items()}
    errors["all"] = [_share(np.minimum(white, black) <= eps) for eps in sweep]
    masked = [_share((black <= eps) & (eps < white)) for eps in sweep]
    restarted = [_share((far <= eps) & (eps < near)) for eps in sweep]
    shown, success = sweep.index(TABLE_EPS), errors.pop("targeted")
    return {
        "error": errors["all"][0],
        **{f"{name}_error": values[shown] for name, values in errors.items()},
        "targeted_success": success[shown],
        "half_eps": half_eps(sweep, errors["all"]),
        "masked": max(masked),
        "restarts_alone": max(restarted),
        "eps": list(sweep), "error_by_eps": errors, "targeted_success_by_eps": success, "masked_by_eps": masked,
        "restarts_alone_by_eps": restarted,
        "smallest_eps": np.minimum(white, black),
        "curves": [
            curve(title, sweep, errors[name], x_label="eps (of the pixel range)", y_label="error (%)")
            for name, title in PANELS.items() if name in errors
        ],
    }  # fmt: skip


def half_eps(sweep: Sequence[float], errors: Sequence[float]) -> float | None:
    """Return the eps at which half the images are wrong, between two of the sweep by a straight line; None: at none."""
    if errors[-1] < 50:
        return None
    return float(np.interp(50.0, errors, sweep)) if errors[0] < 50 else 0.0


def _share(chosen: np.ndarray) -> float:
    """Return in %, of bool [N]."""
    return 100 * int(chosen.sum()) / len(chosen)
