"""How well the class can be read from a network's poses or last features, with labels and, by clusters, without.

A probe (Alain, Bengio 2017, *Understanding intermediate layers using linear classifier probes*) is how a network that
was trained without labels is scored. Beside it stand the same probe on an untrained copy of the network and on as many
principal components of the pixels: what a network does not beat, its training did not teach it. Clusters that are given
classes by the Hungarian method are how Kosiorek et al. 2019 score stacked capsule autoencoders.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from capsbench.data.tasks.task import Task, evaluation_batch
from capsbench.evaluation.chosen import chosen_images
from capsbench.evaluation.context import Context
from capsbench.evaluation.representation import NOTHING, represent
from capsbench.evaluation.result import not_applicable
from capsbench.models import Network
from capsbench.registry import PROTOCOLS, Count
from capsbench.run.metrics import is_correct

MOST_STEPS = 1000
STARTS = 10  # of k-means


@PROTOCOLS.register(
    "linear_probe",
    title="linear probe",
    split="test",
    draws="values",
    shows={
        "accuracy": "on poses or features (%)",
        "untrained_accuracy": "of an untrained copy (%)",
        "components_accuracy": "on as many components of pixels (%)",
        "clusters_accuracy": "clusters, assigned (%)",
        "network_accuracy": "itself (%)",
    },
)
def linear_probe(context: Context, *, train_images: Count = 2000, images: Count = 10_000) -> dict[str, Any]:
    """Fit a linear classifier on training images and score it on test images.

    Poses are those of all class capsules, K x D values; features of a CNN are what its last linear layer is given.
    Images are shown as in a test: not augmented, in the central crop.

    Returns:
        Accuracies in % (for pairs, of both classes): of a probe on poses or features, on those of an untrained copy,
        and on as many principal components of the pixels that the network sees (at most one per pixel or training
        image), scaled all alike; of clusters of poses or features, as many as classes, where an image shows one class;
        of the network itself on the same test images.
    """
    from threadpoolctl import threadpool_limits  # scikit-learn's

    with threadpool_limits(context.run.training.threads):
        return _probed(context, train_images, images)


def _probed(context: Context, train_images: int, images: int) -> dict[str, Any]:
    training, test = context.training_images(), context.task()
    shown, scored = chosen_images(training, train_images), chosen_images(test, images)
    seen = collect(context.model, training, shown)
    if seen is None:
        return not_applicable(NOTHING)
    tested, untrained = collect(context.model, test, scored), context.untrained(shown)
    before, before_tested = (collect(untrained, task, chosen) for task, chosen in ((training, shown), (test, scored)))
    assert tested is not None and before is not None and before_tested is not None
    labels, truth = training.labels[shown].cpu(), test.labels[scored].cpu()
    accuracy, converged = probe(seen.values, labels, tested.values, truth)
    untrained_accuracy, untrained_converged = probe(before.values, labels, before_tested.values, truth)
    components, components_tested = principal_components(seen.pixels, tested.pixels, seen.values.shape[1])
    components_accuracy, components_converged = probe(components, labels, components_tested, truth, standardised=False)
    of_clusters = clusters_accuracy(seen.values, labels, tested.values, truth) if labels.ndim == 1 else None
    return {
        "status": "ok",
        "of": seen.kind,
        "images": len(scored),
        "sizes": {"train_images": len(shown), "values": seen.values.shape[1], "components": components.shape[1]},
        "accuracy": accuracy,
        "untrained_accuracy": untrained_accuracy,
        "components_accuracy": components_accuracy,
        **({} if of_clusters is None else {"clusters_accuracy": of_clusters}),
        "network_accuracy": _accuracy(tested.scores, truth),
        "converged": {
            seen.kind: converged, f"untrained {seen.kind}": untrained_converged, "components": components_converged,
        },
    }  # fmt: skip


class Collected(NamedTuple):
    """What a network says of N images, on the CPU.

    Attributes:
        kind: of the values, "poses" or "features".
        values: [N, V].
        pixels: what the network sees, [N, P].
        scores: [N, K].
    """

    kind: str
    values: Tensor
    pixels: Tensor
    scores: Tensor


def collect(model: Network, task: Task, indices: Tensor) -> Collected | None:
    """Show a network images of a task; None where it has neither poses nor features."""
    kind, values, pixels, scores = "", [], [], []
    for part in indices.split(evaluation_batch(indices.device)):
        images = task.eval_batch(part, 0).images
        said = represent(model, images)
        if said.values is None:
            return None
        kind = said.kind
        values.append(said.values.flatten(1).cpu())
        pixels.append(images.flatten(1).cpu())
        scores.append(said.scores.cpu())
    return Collected(kind, torch.cat(values), torch.cat(pixels), torch.cat(scores))


def probe(
    values: Tensor, labels: Tensor, test_values: Tensor, test_labels: Tensor, standardised: bool = True
) -> tuple[float, bool]:
    """Fit scikit-learn's logistic regression and score it.

    Args:
        values: of the training images, [N, V].
        labels: int64 [N]; [N, S] for S classes in each image, for which each class is told from all others, and the S
            highest are said.
        test_values: [M, V].
        test_labels: [M] or [M, S].
        standardised: whether each value is brought to mean 0 and variance 1; else all are scaled by one number.

    Returns:
        The accuracy in %, and whether the fit converged.
    """
    from sklearn.exceptions import ConvergenceWarning  # slow to import
    from sklearn.linear_model import LogisticRegression

    mean, scale = _scale(values.double(), standardised)
    seen, tested = (((some.double() - mean) / scale).numpy() for some in (values, test_values))
    classes = labels.unique().numpy()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        if labels.ndim == 1:
            model = LogisticRegression(max_iter=MOST_STEPS).fit(seen, labels.numpy())
            scores = np.asarray(model.predict(tested))[:, None] == classes
        else:
            present = (labels.unsqueeze(2) == torch.from_numpy(classes)).any(dim=1).numpy()  # [N, K]
            models = [LogisticRegression(max_iter=MOST_STEPS).fit(seen, column) for column in present.T]
            scores = np.stack([model.decision_function(tested) for model in models], axis=1)
    converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    # a class without training images is never said
    known = torch.full((len(tested), int(max(classes.max(), int(test_labels.max()))) + 1), -torch.inf)
    known[:, torch.from_numpy(classes)] = torch.from_numpy(scores).float()
    return _accuracy(known, test_labels), converged


def principal_components(pixels: Tensor, test_pixels: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the first components of training images [N, P] and of test images [M, P], at most min(N, P) of them."""
    from sklearn.decomposition import PCA

    fitted = PCA(min(count, *pixels.shape), random_state=0).fit(pixels.numpy())
    found, tested = (torch.from_numpy(fitted.transform(some.numpy())) for some in (pixels, test_pixels))
    return found, tested


