"""Which entries compete for a child on a grid: softmax over groups of entries, for EM routing of convolutional layers.

An entry is a parent position, a place in its kernel, a child type and a parent type. Shapes: B batch, P parent
positions, J parent types, K x K the kernel, T child types, N = K*K*T in the order (place, child type).
"""

import torch
from torch import Tensor


def share_over_parents(log_likelihood: Tensor, groups: Tensor, number: int) -> Tensor:
    """Softmax of [B, P, J, N] over the parents, of all types and positions, that each child feeds.

    Types first, in place; then over parent positions. groups: the child position of each entry.
    """
    log_likelihood = log_likelihood.unflatten(3, (groups.shape[1], -1))  # [B, P, J, K*K, T]
    over_types = log_likelihood.logsumexp(dim=2)  # [B, P, K*K, T]
    log_total = _log_sum_exp(over_types.flatten(1, 2), groups.flatten(), number).view_as(over_types)
    return (log_likelihood - log_total.unsqueeze(2)).exp().flatten(3)


def share_over_positions(log_likelihood: Tensor, groups: Tensor, number: int) -> Tensor:
    """Softmax of [B, P, J, N] over the entries of the same group, for each parent type and each child type alone."""
    entries = log_likelihood.unflatten(3, (groups.shape[1], -1)).permute(0, 1, 3, 2, 4)  # [B, P, K*K, J, T]
    entries = entries.flatten(1, 2)  # [B, P * K*K, J, T]
    shares: Tensor = (entries - _log_sum_exp(entries, groups.flatten(), number)).exp()
    shares = shares.unflatten(1, groups.shape).permute(0, 1, 3, 2, 4)
    return shares.flatten(3)


def _log_sum_exp(entries: Tensor, index: Tensor, groups: int) -> Tensor:
    """Entries [B, E, ...], index int64 [E] below `groups` -> the log-sum-exp of each entry's group, [B, E, ...]."""
    shape = (entries.shape[0], groups, *entries.shape[2:])
    with torch.no_grad():  # the shift by the highest entry leaves the result as it is
        at = index.view(-1, *[1] * (entries.ndim - 2)).expand_as(entries)
        highest = entries.new_full(shape, -torch.inf).scatter_reduce(1, at, entries, "amax")[:, index]
    total = entries.new_zeros(shape).index_add(1, index, (entries - highest).exp())[:, index]
    return total.log() + highest  # gathered before the log: no group without an entry
