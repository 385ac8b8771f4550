"""Stratified, seeded splits of a training set: by image, or by whole objects, as smallNORB's options choose."""

import math

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from capsbench.data.readers.raw import Raw
from capsbench.errors import InputError
from capsbench.study import Data


def split_indices(data: Data, raw: Raw, seed: int) -> tuple[Int[Tensor, " train"], Int[Tensor, " validation"]]:
    """Divide a training set into what is trained on and what validates it.

    With `validation_by: object` (smallNORB, toynorb) the validation images show objects that training does not show.
    The fewest objects of each category that give `data.validation_images` leave the training set whole, and the
    validation images are drawn from theirs.

    Args:
        data: the options, `train_images` and `validation_images`.
        raw: the training set.
        seed: of the draw.

    Returns:
        The indices (train, validation), each sorted; no index is in both.

    Raises:
        InputError: there are too few objects or images for such a split, or the objects are not known.
    """
    labels = torch.from_numpy(raw.labels)
    if getattr(data.options, "validation_by", None) != "object" or not data.validation_images:
        return stratified_split(labels, data.validation_images, data.train_images, seed)
    rng = torch.Generator().manual_seed(seed)
    held_out = _hold_out_objects(labels, _instances(raw), data, rng)
    order = torch.randperm(len(labels), generator=rng)
    validation = _stratified(labels, order[held_out[order]], data.validation_images)
    rest = order[~held_out[order]]
    wanted = len(rest) if data.train_images is None else data.train_images
    if wanted > len(rest):
        raise InputError(
            f"{data.name}: train_images is {wanted:,}, but {len(rest):,} are left without the objects that validation "
            "shows; take fewer, or write 'validation_by: pair'"
        )
    return _stratified(labels, rest, wanted).sort().values, validation.sort().values


def _instances(raw: Raw) -> Tensor:
    instances = raw.factors.get("instance")
    if instances is None or (instances < 0).any():
        raise InputError("'validation_by: object' needs the instance of each pair, which this copy does not know")
    return torch.from_numpy(instances)


def _hold_out_objects(labels: Tensor, instances: Tensor, data: Data, rng: Generator) -> Tensor:
    """Draw the objects that validation shows, equally many of each category -> which images show one, bool [N]."""
    share = data.validation_images / len(labels)
    drawn: dict[int, Tensor] = {}
    needed = 1
    for category in labels.unique().tolist():
        own = instances[labels == category]
        names, sizes = own.unique(return_counts=True)
        order = torch.randperm(len(names), generator=rng)
        drawn[category] = names[order]
        needed = max(needed, int((sizes[order].cumsum(0) < math.ceil(share * len(own))).sum()) + 1)
    fewest = min(len(names) for names in drawn.values())
    if needed >= fewest:
        raise InputError(
            f"{data.name}: {data.validation_images:,} validation_images take {min(needed, fewest)} of the {fewest} "
            "objects of a category, and none is left to train on; take fewer, or write 'validation_by: pair'"
        )
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for category, names in drawn.items():
        held_out |= (labels == category) & torch.isin(instances, names[:needed])
    return held_out


def stratified_split(
    labels: Int[Tensor, " images"], validation_images: int, train_images: int | None, seed: int
) -> tuple[Int[Tensor, " train"], Int[Tensor, " validation"]]:
    """Divide a training set so that each class keeps its share to within one image.

    Args:
        labels: int64 [N].
        validation_images: drawn first, so that they do not depend on `train_images`.
        train_images: how many of the others are kept; None: all of them.
        seed: of the draw.

    Returns:
        The indices (train, validation), each sorted; no index is in both.
    """
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    validation = _stratified(labels, order, validation_images)
    rest = order[~torch.isin(order, validation)]
    train = _stratified(labels, rest, len(rest) if train_images is None else train_images)
    return train.sort().values, validation.sort().values


def _stratified(labels: Tensor, order: Tensor, count: int) -> Tensor:
    """Pick `count` of the indices `order` so that each class keeps its share, earlier indices first."""
    by_class = labels[order]
    rank = torch.empty(len(order))
    for value in by_class.unique():
        members = (by_class == value).nonzero().flatten()
        # the k-th of n members ranks at (k + 1/2) / n: taking the lowest ranks takes each class's share
        rank[members] = (torch.arange(len(members)) + 0.5) / len(members)
    return order[rank.argsort(stable=True)[:count]]
