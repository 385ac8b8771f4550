"""The programs of a GPU behind `fused_em`: one iteration of EM routing and its gradient, votes in registers alone.

A row x is a parent position of a sample, x = sample * P + position, an entry p * KK + k a parent position and a place
in its kernel, a child n = k * T + t a place in the kernel and a type, a capsule (sample * C + cell) * T + t one of the
layer below. Programs take BX rows, or samples, and all parents of one child at a time, a tile of [BX, JP, 16].

Shapes: poses u [B, C, T, 16], maps [N or T, J, 16], offsets [KK, 16], activations a [B, C, T], norms [B, Q, T, J] with
EACH and [B, Q, T] without; of parents, heights and mass [X, J], means, precisions and the like [X, J, 16]. Tables:
children and groups [P * KK], the cell and the group of each entry; entries [., E] and counts, the entries of each
cell or group.

Flags: FIRST: shares are the start, and there is no Gaussian yet. EACH: parent types are normalised each alone. SHARED:
maps are those of types, at every place. OFFSETS: votes get the offset of their place. STORE: shares are stored. GIVEN:
they have a gradient of their own.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _load_rows(at, rows, there, J: tl.constexpr, JP: tl.constexpr):
    """Load [X, J, 16] of some rows -> [BX, JP, 16], zeros where there is nothing."""
    parent, element = tl.arange(0, JP)[None, :, None], tl.arange(0, 16)[None, None, :]
    known = there[:, None, None] & (parent < J)
    return tl.load(at + rows[:, None, None] * J * 16 + parent * 16 + element, mask=known, other=0.0)


@triton.jit
@no_type_check
def _store_rows(at, values, rows, there, J: tl.constexpr, JP: tl.constexpr):
    """Store [BX, JP, 16] of some rows to [X, J, 16]."""
    parent, element = tl.arange(0, JP)[None, :, None], tl.arange(0, 16)[None, None, :]
    known = there[:, None, None] & (parent < J)
    tl.store(at + rows[:, None, None] * J * 16 + parent * 16 + element, values, mask=known)


@triton.jit
@no_type_check
def _load_pairs(at, rows, there, J: tl.constexpr, JP: tl.constexpr):
    """Load [X, J] of some rows -> [BX, JP], zeros where there is nothing."""
    parent = tl.arange(0, JP)[None, :]
    return tl.load(at + rows[:, None] * J + parent, mask=there[:, None] & (parent < J), other=0.0)


@triton.jit
@no_type_check
def _store_pairs(at, values, rows, there, J: tl.constexpr, JP: tl.constexpr):
    """Store [BX, JP] of some rows to [X, J]."""
    parent = tl.arange(0, JP)[None, :]
    tl.store(at + rows[:, None] * J + parent, values, mask=there[:, None] & (parent < J))


@triton.jit
@no_type_check
def _pose_part(poses, capsules, there, q: tl.constexpr):
    """Load column q of the poses M of some capsules -> [BX, 1, 16], whose element (r, s) is M[r, q]."""
    element = tl.arange(0, 16)[None, None, :] // 4 * 4 + q
    return tl.load(poses + capsules[:, None, None] * 16 + element, mask=there[:, None, None], other=0.0)


@triton.jit
@no_type_check
def _map_part(maps, number, q: tl.constexpr, J: tl.constexpr, JP: tl.constexpr):
    """Load row q of the maps W of a child -> [1, JP, 16], whose element (r, s) is W[q, s]."""
    parent, element = tl.arange(0, JP)[None, :, None], q * 4 + tl.arange(0, 16)[None, None, :] % 4
    return tl.load(maps + number * J * 16 + parent * 16 + element, mask=(parent < J) & (element < 16), other=0.0)


@triton.jit
@no_type_check
def _votes(
    poses, maps, offsets, capsules, there, number, place, J: tl.constexpr, JP: tl.constexpr, OFFSETS: tl.constexpr
):
    """Make the votes M W of one child, [BX, JP, 16]."""
    votes = _pose_part(poses, capsules, there, 0) * _map_part(maps, number, 0, J, JP)
    for q in tl.static_range(1, 4):
        votes += _pose_part(poses, capsules, there, q) * _map_part(maps, number, q, J, JP)
    if OFFSETS:
        votes += tl.load(offsets + place * 16 + tl.arange(0, 16))[None, None, :]
    return votes


@triton.jit
@no_type_check
def _log_likelihoods(votes, heights, means, precisions):
    """Return height - sum_h precision (V - mean)^2, [BX, JP]."""
    deviations = votes - means
    return heights - tl.sum(precisions * deviations * deviations, axis=2)


@triton.jit
@no_type_check
def _load_norms(norms, keys, there, J: tl.constexpr, JP: tl.constexpr, EACH: tl.constexpr):
    """Load what belongs to the groups of some entries -> [BX, JP] or [BX, 1]."""
    found = _load_pairs(norms, keys, there, J, JP) if EACH else tl.load(norms + keys, mask=there, other=0.0)[:, None]
    return found  # noqa: RET504 (Triton reads every `return`, whatever EACH is)


@triton.jit
@no_type_check
def _shares(
    votes, heights, means, precisions, norms, start, entries, keys, there,
    J: tl.constexpr, JP: tl.constexpr, FIRST: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Return the shares R [BX, JP] of the parents in one child, zero where there is no parent."""
    if FIRST:
        shares = tl.load(start + entries, mask=there, other=0.0)[:, None] / J + tl.zeros_like(heights)
    else:
        shares = tl.exp(
            _log_likelihoods(votes, heights, means, precisions) - _load_norms(norms, keys, there, J, JP, EACH)
        )
    return tl.where(there[:, None] & (tl.arange(0, JP)[None, :] < J), shares, 0.0)


