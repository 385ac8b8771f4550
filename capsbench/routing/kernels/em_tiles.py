"""What the programs behind `fused_em` share: tiles of votes and of what is known of parents, in registers.

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
def load_rows(at, rows, there, J: tl.constexpr, JP: tl.constexpr):
    """Load [X, J, 16] of some rows -> [BX, JP, 16], zeros where there is nothing."""
    parent, element = tl.arange(0, JP)[None, :, None], tl.arange(0, 16)[None, None, :]
    known = there[:, None, None] & (parent < J)
    return tl.load(at + rows[:, None, None] * J * 16 + parent * 16 + element, mask=known, other=0.0)


@triton.jit
@no_type_check
def store_rows(at, values, rows, there, J: tl.constexpr, JP: tl.constexpr):
    """Store [BX, JP, 16] of some rows to [X, J, 16]."""
    parent, element = tl.arange(0, JP)[None, :, None], tl.arange(0, 16)[None, None, :]
    known = there[:, None, None] & (parent < J)
    tl.store(at + rows[:, None, None] * J * 16 + parent * 16 + element, values, mask=known)


@triton.jit
@no_type_check
def load_pairs(at, rows, there, J: tl.constexpr, JP: tl.constexpr):
    """Load [X, J] of some rows -> [BX, JP], zeros where there is nothing."""
    parent = tl.arange(0, JP)[None, :]
    return tl.load(at + rows[:, None] * J + parent, mask=there[:, None] & (parent < J), other=0.0)


@triton.jit
@no_type_check
def store_pairs(at, values, rows, there, J: tl.constexpr, JP: tl.constexpr):
    """Store [BX, JP] of some rows to [X, J]."""
    parent = tl.arange(0, JP)[None, :]
    tl.store(at + rows[:, None] * J + parent, values, mask=there[:, None] & (parent < J))


@triton.jit
@no_type_check
def pose_part(poses, capsules, there, q: tl.constexpr):
    """Load column q of the poses M of some capsules -> [BX, 1, 16], whose element (r, s) is M[r, q]."""
    element = tl.arange(0, 16)[None, None, :] // 4 * 4 + q
    return tl.load(poses + capsules[:, None, None] * 16 + element, mask=there[:, None, None], other=0.0)


@triton.jit
@no_type_check
def map_part(maps, number, q: tl.constexpr, J: tl.constexpr, JP: tl.constexpr):
    """Load row q of the maps W of a child -> [1, JP, 16], whose element (r, s) is W[q, s]."""
    parent, element = tl.arange(0, JP)[None, :, None], q * 4 + tl.arange(0, 16)[None, None, :] % 4
    return tl.load(maps + number * J * 16 + parent * 16 + element, mask=(parent < J) & (element < 16), other=0.0)


@triton.jit
@no_type_check
def make_votes(
    poses, maps, offsets, capsules, there, number, place, J: tl.constexpr, JP: tl.constexpr, OFFSETS: tl.constexpr
):
    """Make the votes M W of one child, [BX, JP, 16]."""
    votes = pose_part(poses, capsules, there, 0) * map_part(maps, number, 0, J, JP)
    for q in tl.static_range(1, 4):
        votes += pose_part(poses, capsules, there, q) * map_part(maps, number, q, J, JP)
    if OFFSETS:
        votes += tl.load(offsets + place * 16 + tl.arange(0, 16))[None, None, :]
    return votes


@triton.jit
@no_type_check
def log_likelihoods(votes, heights, means, precisions):
    """Return height - sum_h precision (V - mean)^2, [BX, JP]."""
    deviations = votes - means
    return heights - tl.sum(precisions * deviations * deviations, axis=2)


@triton.jit
@no_type_check
def load_norms(norms, keys, there, J: tl.constexpr, JP: tl.constexpr, EACH: tl.constexpr):
    """Load what belongs to the groups of some entries -> [BX, JP] or [BX, 1]."""
    found = load_pairs(norms, keys, there, J, JP) if EACH else tl.load(norms + keys, mask=there, other=0.0)[:, None]
    return found  # noqa: RET504 (Triton reads every `return`, whatever EACH is)


@triton.jit
@no_type_check
def make_shares(
    votes, heights, means, precisions, norms, start, entries, keys, there,
    J: tl.constexpr, JP: tl.constexpr, FIRST: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Return the shares R [BX, JP] of the parents in one child, zero where there is no parent."""
    if FIRST:
        shares = tl.load(start + entries, mask=there, other=0.0)[:, None] / J + tl.zeros_like(heights)
    else:
        shares = tl.exp(
            log_likelihoods(votes, heights, means, precisions) - load_norms(norms, keys, there, J, JP, EACH)
        )
    return tl.where(there[:, None] & (tl.arange(0, JP)[None, :] < J), shares, 0.0)


@triton.jit
@no_type_check
def locate(children, groups, rows, there, place, kind, P, KK, T, C, Q):
    """Return entries, capsules and keys of norms, [BX] each, at one place of some rows and of one type."""
    sample = rows // P
    entries = rows % P * KK + place
    cell = tl.load(children + entries, mask=there, other=0)
    group = tl.load(groups + entries, mask=there, other=0)
    return entries, (sample * C + cell) * T + kind, (sample * Q + group) * T + kind


@triton.jit
@no_type_check
def load_gaussians(heights, means, precisions, rows, there, J: tl.constexpr, JP: tl.constexpr, FIRST: tl.constexpr):
    """Load heights, means and precisions of some rows; at first zeros."""
    if FIRST:
        height = tl.zeros((rows.shape[0], JP), dtype=tl.float32)
        mean, precision = height[:, :, None], height[:, :, None]
    else:
        height = load_pairs(heights, rows, there, J, JP)
        mean, precision = load_rows(means, rows, there, J, JP), load_rows(precisions, rows, there, J, JP)
    return height, mean, precision


@triton.jit
@no_type_check
def new_variances(
    found,
    squares,
    before,
    mass,
    rows,
    there,
    damping,
    floor,
    J: tl.constexpr,
    JP: tl.constexpr,
    FIRST: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """Return new means, what damping moved them by, and variances about them, [BX, JP, 16] each."""
    own = load_rows(found, rows, there, J, JP)
    moved = own * damping if FIRST else (own - load_rows(before, rows, there, J, JP)) * damping
    spread = load_rows(squares, rows, there, J, JP) + mass[:, :, None] * moved * moved
    return own - moved, moved, spread / (mass + EPSILON)[:, :, None] + floor
