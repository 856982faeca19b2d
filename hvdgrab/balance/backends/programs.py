"""Triton programs of PairBalance; `kernels` launches them and documents what they compute.

In all of them, offsets are 64-bit, sums have a fixed order that depends on shapes alone, and there are no atomics.  A dropped row
may hold NaN, and 0·NaN is NaN: such rows are left out by selection, never by a coefficient of zero.
"""
# mypy: ignore-errors
# ruff: noqa: RUF005
# The body of a program is Triton's language, which has no types that mypy knows
# and no unpacking in tuples.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def is_finite(x):
    """False for NaN and both infinities."""
    return tl.abs(x) < float("inf")


@triton.jit
def load_row(differences, row, m, d, cols, stride_m, stride_d):
    """Load elements `cols` (int64) of row `row` (int64) in float32; zero outside the (m, d) matrix."""
    width = tl.where(row < m, d, 0)  # not (cols < d) & (row < m): the interpreter cannot combine a vector and a scalar
    return tl.load(differences + row * stride_m + cols * stride_d, mask=cols < width, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["m"])
def resident(differences, running_sum, signs, dropped, m, d, stride_m, stride_d, stride_h, WIDTH: tl.constexpr):
    """Apply the literal rule in one program that keeps the running sum in registers: WIDTH >= d, a power of two."""
    cols = tl.arange(0, WIDTH).to(tl.int64)
    inside = cols < d
    h = tl.load(running_sum + cols * stride_h, mask=inside, other=0.0)
    place = differences + cols * stride_d
    row = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    for i in range(m):
        # loaded before the sign of this row is known, so that the reduction hides the latency
        place += stride_m
        following = tl.load(place, mask=cols < tl.where(i + 1 < m, d, 0), other=0.0).to(tl.float32)
        product = tl.sum(h * row, 0)
        kept = is_finite(product)
        minus = kept & (product > 0)
        h = tl.where(kept, h + tl.where(minus, -1.0, 1.0) * row, h)
        tl.store(signs, tl.where(minus, -1, 1).to(tl.int8))
        tl.store(dropped, tl.where(kept, 0, 1).to(tl.uint8))
        signs += 1
        dropped += 1
        row = following
    tl.store(running_sum + cols * stride_h, h, mask=inside)


