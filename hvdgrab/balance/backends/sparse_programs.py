"""Triton programs of PairBalance for sparse rows; `kernels` launches them.  The rules are those of `programs`."""
# mypy: ignore-errors
# The body of a program is Triton's language, which has no types that mypy knows.

from __future__ import annotations

import triton
import triton.language as tl

from hvdgrab.balance.backends.programs import is_finite


@triton.jit
def load_entries(indices, values, running_sum, slots, k, d, stride_ik, stride_vk, stride_h):
    """Places in the running sum of the entries `slots` (int64), whether each is there, its value, and h at its place.

    An index outside of 0 … d - 1 gives the value NaN: the row is dropped, and no memory outside of the sum is touched.
    """
    inside = slots < k
    index = tl.load(indices + slots * stride_ik, mask=inside, other=0).to(tl.int64)
    value = tl.load(values + slots * stride_vk, mask=inside, other=0.0).to(tl.float32)
    valid = (index >= 0) & (index < d)
    value = tl.where(valid, value, float("nan"))
    there = inside & valid
    places = running_sum + index * stride_h
    return places, there, tl.where(inside, value, 0.0), tl.load(places, mask=there, other=0.0)


@triton.jit(do_not_specialize=["m"])
def sparse_rows(
    indices, values, running_sum, signs, dropped, m, k, d, stride_im, stride_ik, stride_vm, stride_vk, stride_h,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The literal rule in one program: for each row the product by gathering, then the update by scattering."""
    lanes = tl.arange(0, CHUNK).to(tl.int64)
    for _row in range(m):
        total = tl.zeros((CHUNK,), tl.float32)
        for start in range(0, k, CHUNK):
            _places, _there, value, h = load_entries(
                indices, values, running_sum, start + lanes, k, d, stride_ik, stride_vk, stride_h
            )
            total += h * value
        product = tl.sum(total, 0)
        kept = is_finite(product)
        minus = kept & (product > 0)
        sign = tl.where(minus, -1.0, 1.0)
        for start in range(0, k, CHUNK):
            places, there, value, h = load_entries(
                indices, values, running_sum, start + lanes, k, d, stride_ik, stride_vk, stride_h
            )
            tl.store(places, tl.where(kept, h + sign * value, h), mask=there)
        tl.store(signs, tl.where(minus, -1, 1).to(tl.int8))
        tl.store(dropped, tl.where(kept, 0, 1).to(tl.uint8))
        # The next row gathers what other threads of this program have scattered.
        tl.debug_barrier()
        indices += stride_im
        values += stride_vm
        signs += 1
        dropped += 1


@triton.jit(do_not_specialize=["row", "chunks"])
def sparse_multiply(
    indices, values, running_sum, partials, row, k, d, chunks, stride_im, stride_ik, stride_vm, stride_vk, stride_h,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Program p's share of the product of one row: of the chunks of CHUNK entries p, p + P, …"""
    program = tl.program_id(0)
    row = row.to(tl.int64)
    indices += row * stride_im
    values += row * stride_vm
    total = tl.zeros((CHUNK,), tl.float32)
    for chunk in range(program.to(tl.int64), chunks, tl.num_programs(0)):
        slots = chunk * CHUNK + tl.arange(0, CHUNK)
        _places, _there, value, h = load_entries(indices, values, running_sum, slots, k, d, stride_ik, stride_vk, stride_h)
        total += h * value
    tl.store(partials + program, tl.sum(total, 0))


@triton.jit(do_not_specialize=["row", "chunks"])
def sparse_update(
    indices, values, running_sum, partials, signs, dropped, row, k, d, chunks,
    stride_im, stride_ik, stride_vm, stride_vk, stride_h, PARTS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The sign of one row, found by every program from the same partial sums in the same order, and its share of the update."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    row = row.to(tl.int64)
    indices += row * stride_im
    values += row * stride_vm
    part = tl.arange(0, PARTS)
    product = tl.sum(tl.load(partials + part, mask=part < programs, other=0.0), 0)
    kept = is_finite(product)
    minus = kept & (product > 0)
    sign = tl.where(minus, -1.0, 1.0)
    for chunk in range(program.to(tl.int64), chunks, programs):
        slots = chunk * CHUNK + tl.arange(0, CHUNK)
        places, there, value, h = load_entries(indices, values, running_sum, slots, k, d, stride_ik, stride_vk, stride_h)
        tl.store(places, tl.where(kept, h + sign * value, h), mask=there)
    if program == 0:
        tl.store(signs + row, tl.where(minus, -1, 1).to(tl.int8))
        tl.store(dropped + row, tl.where(kept, 0, 1).to(tl.uint8))