@triton.jit
@no_type_check
def _places(children, groups, rows, there, place, kind, P, KK, T, C, Q):
    """Return entries, capsules and keys of norms, [BX] each, at one place of some rows and of one type."""
    sample = rows // P
    entries = rows % P * KK + place
    cell = tl.load(children + entries, mask=there, other=0)
    group = tl.load(groups + entries, mask=there, other=0)
    return entries, (sample * C + cell) * T + kind, (sample * Q + group) * T + kind


@triton.jit
@no_type_check
def _gaussians(heights, means, precisions, rows, there, J: tl.constexpr, JP: tl.constexpr, FIRST: tl.constexpr):
    """Load heights, means and precisions of some rows; at first zeros."""
    if FIRST:
        height = tl.zeros((rows.shape[0], JP), dtype=tl.float32)
        mean, precision = height[:, :, None], height[:, :, None]
    else:
        height = _load_pairs(heights, rows, there, J, JP)
        mean, precision = _load_rows(means, rows, there, J, JP), _load_rows(precisions, rows, there, J, JP)
    return height, mean, precision


@triton.jit
@no_type_check
def log_norms(
    poses, maps, offsets, heights, means, precisions, children, entries, counts, norms, batch, each, E, P, KK, T, C, Q,
    J: tl.constexpr, JP: tl.constexpr, BX: tl.constexpr, EACH: tl.constexpr, SHARED: tl.constexpr,
    OFFSETS: tl.constexpr,
):  # fmt: skip
    """Log-sum-exp of the log-likelihoods of one group, of some samples and types."""
    group, part = tl.program_id(0), tl.program_id(2)
    samples = tl.program_id(1).to(tl.int64) * BX + tl.arange(0, BX)
    there = samples < batch
    real = (tl.arange(0, JP) < J)[None, :]
    count = tl.load(counts + group)
    none = tl.where(count == 0, 1.0, 0.0)  # no logarithm of zero where there is nothing; such norms are never read
    for kind in range(part * each, tl.minimum(T, (part + 1) * each)):
        highest = tl.full((BX, JP), -1e30, dtype=tl.float32)  # below any other
        total = tl.zeros((BX, JP), dtype=tl.float32)
        for number in range(0, count):
            entry = tl.load(entries + group * E + number)
            place = entry % KK
            rows, capsules = samples * P + entry // KK, (samples * C + tl.load(children + entry)) * T + kind
            child = kind if SHARED else place * T + kind
            height, mean, precision = _gaussians(heights, means, precisions, rows, there, J, JP, False)
            votes = _votes(poses, maps, offsets, capsules, there, child, place, J, JP, OFFSETS)
            own = _log_likelihoods(votes, height, mean, precision)
            higher = tl.maximum(highest, own)
            total = total * tl.exp(highest - higher) + tl.exp(own - higher)
            highest = higher
        keys = (samples * Q + group) * T + kind
        if EACH:
            _store_pairs(norms, highest + tl.log(total + none), keys, there, J, JP)
        else:
            top = tl.max(tl.where(real, highest, float("-inf")), axis=1)
            sums = tl.sum(tl.where(real, total * tl.exp(highest - top[:, None]), 0.0), axis=1)
            tl.store(norms + keys, top + tl.log(sums + none), mask=there)


