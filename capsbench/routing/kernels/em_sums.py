"""Programs of a GPU for one iteration of EM routing, see `em_tiles` and `fused_em`."""

from typing import no_type_check

import triton
import triton.language as tl

from capsbench.routing.kernels.em_tiles import (
    load_gaussians,
    load_pairs,
    locate,
    log_likelihoods,
    make_shares,
    make_votes,
    new_variances,
    store_pairs,
    store_rows,
)


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
            height, mean, precision = load_gaussians(heights, means, precisions, rows, there, J, JP, False)
            votes = make_votes(poses, maps, offsets, capsules, there, child, place, J, JP, OFFSETS)
            own = log_likelihoods(votes, height, mean, precision)
            higher = tl.maximum(highest, own)
            total = total * tl.exp(highest - higher) + tl.exp(own - higher)
            highest = higher
        keys = (samples * Q + group) * T + kind
        if EACH:
            store_pairs(norms, highest + tl.log(total + none), keys, there, J, JP)
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
    height, mean, precision = load_gaussians(heights, means, precisions, rows, there, J, JP, FIRST)
    sum_of_weights = tl.zeros((BX, JP), dtype=tl.float32)
    centre = tl.zeros((BX, JP, 16), dtype=tl.float32)
    spread = tl.zeros((BX, JP, 16), dtype=tl.float32)
    for again in tl.static_range(2):
        for n in range(0, KK * T):
            place, kind = n // T, n % T
            entries, capsules, keys = locate(children, groups, rows, there, place, kind, P, KK, T, C, Q)
            child = kind if SHARED else n
            votes = make_votes(poses, maps, offsets, capsules, there, child, place, J, JP, OFFSETS)
            shares = make_shares(
                votes, height, mean, precision, norms, start, entries, keys, there, J, JP, FIRST, EACH
            )  # fmt: skip
            weights = shares * tl.load(activations + capsules, mask=there, other=0.0)[:, None]
            if again == 0:
                sum_of_weights += weights
                centre += weights[:, :, None] * votes
                if STORE:
                    store_pairs(stored, shares, rows * KK * T + n, there, J, JP)
            else:
                spread += weights[:, :, None] * (votes - centre) * (votes - centre)
        if again == 0:
            centre = centre / (sum_of_weights + EPSILON)[:, :, None]
    store_pairs(mass, sum_of_weights, rows, there, J, JP)
    store_rows(found, centre, rows, there, J, JP)
    store_rows(squares, spread, rows, there, J, JP)


@triton.jit
@no_type_check
def fit(
    mass, found, squares, before, beta_u, beta_a, means, precisions, heights, logits, X, damping, floor, temperature,
    J: tl.constexpr, JP: tl.constexpr, BX: tl.constexpr, FIRST: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """The rest of the M-step: means and precisions, heights and logits of some rows, from the sums over children."""
    rows = tl.program_id(0).to(tl.int64) * BX + tl.arange(0, BX)
    there, parent = rows < X, tl.arange(0, JP)
    weight = load_pairs(mass, rows, there, J, JP)
    mean, _, variance = new_variances(
        found, squares, before, weight, rows, there, damping, floor, J, JP, FIRST, EPSILON
    )  # fmt: skip
    logs = 0.5 * tl.sum(tl.log(variance), axis=2)
    cost = (16.0 * tl.load(beta_u + parent, mask=parent < J, other=0.0)[None, :] + logs) * weight
    logit = temperature * (tl.load(beta_a + parent, mask=parent < J, other=0.0)[None, :] - cost)
    store_rows(means, mean, rows, there, J, JP)
    store_rows(precisions, 0.5 / variance, rows, there, J, JP)
    log_sigmoid = tl.minimum(logit, 0.0) - tl.log(1.0 + tl.exp(-tl.abs(logit)))
    store_pairs(heights, log_sigmoid - logs, rows, there, J, JP)
    store_pairs(logits, logit, rows, there, J, JP)