@triton.jit(do_not_specialize=["begin", "m", "chunks"])
def update_and_multiply(
    differences, running_sum, coefficients, partials, begin, m, d, chunks, stride_m, stride_d, stride_h,
    UPDATE: tl.constexpr, MULTIPLY: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Pass over the columns: h += Σ coefficient·row of the block before `begin`, then the products of the block at `begin`.

    Program p takes the chunks of CHUNK columns p, p + P, p + 2P, … (P programs, a function of d) and writes its share of

    - <row i, row j>, i < j, to partials[i·ROWS + j, p];
    - Σ 0·row i, which is NaN if the row is not finite and else 0, to partials[i·ROWS + i, p];
    - <h, row i> to partials[ROWS·ROWS + i, p].
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    begin = begin.to(tl.int64)
    sums = ()
    for _ in tl.static_range(ROWS * (ROWS + 3) // 2 if MULTIPLY else 0):
        sums = sums + (tl.zeros((CHUNK,), tl.float32),)
    for chunk in range(program.to(tl.int64), chunks, programs):
        cols = chunk * CHUNK + tl.arange(0, CHUNK)
        inside = cols < d
        h = tl.load(running_sum + cols * stride_h, mask=inside, other=0.0)
        if UPDATE:
            for i in tl.static_range(ROWS):
                coefficient = tl.load(coefficients + i)
                row = load_row(differences, begin - ROWS + i, m, d, cols, stride_m, stride_d)
                h = tl.where(coefficient != 0, h + coefficient * row, h)
            tl.store(running_sum + cols * stride_h, h, mask=inside)
        if MULTIPLY:
            rows = ()
            for i in tl.static_range(ROWS):
                rows = rows + (load_row(differences, begin + i, m, d, cols, stride_m, stride_d),)
            grown = ()
            for i in tl.static_range(ROWS):
                grown = grown + (sums[len(grown)] + h * rows[i],)
            for i in tl.static_range(ROWS):
                grown = grown + (sums[len(grown)] + rows[i] * 0.0,)
                for j in tl.static_range(i + 1, ROWS):
                    grown = grown + (sums[len(grown)] + rows[i] * rows[j],)
            sums = grown
    if MULTIPLY:
        for i in tl.static_range(ROWS):
            tl.store(partials + (ROWS * ROWS + i) * programs + program, tl.sum(sums[i], 0))
            for j in tl.static_range(i, ROWS):
                total = tl.sum(sums[ROWS + i * ROWS - i * (i + 1) // 2 + j], 0)
                tl.store(partials + (i * ROWS + j) * programs + program, total)


@triton.jit
def exact_product(
    differences, running_sum, coefficients, i, begin, m, d, chunks, stride_m, stride_d, stride_h,
    ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Compute <h, row begin + i>, with h after the i rows before it: the product of the literal rule."""
    lane = tl.arange(0, ROWS)
    total = tl.zeros((CHUNK,), tl.float32)
    for chunk in range(begin * 0, chunks):  # from an int64 zero
        cols = chunk * CHUNK + tl.arange(0, CHUNK)
        inside = cols < d
        h = tl.load(running_sum + cols * stride_h, mask=inside, other=0.0)
        for k in range(i):
            coefficient = tl.sum(tl.where(lane == k, coefficients, 0.0), 0)
            row = load_row(differences, begin + k, m, d, cols, stride_m, stride_d)
            h = tl.where(coefficient != 0, h + coefficient * row, h)
        total += h * load_row(differences, begin + i, m, d, cols, stride_m, stride_d)
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["begin", "m", "chunks", "programs"])
def decide(
    differences, running_sum, coefficients, partials, signs, dropped, begin, m, d, chunks, programs,
    stride_m, stride_d, stride_h, PARTS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Add up the partial sums, then decide the signs of the block at `begin`, one after the other, in one program.

    c_j = <h, row j> to start with; for each i: s_i from c_i, then c_j += s_i·<row i, row j> for all j > i.
    """
    lane, part = tl.arange(0, ROWS), tl.arange(0, PARTS)
    begin = begin.to(tl.int64)
    there = (part < programs)[None, :]
    products = tl.sum(tl.load(partials + (ROWS * ROWS + lane)[:, None] * programs + part[None, :], mask=there, other=0.0), 1)
    chosen = tl.zeros((ROWS,), tl.float32)
    for i in range(ROWS):
        addresses = partials + (i * ROWS + lane)[:, None] * programs + part[None, :]
        mutual = tl.sum(tl.load(addresses, mask=there & (lane >= i)[:, None], other=0.0), 1)
        product = tl.sum(tl.where(lane == i, products, 0.0), 0)
        finite_row = tl.sum(tl.where(lane == i, mutual, 0.0), 0) == 0
        if finite_row & (is_finite(product) == 0):
            # a product in the block overflowed, but the one of the literal rule need not overflow
            product = exact_product(
                differences, running_sum, chosen, i, begin, m, d, chunks, stride_m, stride_d, stride_h, ROWS, CHUNK
            )
        kept = finite_row & is_finite(product)
        sign = tl.where(product > 0, -1.0, 1.0)
        place = tl.where(kept, i, ROWS)
        products = tl.where(lane > place, products + sign * mutual, products)
        chosen = tl.where(lane == place, sign, chosen)
    rows = begin + lane
    tl.store(coefficients + lane, tl.where(rows < m, chosen, 0.0))
    tl.store(signs + rows, tl.where(chosen < 0, -1, 1).to(tl.int8), mask=rows < m)
    tl.store(dropped + rows, tl.where(chosen == 0, 1, 0).to(tl.uint8), mask=rows < m)