@triton.jit
@no_type_check
def moments(
    poses, activations, maps, offsets, heights, means, precisions, norms, start, children, groups,
    mass, found, squares, stored, X, P, KK, T, C, Q,
    J: tl.constexpr, JP: tl.constexpr, BX: tl.constexpr, FIRST: tl.constexpr, EACH: tl.constexpr,
    SHARED: tl.constexpr, OFFSETS: tl.constexpr, STORE: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Mass, means and sums of squares of some rows, from all their children: two passes, the second about the means."""
    rows = tl.program_id(0).to(tl.int64) * BX + tl.arange(0, BX)
    there = rows < X
    height, mean, precision = _gaussians(heights, means, precisions, rows, there, J, JP, FIRST)
    sum_of_weights = tl.zeros((BX, JP), dtype=tl.float32)
    centre = tl.zeros((BX, JP, 16), dtype=tl.float32)
    spread = tl.zeros((BX, JP, 16), dtype=tl.float32)
    for again in tl.static_range(2):
        for n in range(0, KK * T):
            place, kind = n // T, n % T
            entries, capsules, keys = _places(children, groups, rows, there, place, kind, P, KK, T, C, Q)
            child = kind if SHARED else n
            votes = _votes(poses, maps, offsets, capsules, there, child, place, J, JP, OFFSETS)
            shares = _shares(
                votes, height, mean, precision, norms, start, entries, keys, there, J, JP, FIRST, EACH
            )  # fmt: skip
            weights = shares * tl.load(activations + capsules, mask=there, other=0.0)[:, None]
            if again == 0:
                sum_of_weights += weights
                centre += weights[:, :, None] * votes
                if STORE:
                    _store_pairs(stored, shares, rows * KK * T + n, there, J, JP)
            else:
                spread += weights[:, :, None] * (votes - centre) * (votes - centre)
        if again == 0:
            centre = centre / (sum_of_weights + EPSILON)[:, :, None]
    _store_pairs(mass, sum_of_weights, rows, there, J, JP)
    _store_rows(found, centre, rows, there, J, JP)
    _store_rows(squares, spread, rows, there, J, JP)


@triton.jit
@no_type_check
def _of_weights(votes, found, shift, scale, grad_mass):
    """Return the gradients of the weights, [BX, JP], and of the votes at a weight of one, [BX, JP, 16]."""
    deviations = votes - found
    return grad_mass + tl.sum(deviations * (shift + scale * deviations), axis=2), shift + 2.0 * scale * deviations


@triton.jit
@no_type_check
def group_gradients(
    poses, activations, maps, offsets, heights, means, precisions, norms, found, shift, scale, grad_mass, grad_shares,
    children, entries, counts, slopes, batch, each, E, P, KK, T, C, Q,
    J: tl.constexpr, JP: tl.constexpr, BX: tl.constexpr, EACH: tl.constexpr, SHARED: tl.constexpr,
    OFFSETS: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """Sum of R dL/dR over the entries of one group, of some samples and types: [B, Q, T, J] or [B, Q, T]."""
    group, part = tl.program_id(0), tl.program_id(2)
    samples = tl.program_id(1).to(tl.int64) * BX + tl.arange(0, BX)
    there = samples < batch
    count = tl.load(counts + group)
    for kind in range(part * each, tl.minimum(T, (part + 1) * each)):
        total = tl.zeros((BX, JP), dtype=tl.float32)
        keys = (samples * Q + group) * T + kind
        for number in range(0, count):
            entry = tl.load(entries + group * E + number)
            place = entry % KK
            rows, capsules = samples * P + entry // KK, (samples * C + tl.load(children + entry)) * T + kind
            child = kind if SHARED else place * T + kind
            height, mean, precision = _gaussians(heights, means, precisions, rows, there, J, JP, False)
            votes = _votes(poses, maps, offsets, capsules, there, child, place, J, JP, OFFSETS)
            shares = _shares(
                votes, height, mean, precision, norms, norms, keys, keys, there, J, JP, False, EACH
            )  # fmt: skip
            grad, _ = _of_weights(
                votes, _load_rows(found, rows, there, J, JP), _load_rows(shift, rows, there, J, JP),
                _load_rows(scale, rows, there, J, JP), _load_pairs(grad_mass, rows, there, J, JP),
            )  # fmt: skip
            grad *= tl.load(activations + capsules, mask=there, other=0.0)[:, None]
            if GIVEN:
                grad += _load_pairs(grad_shares, rows * KK * T + place * T + kind, there, J, JP)
            total += shares * grad
        if EACH:
            _store_pairs(slopes, total, keys, there, J, JP)
        else:
            tl.store(slopes + keys, tl.sum(total, axis=1), mask=there)


@triton.jit
@no_type_check
def _gradients(
    votes, active, height, mean, precision, found, shift, scale, grad_mass, norms, slopes, grad_shares, start,
    entries, keys, cells, there,
    J: tl.constexpr, JP: tl.constexpr, FIRST: tl.constexpr, EACH: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """Return the gradients of one child: of log-likelihoods and, times R, of weights [BX, JP], of votes [BX, JP, 16].

    active: the activation of the child [BX]; cells: the places of its shares [BX], as rows of J.
    """
    shares = _shares(votes, height, mean, precision, norms, start, entries, keys, there, J, JP, FIRST, EACH)
    grad, grad_votes = _of_weights(votes, found, shift, scale, grad_mass)
    grad_votes = (shares * active[:, None])[:, :, None] * grad_votes
    grad_active = shares * grad
    if FIRST:
        grad_logs = tl.zeros_like(shares)
    else:
        grad_logs = shares * (grad * active[:, None] - _load_norms(slopes, keys, there, J, JP, EACH))
        if GIVEN:
            grad_logs += shares * _load_pairs(grad_shares, cells, there, J, JP)
        grad_votes -= 2.0 * grad_logs[:, :, None] * precision * (votes - mean)
    return grad_logs, grad_active, grad_votes


@triton.jit
@no_type_check
def parent_gradients(
    poses, activations, maps, offsets, heights, means, precisions, norms, start, children, groups,
    found, shift, scale, grad_mass, slopes, grad_shares,
    grad_heights, grad_means, grad_precisions, grad_poses, grad_activations, X, P, KK, T, C, Q,
    J: tl.constexpr, JP: tl.constexpr, BX: tl.constexpr, FIRST: tl.constexpr, EACH: tl.constexpr,
    SHARED: tl.constexpr, OFFSETS: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """Gradients of the Gaussians of some rows, and of poses [X, N, 16] and activations [X, N], for each row alone."""
    rows = tl.program_id(0).to(tl.int64) * BX + tl.arange(0, BX)
    there = rows < X
    height, mean, precision = _gaussians(heights, means, precisions, rows, there, J, JP, FIRST)
    centre, slope = _load_rows(found, rows, there, J, JP), _load_rows(shift, rows, there, J, JP)
    bend, of_mass = _load_rows(scale, rows, there, J, JP), _load_pairs(grad_mass, rows, there, J, JP)
    of_heights = tl.zeros((BX, JP), dtype=tl.float32)
    of_means = tl.zeros((BX, JP, 16), dtype=tl.float32)
    of_precisions = tl.zeros((BX, JP, 16), dtype=tl.float32)
    for n in range(0, KK * T):
        place, kind = n // T, n % T
        entries, capsules, keys = _places(children, groups, rows, there, place, kind, P, KK, T, C, Q)
        child, cells = kind if SHARED else n, rows * KK * T + n
        votes = _votes(poses, maps, offsets, capsules, there, child, place, J, JP, OFFSETS)
        active = tl.load(activations + capsules, mask=there, other=0.0)
        grad_logs, grad_active, grad_votes = _gradients(
            votes, active, height, mean, precision, centre, slope, bend, of_mass, norms, slopes, grad_shares, start,
            entries, keys, cells, there, J, JP, FIRST, EACH, GIVEN,
        )  # fmt: skip
        if not FIRST:
            deviations = votes - mean
            of_heights += grad_logs
            of_means += 2.0 * grad_logs[:, :, None] * precision * deviations
            of_precisions -= grad_logs[:, :, None] * deviations * deviations
        tl.store(grad_activations + cells, tl.sum(grad_active, axis=1), mask=there)
        for q in tl.static_range(4):  # dM[r, q] = sum of dV[r, s] W[q, s] over parents and s
            products = tl.sum(grad_votes * _map_part(maps, child, q, J, JP), axis=1)
            column = tl.sum(tl.reshape(products, (BX, 4, 4)), axis=2)
            at = cells[:, None] * 16 + tl.arange(0, 4)[None, :] * 4 + q
            tl.store(grad_poses + at, column, mask=there[:, None])
    if not FIRST:
        _store_pairs(grad_heights, of_heights, rows, there, J, JP)
        _store_rows(grad_means, of_means, rows, there, J, JP)
        _store_rows(grad_precisions, of_precisions, rows, there, J, JP)


@triton.jit
@no_type_check
def map_gradients(
    poses, activations, maps, offsets, heights, means, precisions, norms, start, children, groups,
    found, shift, scale, grad_mass, slopes, grad_shares, grad_maps, each, X, P, KK, T, C, Q,
    J: tl.constexpr, JP: tl.constexpr, BX: tl.constexpr, FIRST: tl.constexpr, EACH: tl.constexpr,
    SHARED: tl.constexpr, OFFSETS: tl.constexpr, GIVEN: tl.constexpr,
):  # fmt: skip
    """Gradient of the maps of one child, over some rows: [parts, N, J, 16]."""
    n, part = tl.program_id(0), tl.program_id(1)
    place, kind = n // T, n % T
    child = kind if SHARED else n
    found0 = tl.zeros((BX, JP, 16), dtype=tl.float32)  # element (r, s) of dV times M[r, q], for each q
    found1 = tl.zeros((BX, JP, 16), dtype=tl.float32)
    found2 = tl.zeros((BX, JP, 16), dtype=tl.float32)
    found3 = tl.zeros((BX, JP, 16), dtype=tl.float32)
    for block in range(part * each, tl.minimum((X + BX - 1) // BX, (part + 1) * each)):
        rows = tl.full((BX,), 0, tl.int64) + block * BX + tl.arange(0, BX)
        there = rows < X
        height, mean, precision = _gaussians(heights, means, precisions, rows, there, J, JP, FIRST)
        entries, capsules, keys = _places(children, groups, rows, there, place, kind, P, KK, T, C, Q)
        votes = _votes(poses, maps, offsets, capsules, there, child, place, J, JP, OFFSETS)
        _, _, grad_votes = _gradients(
            votes, tl.load(activations + capsules, mask=there, other=0.0), height, mean, precision,
            _load_rows(found, rows, there, J, JP), _load_rows(shift, rows, there, J, JP),
            _load_rows(scale, rows, there, J, JP), _load_pairs(grad_mass, rows, there, J, JP),
            norms, slopes, grad_shares, start, entries, keys, rows * KK * T + n, there, J, JP, FIRST, EACH, GIVEN,
        )  # fmt: skip
        found0 += grad_votes * _pose_part(poses, capsules, there, 0)
        found1 += grad_votes * _pose_part(poses, capsules, there, 1)
        found2 += grad_votes * _pose_part(poses, capsules, there, 2)
        found3 += grad_votes * _pose_part(poses, capsules, there, 3)
    at = grad_maps + (part * KK * T + n).to(tl.int64) * J * 16
    _store_map_part(at, found0, 0, J, JP)
    _store_map_part(at, found1, 1, J, JP)
    _store_map_part(at, found2, 2, J, JP)
    _store_map_part(at, found3, 3, J, JP)


@triton.jit
@no_type_check
def _store_map_part(at, products, q: tl.constexpr, J: tl.constexpr, JP: tl.constexpr):
    """Store row q of the gradients of maps, the sum of [BX, JP, (r, s)] over rows and r, to [J, 16]."""
    row = tl.sum(tl.reshape(tl.sum(products, axis=0), (JP, 4, 4)), axis=1)
    parent, element = tl.arange(0, JP)[:, None], q * 4 + tl.arange(0, 4)[None, :]
    tl.store(at + parent * 16 + element, row, mask=parent < J)


@triton.jit
@no_type_check
def fold(values, folded, entries, counts, width, E, KP, C, BLOCK: tl.constexpr):
    """Sum what the entries of one cell hold, [B, P * KK, width] -> [B, C, width]."""
    cell, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    element = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for number in range(0, tl.load(counts + cell)):
        entry = tl.load(entries + cell * E + number)
        total += tl.load(values + (sample * KP + entry) * width + element, mask=element < width, other=0.0)
    tl.store(folded + (sample * C + cell) * width + element, total, mask=element < width)
