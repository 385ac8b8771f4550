"""Stratified, seeded splits of a training set."""

import torch
from torch import Tensor


def stratified_split(
    labels: Tensor, validation_images: int, train_images: int | None, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the indices (train, validation) of a training set, each sorted, disjoint.

    labels int64 [N]. The validation set is drawn first and does not depend on `train_images`, which cuts down
    what is left (None: all of it). Each class has its share to within one image.
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
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
        # the k-th of n members stands at (k + 1/2) / n of the way: taking the lowest takes shares
        rank[members] = (torch.arange(len(members)) + 0.5) / len(members)
    return order[rank.argsort(stable=True)[:count]]
