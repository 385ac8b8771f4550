"""Which test images a protocol shows that cannot afford all of them, and how it shows them after changing them."""

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from capsbench.data.tasks.splits import stratified_split
from capsbench.data.tasks.stereo import Crops, class_shares
from capsbench.data.tasks.task import Plain, Task, evaluation_batch
from capsbench.models import Network
from capsbench.run.metrics import is_correct

Images = Float[Tensor, "batch channels height width"]
Change = Callable[[Images, Generator], Images]


def chosen_images(task: Task, images: int) -> Int[Tensor, " chosen"]:
    """Return the indices of `images` evaluation images, ascending, on the device; all where there are no more.

    They are the first of one fixed draw, so that more images hold all that fewer do, and the same for all runs. Each
    class keeps its share to within one image (for pairs, the lower class of a pair).
    """
    labels = task.labels.cpu()
    main = labels if labels.ndim == 1 else labels[:, 0]
    found, _ = stratified_split(main, 0, min(images, len(main)), seed=0)
    return found.to(task.labels.device)


def whole_images(task: Task, indices: Int[Tensor, " batch"]) -> Images:
    """Return evaluation images in [0, 1], before they are cropped or standardised."""
    return task.eval_images(indices)[0].to(torch.float32) / 255


def as_seen(task: Task, images: Images, view: int = 0) -> Images:
    """Return what a network sees of whole images in [0, 1]: cropped and standardised, where the data set is."""
    if not isinstance(task, Plain | Crops):
        return images
    other = copy.copy(task)  # the same task, on these images
    other.images = 255 * images
    other.labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    return other.eval_batch(torch.arange(len(images), device=images.device), view).images


@torch.no_grad()
def scores_of(
    model: Network,
    task: Task,
    indices: Int[Tensor, " chosen"],
    change: Change | None = None,
    rng: Callable[[], Generator] = torch.Generator,
) -> Float[Tensor, "chosen classes"]:
    """Return the scores of evaluation images, as `collect_predictions` has them, or of changed ones.

    Args:
        model: the network, in evaluation mode.
        task: on the same device.
        indices: of the images.
        change: what is done to whole images in [0, 1], before they are cropped or standardised; given a generator.
            None: nothing, so that the images are to the bit those of the test.
        rng: makes the generator, anew for each crop of a test of several.
    """
    scores = torch.zeros(())
    for view in range(task.views):
        found, generator = [], rng()
        for part in indices.split(evaluation_batch(indices.device)):
            if change is None:
                images = task.eval_batch(part, view).images
            else:
                images = as_seen(task, change(whole_images(task, part), generator), view)
            output = model(images)
            found.append(output.scores if task.views == 1 else class_shares(output.scores, output.activations))
        scores = scores.to(found[0]) + torch.cat(found) / task.views
    return scores


def error_of(scores: Float[Tensor, "chosen classes"], task: Task, indices: Int[Tensor, " chosen"]) -> float:
    """Return the error of scores in %; for pairs the pair-exact one."""
    return 100 * int((~is_correct(scores, task.labels[indices])).sum()) / len(indices)
