"""What the Triton kernels of the fold sketch must do; run by tests.kernels."""

from __future__ import annotations

import mmap
from itertools import pairwise
from unittest import mock

import numpy as np
import torch

from hvdgrab.compression import FoldSketch, kernels
from hvdgrab.compression.fold import hashed_signs
from hvdgrab.compression.kernels import finish, fold_pieces
from hvdgrab.compression.rows import POOL, FoldRows
from tests.kernels import check, compile_check, compiling

SEED = 3
PROGRAMS = "hvdgrab.compression.programs"


def tables(width: int, end: int, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Signs of the blocks up to coordinate `end`, and of the pool."""
    period = POOL * width
    blocks = hashed_signs(SEED, 1, np.arange(-(-end // period), dtype=np.uint64))
    pool = hashed_signs(SEED, 2, np.arange(period, dtype=np.uint64)).reshape(POOL, width)
    return torch.from_numpy(blocks).to(device, dtype), torch.from_numpy(pool).to(device, dtype)


def integers(d: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-5, 6, (d,), generator=torch.Generator().manual_seed(seed)).float()


def folded(vector: torch.Tensor, cuts: list[int], width: int, device: str, rows: int = POOL, first: int = 0) -> torch.Tensor:
    """The sketch of `vector` at coordinate `first`, in pieces that begin at the `cuts`."""
    blocks, pool = tables(width, first + len(vector), torch.int8, device)
    accumulator = torch.zeros(rows, width, device=device)
    pieces = [(vector[a:b].to(device), first + a) for a, b in pairwise([*cuts, len(vector)])]
    fold_pieces(accumulator, pieces, blocks)
    return finish(accumulator, pool).cpu()


@check
def integer_vectors_give_the_bytes_of_the_fold(device: str) -> None:
    for width, d, cuts in ((1, 200, [0, 64, 65, 70, 70, 199]), (7, 1000, [0, 448]), (17, 5000, [0, 3000]), (131, 100, [0])):
        vector = integers(d, width)
        assert torch.equal(folded(vector, cuts, width, device), FoldSketch(width, SEED).fold(vector)), (width, d)


@check
def pieces_may_begin_and_come_anywhere(device: str) -> None:
    sketch, vector = FoldSketch(5, SEED), integers(1500)
    expected = sketch.fold(vector, 1234)
    blocks, pool = tables(5, 1234 + 1500, torch.float32, device)
    for order in ([0, 1, 2], [2, 0, 1]):
        pieces = [(vector[a:b].to(device), 1234 + a) for a, b in ((0, 3), (3, 700), (700, 1500))]
        rows = torch.zeros(POOL, 5, device=device)
        fold_pieces(rows, [pieces[i] for i in order], blocks)
        assert torch.equal(finish(rows, pool).cpu(), expected)


@check
def dtypes_may_be_mixed_and_are_added_in_float32(device: str) -> None:
    sketch, vector = FoldSketch(3, SEED), integers(900)
    blocks, pool = tables(3, 900, torch.int8, device)
    rows = torch.zeros(POOL, 3, device=device)
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    pieces = [(part.to(device, dtype), 225 * i) for i, (part, dtype) in enumerate(zip(vector.split(225), dtypes, strict=True))]
    fold_pieces(rows, pieces, blocks)
    assert torch.equal(finish(rows, pool).cpu(), sketch.fold(vector))


@check
def rows_that_stream_are_folded_alike_with_and_without_the_kernels(device: str) -> None:
    sketch, vector = FoldSketch(3, SEED), integers(700)
    plain, fused = (FoldRows(sketch, 700, torch.device(device), fused=fused) for fused in (False, True))
    for rows in (plain, fused):
        for start, end in ((300, 700), (0, 3), (3, 300)):
            rows.add(vector[start:end].to(device), start, 0.5)
        rows.add_rows(torch.tensor([3, 1], device=device), integers(10).view(2, 5).to(device), 100)
    assert torch.equal(plain.rows, fused.rows)
    assert torch.equal(plain.finish(), fused.finish())


@check
def the_scale_is_a_number_or_lies_on_the_device(device: str) -> None:
    sketch, vector = FoldSketch(3, SEED), integers(700)
    blocks, pool = tables(3, 700, torch.int8, device)
    rows = torch.zeros(POOL, 3, device=device)
    fold_pieces(rows, [(vector.to(device), 0)], blocks, alpha=0.25)
    fold_pieces(rows, [(vector.to(device), 0)], blocks, alpha=torch.tensor(-2.0, device=device))
    assert torch.equal(finish(rows, pool).cpu(), -1.75 * sketch.fold(vector))


@check
def a_short_vector_needs_few_rows(device: str) -> None:
    vector = integers(21)
    assert torch.equal(folded(vector, [0, 10], 7, device, rows=3), FoldSketch(7, SEED).fold(vector))


@check
def real_vectors_agree_to_rounding_and_repeat_to_the_bit(device: str) -> None:
    vector = torch.randn(2000, generator=torch.Generator().manual_seed(5))
    expected = FoldSketch(11, SEED).fold(vector)
    found = [folded(vector, [0, 100, 1000], 11, device) for _ in range(2)]
    assert torch.equal(*found)
    size = FoldSketch(11, SEED).fold(vector.abs() * torch.from_numpy(FoldSketch(11, SEED).signs(2000)))
    assert ((found[0] - expected).abs() <= 2.0**-20 * size).all()


@check
def values_that_are_not_finite_stay_in_their_bucket(device: str) -> None:
    vector = integers(600)
    vector[17], vector[300] = float("nan"), float("inf")
    found, expected = folded(vector, [0], 7, device), FoldSketch(7, SEED).fold(vector)
    assert torch.equal(found.isfinite(), expected.isfinite())
    assert torch.equal(found[found.isfinite()], expected[expected.isfinite()])
    assert int(found.isfinite().sum()) == 5


@check
def nothing_to_fold(device: str) -> None:
    blocks, pool = tables(2, 1, torch.int8, device)
    rows = torch.ones(POOL, 2, device=device)
    fold_pieces(rows, [], blocks)
    fold_pieces(rows, [(torch.zeros(0, device=device), 0)], blocks)
    assert torch.equal(rows, torch.ones_like(rows))
    assert torch.equal(finish(rows, pool).cpu(), pool.float().cpu().sum(0))


@check
def offsets_are_beyond_32_bits(device: str) -> None:
    """A piece of 2^32 elements, in memory that is reserved and touched in few pages; blocks large enough to be few."""
    if device != "cpu":
        return
    width, d = 2**17, 2**32
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    vector = torch.from_numpy(np.frombuffer(mmap.mmap(-1, 2 * d, flags=flags), dtype=np.float16))
    places = [5, POOL * width + 5, d - POOL * width + 6]
    vector[places] = torch.tensor([1.0, 2.0, 4.0]).half()
    blocks = torch.ones(d // (POOL * width), dtype=torch.int8)
    rows = torch.zeros(POOL, width)
    # One program, that of the first places: the others would touch all of the memory.
    # After a launch the interpreter copies every argument's memory over itself.
    with (
        mock.patch.object(kernels, "_programs_of", lambda _: 1),
        mock.patch.object(torch.UntypedStorage, "copy_", lambda self, *_: self),
    ):
        fold_pieces(rows, [(vector, 0)], blocks)
    assert rows.view(-1)[:8].tolist() == [0, 0, 0, 0, 0, 3, 4, 0]


@compile_check
def launches_compile() -> None:
    with compiling(kernels, PROGRAMS) as programs:
        rows, pool = torch.empty(POOL, 4096, device="meta"), torch.empty(POOL, 4096, dtype=torch.int8, device="meta")
        blocks = torch.empty(20_000, device="meta")
        for dtype, start in ((torch.float32, 0), (torch.bfloat16, 2**32)):
            fold_pieces(rows, [(torch.empty(1000, dtype=dtype, device="meta"), start)] * 3, blocks)
        fold_pieces(rows, [(torch.empty(9, device="meta"), 0)], blocks, alpha=torch.empty(1, device="meta"))
        finish(rows, pool)
        finish(torch.empty(1, 1, device="meta"), torch.empty(POOL, 1, device="meta"))
    assert (len(programs.fold.codes), len(programs.add_rows.codes)) == (3, 2)
