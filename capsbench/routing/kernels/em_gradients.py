"""Programs of a GPU for the gradient of one iteration of EM routing, see `em_tiles` and `fused_em`."""

from typing import no_type_check

import triton
import triton.language as tl

from capsbench.routing.kernels.em_tiles import (
    load_gaussians,
    load_norms,
    load_pairs,
    load_rows,
    locate,
    make_shares,
    make_votes,
    map_part,
    new_variances,
    pose_part,
    store_pairs,
    store_rows,
)


@triton.jit
@no_type_check
def fit_gradients(
    mass, found, squares, before, beta_u, logits, grad_means, grad_precisions, grad_heights, grad_logits,
    grad_mass, shift, scale, of_before, of_logits, X, damping, floor, temperature,
    J: tl.constexpr, JP: tl.constexpr, BX: tl.constexpr, FIRST: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Gradients of the sums of the M-step, of the means before, and that of the logits in all.

    That of mass is `grad_mass`. Those of means m and squares s come as numbers for the gradient of a weight w, which is
    sum_h shift (V - m) + scale (V - m)^2 + grad_mass; s moves with m only through sum_n w (V - m) = EPSILON m.
    """
    rows = tl.program_id(0).to(tl.int64) * BX + tl.arange(0, BX)
    there, parent = rows < X, tl.arange(0, JP)
    weight = load_pairs(mass, rows, there, J, JP)
    _, moved, variance = new_variances(
        found, squares, before, weight, rows, there, damping, floor, J, JP, FIRST, EPSILON
    )  # fmt: skip
    logs = 0.5 * tl.sum(tl.log(variance), axis=2)
    per_mass = 1.0 / (weight + EPSILON)[:, :, None]
    grad_height = load_pairs(grad_heights, rows, there, J, JP)
    grad_logit = load_pairs(grad_logits, rows, there, J, JP)
    grad_logit += grad_height / (1.0 + tl.exp(load_pairs(logits, rows, there, J, JP)))
    grad_cost = -temperature * grad_logit
    grad_logs = 0.5 * (weight * grad_cost - grad_height)[:, :, None]
    grad_variance = (grad_logs - 0.5 * load_rows(grad_precisions, rows, there, J, JP) / variance) / variance
    grad_squares = grad_variance * per_mass
    grad_moved = 2.0 * weight[:, :, None] * moved * grad_squares
    grad_mean = load_rows(grad_means, rows, there, J, JP)
    beta = tl.load(beta_u + parent, mask=parent < J, other=0.0)[None, :]
    of_mass = grad_cost * (16.0 * beta + logs) + tl.sum(grad_squares * (moved * moved - variance + floor), axis=2)
    of_found = grad_mean + damping * (grad_moved - grad_mean)
    of_found -= 2.0 * EPSILON * load_rows(found, rows, there, J, JP) * grad_squares
    store_pairs(grad_mass, of_mass, rows, there, J, JP)
    store_rows(shift, of_found * per_mass, rows, there, J, JP)
    store_rows(scale, grad_squares, rows, there, J, JP)
    store_pairs(of_logits, grad_logit, rows, there, J, JP)
    if not FIRST:
        store_rows(of_before, damping * (grad_mean - grad_moved), rows, there, J, JP)


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
            height, mean, precision = load_gaussians(heights, means, precisions, rows, there, J, JP, False)
            votes = make_votes(poses, maps, offsets, capsules, there, child, place, J, JP, OFFSETS)
            shares = make_shares(
                votes, height, mean, precision, norms, norms, keys, keys, there, J, JP, False, EACH
            )  # fmt: skip
            grad, _ = _of_weights(
                votes, load_rows(found, rows, there, J, JP), load_rows(shift, rows, there, J, JP),
                load_rows(scale, rows, there, J, JP), load_pairs(grad_mass, rows, there, J, JP),
            )  # fmt: skip
            grad *= tl.load(activations + capsules, mask=there, other=0.0)[:, None]
            if GIVEN:
                grad += load_pairs(grad_shares, rows * KK * T + place * T + kind, there, J, JP)
            total += shares * grad
        if EACH:
            store_pairs(slopes, total, keys, there, J, JP)
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
    shares = make_shares(votes, height, mean, precision, norms, start, entries, keys, there, J, JP, FIRST, EACH)
    grad, grad_votes = _of_weights(votes, found, shift, scale, grad_mass)
    grad_votes = (shares * active[:, None])[:, :, None] * grad_votes
    grad_active = shares * grad
    if FIRST:
        grad_logs = tl.zeros_like(shares)
    else:
        grad_logs = shares * (grad * active[:, None] - load_norms(slopes, keys, there, J, JP, EACH))
        if GIVEN:
            grad_logs += shares * load_pairs(grad_shares, cells, there, J, JP)
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
    height, mean, precision = load_gaussians(heights, means, precisions, rows, there, J, JP, FIRST)
    centre, slope = load_rows(found, rows, there, J, JP), load_rows(shift, rows, there, J, JP)
    bend, of_mass = load_rows(scale, rows, there, J, JP), load_pairs(grad_mass, rows, there, J, JP)
    of_heights = tl.zeros((BX, JP), dtype=tl.float32)
    of_means = tl.zeros((BX, JP, 16), dtype=tl.float32)
    of_precisions = tl.zeros((BX, JP, 16), dtype=tl.float32)
    for n in range(0, KK * T):
        place, kind = n // T, n % T
        entries, capsules, keys = locate(children, groups, rows, there, place, kind, P, KK, T, C, Q)
        child, cells = kind if SHARED else n, rows * KK * T + n
        votes = make_votes(poses, maps, offsets, capsules, there, child, place, J, JP, OFFSETS)
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
            products = tl.sum(grad_votes * map_part(maps, child, q, J, JP), axis=1)
            column = tl.sum(tl.reshape(products, (BX, 4, 4)), axis=2)
            at = cells[:, None] * 16 + tl.arange(0, 4)[None, :] * 4 + q
            tl.store(grad_poses + at, column, mask=there[:, None])
    if not FIRST:
        store_pairs(grad_heights, of_heights, rows, there, J, JP)
        store_rows(grad_means, of_means, rows, there, J, JP)
        store_rows(grad_precisions, of_precisions, rows, there, J, JP)


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
        height, mean, precision = load_gaussians(heights, means, precisions, rows, there, J, JP, FIRST)
        entries, capsules, keys = locate(children, groups, rows, there, place, kind, P, KK, T, C, Q)
        votes = make_votes(poses, maps, offsets, capsules, there, child, place, J, JP, OFFSETS)
        _, _, grad_votes = _gradients(
            votes, tl.load(activations + capsules, mask=there, other=0.0), height, mean, precision,
            load_rows(found, rows, there, J, JP), load_rows(shift, rows, there, J, JP),
            load_rows(scale, rows, there, J, JP), load_pairs(grad_mass, rows, there, J, JP),
            norms, slopes, grad_shares, start, entries, keys, rows * KK * T + n, there, J, JP, FIRST, EACH, GIVEN,
        )  # fmt: skip
        found0 += grad_votes * pose_part(poses, capsules, there, 0)
        found1 += grad_votes * pose_part(poses, capsules, there, 1)
        found2 += grad_votes * pose_part(poses, capsules, there, 2)
        found3 += grad_votes * pose_part(poses, capsules, there, 3)
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
