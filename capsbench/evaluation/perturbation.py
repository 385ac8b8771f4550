"""What each value of a class capsule's pose means: Figure 4 of Sabour, Frosst, Hinton 2017 (S17)."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from capsbench.data.tasks.task import Task
from capsbench.evaluation.context import Context
from capsbench.evaluation.result import curve, not_applicable
from capsbench.layers.decoders import Decoder
from capsbench.models import Network
from capsbench.registry import PROTOCOLS, Positive

STEPS = 11  # from -reach to +reach; the middle one leaves the pose as it is
MIDDLE = STEPS // 2
VISIBLE = 1 / 255  # one grey level

Perturbed = Float[Tensor, "images dim steps channels height width"]


@PROTOCOLS.register(
    "perturbation",
    split="test",
    draws="own",
    shows={
        "change": "change of a pixel (% of full brightness)",
        "strongest_change": "by the strongest value (%)",
        "dead_dimensions": "values without effect (%)",
    },
)
def perturbation(context: Context, *, reach: Positive = 0.25) -> dict[str, Any]:
    """Decode the winning capsule of one image per class with each value of its pose changed, see `perturbed_images`.

    The images are the samples of `reconstruction`: the first of each class. `change` is the mean absolute change of a
    pixel at -reach and +reach, over images and values of the pose, in % of full brightness; `change_by_dimension` has
    it for each value. A value has no effect where it changes no pixel of any image by a grey level. A pose that is not
    squashed may have values far larger than the reach, which then changes little.

    reach: what is added to a value at most. S17: 0.25, for capsules shorter than one.
    """
    indices, labels = first_of_each_class(context.task())
    images = context.task().eval_batch(indices, 0).images
    found = perturbed_images(context.model, images, reach)
    if found is None:
        return not_applicable("the network has no decoder of class capsules")
    perturbed, said = found
    change = changes(perturbed)  # [P, D]
    by_dimension = 100 * change.mean(dim=0)
    strongest = by_dimension.sort(descending=True).values.tolist()
    largest = (perturbed - perturbed[:, :, MIDDLE : MIDDLE + 1]).abs()[:, :, [0, -1]].amax(dim=(0, 2, 3, 4, 5))  # [D]
    return {
        "status": "ok",
        "change": float(by_dimension.mean()),
        "strongest_change": strongest[0],
        "dead_dimensions": 100 * float((largest < VISIBLE).double().mean()),
        "change_by_dimension": by_dimension.tolist(),
        "sample_labels": labels.tolist(),
        "sample_predictions": said.tolist(),
        "steps": np.linspace(-reach, reach, STEPS).round(6).tolist(),
        "perturbed": (perturbed * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy(),  # [P, D, 11, C, H, W]
        "curves": [
            curve(
                "effect of the values of a pose", range(1, len(strongest) + 1), strongest,
                x_label="value of the pose, the strongest first", y_label="mean change of a pixel (%)",
            )
        ],
    }  # fmt: skip


@torch.no_grad()
def perturbed_images(network: Network, images: Tensor, reach: float) -> tuple[Perturbed, Tensor] | None:
    """Decode the winning capsules of images with one value of the pose changed at a time.

    Args:
        network: in evaluation mode.
        images: as the network sees them, [P, C, H, W].
        reach: each value is changed by 11 steps from -reach to +reach.

    Returns:
        The decoded images in [0, 1], float [P, D, 11, C, H, W], the sixth of each eleven with the pose as it is, and
        the classes of the winning capsules, int64 [P]. None: the network has no decoder of class capsules.
    """
    decoder = getattr(network, "decoder", None)
    if not isinstance(decoder, Decoder):
        return None
    sizes: list[int] = []

    def decode_all(module: nn.Module, arguments: tuple[Any, ...], decoded: Tensor) -> Tensor:
        poses, scores, labels = arguments  # [P, K, D], [P, K], None
        rows = torch.arange(len(poses), device=poses.device)
        sizes.append(poses.shape[2])
        every = []
        # One batch for each change, of the size that the network decodes: other sizes may round differently.
        for dim in range(poses.shape[2]):
            for step in range(STEPS):
                changed = poses.clone()
                changed[rows, scores.argmax(dim=1), dim] += reach * (step - MIDDLE) / MIDDLE
                every.append(module.forward(changed, scores, labels))
        return torch.cat(every)  # [D * 11 * P, C, H, W]; what the network does after its decoder, it does to all

    hook = decoder.register_forward_hook(decode_all)
    try:
        output = network(images)
    finally:
        hook.remove()
    decoded = output.reconstructions.unflatten(0, (sizes[0], STEPS, len(images)))
    return decoded.permute(2, 0, 1, 3, 4, 5), output.scores.argmax(dim=1)


def changes(perturbed: Perturbed) -> Float[Tensor, "images dim"]:
    """Return the mean absolute change of a pixel from the middle step to the first and last, in [0, 1]: [P, D]."""
    middle = perturbed[:, :, MIDDLE : MIDDLE + 1]
    return (perturbed[:, :, [0, -1]] - middle).abs().double().mean(dim=(2, 3, 4, 5))


def first_of_each_class(task: Task) -> tuple[Tensor, Tensor]:
    """Return which evaluation images are the first of each class, and these classes: int64 [P] each.

    In pairs the class is that of the first label.
    """
    main = task.labels if task.labels.ndim == 1 else task.labels[:, 0]
    classes, first = np.unique(main.cpu().numpy(), return_index=True)
    return torch.from_numpy(first).to(main.device), torch.from_numpy(classes)
