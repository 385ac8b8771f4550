"""Stratified, seeded splits of a training set."""

import torch
from jaxtyping import Int
from torch import Tensor


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
