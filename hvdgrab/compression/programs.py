"""Triton programs of the fold sketch; `kernels` launches them and says what they compute."""
# mypy: ignore-errors
# The body of a program is Triton's language, which has no types that mypy knows.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pieces", "alpha"])
def fold(
    rows, table, block_signs, alpha, pieces, size, period,
    ELEMENT: tl.constexpr, ALPHA_ON_DEVICE: tl.constexpr, POSITIONS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Program p owns POSITIONS places of the accumulator and adds to them what every piece has there, BLOCKS blocks at a time.

    `table` (pieces, 3) int64: address, first global coordinate and length of each piece, whose elements are of type ELEMENT.
    `alpha`: a float, or the address of one float32.  `size`: places of the accumulator, at most `period`.
    """
    place = tl.program_id(0).to(tl.int64) * POSITIONS + tl.arange(0, POSITIONS)
    lane = tl.arange(0, BLOCKS).to(tl.int64)
    total = tl.zeros((BLOCKS, POSITIONS), tl.float32)
    for piece in range(pieces):
        start = tl.load(table + piece * 3 + 1)
        length = tl.load(table + piece * 3 + 2)
        elements = tl.load(table + piece * 3).to(tl.pointer_type(ELEMENT))
        # Of the blocks that the piece touches, those in which it reaches this program's places.
        own = tl.program_id(0).to(tl.int64) * POSITIONS
        first = tl.maximum(start - own - POSITIONS + period, 0) // period
        stop = tl.maximum(start + length - own + period - 1, 0) // period
        for base in range(first, stop, BLOCKS):
            block = base + lane
            element = (block * period)[:, None] + place[None, :] - start
            inside = (element >= 0) & (element < length) & (place < size)[None, :]
            sign = tl.load(block_signs + block, mask=block < stop, other=0).to(tl.float32)
            total += sign[:, None] * tl.load(elements + element, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(alpha) if ALPHA_ON_DEVICE else alpha
    old = tl.load(rows + place, mask=place < size, other=0.0)
    tl.store(rows + place, old + scale * tl.sum(total, 0), mask=place < size)


@triton.jit
def add_rows(rows, pool_signs, out, count, width, COLUMNS: tl.constexpr):
    """out = Σ over the `count` rows, from the first to the last, of row · its pool signs; program p owns COLUMNS columns."""
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for row in range(count):
        place = row * width + column
        sign = tl.load(pool_signs + place, mask=column < width, other=0).to(tl.float32)
        total += sign * tl.load(rows + place, mask=column < width, other=0.0)
    tl.store(out + column, total, mask=column < width)