def clusters_accuracy(values: Tensor, labels: Tensor, test_values: Tensor, test_labels: Tensor) -> float:
    """Return the accuracy in % of clusters that are given classes by the Hungarian method.

    k-means finds as many clusters as there are classes in the standardised values of the training images. Each cluster
    gets one class and each class one cluster, so that most training images are right.

    Args:
        values: of the training images, [N, V].
        labels: int64 [N].
        test_values: [M, V].
        test_labels: [M].
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.cluster import KMeans

    mean, scale = _scale(values.double(), each=True)
    seen, tested = (((some.double() - mean) / scale).numpy() for some in (values, test_values))
    classes = labels.unique()
    fitted = KMeans(len(classes), n_init=STARTS, random_state=0).fit(seen)
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)  # [cluster, class]
    np.add.at(counts, (fitted.labels_, torch.searchsorted(classes, labels).numpy()), 1)
    _, assigned = linear_sum_assignment(-counts)
    said = classes[torch.from_numpy(assigned[fitted.predict(tested)])]
    return 100 * float((said == test_labels).double().mean())


def _scale(values: Tensor, each: bool) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each value, or one deviation for all; 1 in place of 0."""
    mean = values.mean(dim=0)
    scale = values.std(dim=0, correction=0) if each else (values - mean).square().mean().sqrt()
    return mean, torch.where(scale > 0, scale, 1.0)


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return 100 * int(is_correct(scores, labels).sum()) / len(labels)
