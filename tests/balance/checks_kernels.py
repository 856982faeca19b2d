"""What the Triton kernels of PairBalance must do; run by tests.kernels."""

from __future__ import annotations

import mmap
import re
import sys
from typing import Any
from unittest import mock

import numpy as np
import torch

from hvdgrab.balance import balance_pairs
from hvdgrab.balance.backends import kernels
from hvdgrab.balance.backends.kernels import Tiles, balance
from tests.kernels import check, compile_check, compiling

ROUNDING = 2.0**-20
"""Of a float32 inner product, relative to the sum of the products' absolute values: 16 times that of one operation."""
NAN, INF = float("nan"), float("inf")
BLOCKS = Tiles(2, 32, 2, 0)
"""Small blocks: the interpreter takes 0.2 ms an operation."""
CUTS = [Tiles(), BLOCKS]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def integers(shape: tuple[int, ...], seed: int, top: int = 3) -> torch.Tensor:
    return torch.randint(-top, top + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def assert_equals_the_reference(rows: torch.Tensor, h: torch.Tensor, tiles: Tiles, device: str) -> None:
    """Signs, dropped rows and running sum, to the bit: for rows whose products have no rounding."""
    expected_h, found_h = h.clone(), h.to(device, copy=True)
    signs, dropped = balance_pairs(rows, expected_h, "reference")
    found, found_dropped = balance(rows.to(device), found_h, tiles)
    assert (found.dtype, found_dropped.dtype, found.device.type) == (torch.int8, torch.bool, device)
    assert torch.equal(found.cpu(), signs), (tuple(rows.shape), tiles)
    assert torch.equal(found_dropped.cpu(), dropped), (tuple(rows.shape), tiles)
    assert torch.equal(found_h.cpu(), expected_h), (tuple(rows.shape), tiles)


def assert_every_sign_is_right(rows: torch.Tensor, h: torch.Tensor, signs: torch.Tensor, found_h: torch.Tensor) -> int:
    """Each sign is that of the product with the sum that the signs before it give, in float64, or that is rounding of zero.

    Returns the number of signs that only rounding explains.
    """
    total, size, explained = h.double().numpy(), np.abs(h.double().numpy()), 0
    for row, sign in zip(rows.double().numpy(), signs.tolist(), strict=True):
        product = float(total @ row)
        if sign != (1 if product <= 0 else -1):
            assert abs(product) <= ROUNDING * float(size @ np.abs(row)), (product, sign)
            explained += 1
        total, size = total + sign * row, size + np.abs(row)
    assert (np.abs(found_h.double().numpy() - total) <= ROUNDING * size).all()
    return explained


@compile_check
def importing_kernels_imports_no_triton() -> None:
    """The first check of its process: the kernels of both rooms are imported, and none was launched."""
    assert "hvdgrab.compression.kernels" in sys.modules
    assert "triton" not in sys.modules


@check
def integer_rows_equal_the_reference_to_the_bit(device: str) -> None:
    cuts = {
        Tiles(): [(1, 1), (17, 1), (5, 2), (16, 33), (11, 1031)],
        BLOCKS: [(1, 1), (4, 1), (2, 64), (5, 130)],
        Tiles(4, 16, 2, 0): [(5, 33)],
        Tiles(resident=0): [(9, 700)],
    }
    for tiles, shapes in cuts.items():
        for seed, (m, d) in enumerate(shapes):
            assert_equals_the_reference(integers((m, d), seed), integers((d,), seed + 50), tiles, device)


@check
def real_rows_differ_within_rounding_of_zero_only(device: str) -> None:
    for tiles in (Tiles(), Tiles(4, 256, 2, 0)):
        rows = torch.randn(11, 301, generator=torch.Generator().manual_seed(7))
        h = torch.zeros(301, device=device)
        signs, _ = balance(rows.to(device), h, tiles)
        assert assert_every_sign_is_right(rows, torch.zeros(301), signs.cpu(), h.cpu()) <= 2


@check
def the_judge_of_signs_catches_reversed_ones(_: str) -> None:
    rows = torch.randn(9, 20, generator=torch.Generator().manual_seed(1))
    total = torch.zeros(20)
    signs = balance_pairs(rows, total, "reference")[0]
    assert assert_every_sign_is_right(rows, torch.zeros(20), signs, total) == 0
    reversed_rule, h = [], torch.zeros(20)
    for row in rows:
        reversed_rule.append(1 if h @ row > 0 else -1)
        h += reversed_rule[-1] * row
    for wrong in (torch.tensor(reversed_rule), torch.ones_like(signs)):
        try:
            assert_every_sign_is_right(rows, torch.zeros(20), wrong, (wrong[:, None] * rows).sum(0))
        except AssertionError:
            continue
        raise AssertionError("wrong signs were taken for right ones")


@check
def dropped_rows_leave_no_trace(device: str) -> None:
    """NaN and infinity in every place of a block, next to one another, and beyond float32."""
    for tiles in CUTS:
        rows = integers((8, 40), 3)
        for row, place, bad in ((0, 0, NAN), (2, 20, -INF), (3, 39, INF), (4, 33, NAN), (7, 7, INF)):
            rows[row, place] = bad
        assert_equals_the_reference(rows, torch.zeros(40), tiles, device)
        assert_equals_the_reference(torch.full((3, 5), NAN), integers((5,), 1), tiles, device)
        beyond = torch.ones(2, 3, dtype=torch.float64)
        beyond[0, 1] = 1e300
        assert_equals_the_reference(beyond, torch.zeros(3), tiles, device)


@check
def overflow_is_that_of_the_literal_product(device: str) -> None:
    """A product that overflows drops its row; one that only overflows on the way that blocks take does not."""
    big = 2.0**63
    cases = [
        [[3e38], [3e38], [1.0]],
        # The second row cancels the first in column 0: to the third, the sum is 0 there, but both mutual products overflow.
        [[big, 1.0], [-big, 1.0], [2.0**80, 1.0], [1.0, 1.0]],
        [[big, NAN], [big, 1.0], [-big, 1.0], [2.0**80, 4.0], [1.0, 3.0]],
        [[0.0, 2.0**100], [2.0**70, 0.0], [0.0, -(2.0**30)], [2.0**90, 0.0], [1.0, 0.0]],
    ]
    for rows in cases:
        for tiles in CUTS:
            assert_equals_the_reference(torch.tensor(rows), torch.zeros(len(rows[0])), tiles, device)


@check
def every_dtype_and_layout(device: str) -> None:
    rows = integers((3, 48), 5)
    for tiles in CUTS:
        for dtype in DTYPES:
            assert_equals_the_reference(rows[:2, :30].to(dtype), torch.zeros(30), tiles, device)
        expected = torch.zeros(48)
        signs, _ = balance_pairs(rows, expected, "reference")
        layouts = [rows.t().contiguous().t(), torch.nn.functional.pad(rows.repeat_interleave(3, 1), (5, 2))[:, 5:-2:3]]
        for layout in layouts:
            base = torch.zeros(96, device=device)
            # On a GPU `to` would make the strided layouts dense.
            found, _ = balance(layout.to(device).as_strided(rows.shape, layout.to(device).stride()), base[::2], tiles)
            assert torch.equal(found.cpu(), signs)
            assert torch.equal(base[::2].cpu(), expected)
            assert not base[1::2].any()


@check
def any_grouping_into_calls_gives_the_same(device: str) -> None:
    rows = integers((7, 30), 8).to(device)
    for tiles in CUTS:
        whole, parts = torch.zeros(30, device=device), torch.zeros(30, device=device)
        signs, _ = balance(rows, whole, tiles)
        pieces = [balance(part, parts, tiles)[0] for part in rows.split([1, 4, 2])]
        assert torch.equal(torch.cat(pieces), signs)
        assert torch.equal(parts, whole)


@check
def the_same_call_gives_the_same_bits(device: str) -> None:
    rows = torch.randn(5, 333, generator=torch.Generator().manual_seed(2)).to(device)
    for tiles in (Tiles(), Tiles(2, 128, 2, 0)):
        sums = [torch.zeros(333, device=device) for _ in range(2)]
        signs = [balance(rows, h, tiles)[0] for h in sums]
        assert torch.equal(*signs)
        assert torch.equal(*sums)


@check
def empty_input(device: str) -> None:
    for m, d in ((0, 3), (3, 0), (0, 0)):
        signs, dropped = balance(torch.zeros(m, d, device=device), torch.zeros(d, device=device))
        assert (signs.tolist(), dropped.tolist()) == ([1] * m, [False] * m)


@check
def offsets_are_beyond_32_bits(device: str) -> None:
    """A stride that 32 bits hold while its multiples do not, and one beyond: in memory that is touched in a few pages only.

    What lies a stride behind the last row is not mapped: a program that looks there ends the process.
    """
    if device != "cpu":
        return
    for m, stride in ((5, 2**30 + 16), (3, 2**32 + 16)):
        view = torch.from_numpy(reserve((m - 1) * stride + 20)).view(torch.float16).as_strided((m, 20), (stride, 1))
        view.copy_(integers((m, 20), 4))
        # The interpreter copies every argument's memory over itself after a launch, which would touch all of it.
        with mock.patch.object(torch.UntypedStorage, "copy_", lambda self, *_: self):
            for tiles in (Tiles(), Tiles(2, 32, 2, 0)):
                assert_equals_the_reference(view, torch.zeros(20), tiles, device)


def reserve(elements: int) -> np.ndarray[Any, Any]:
    """int16 zeros in pages that take memory once they are written to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    return np.frombuffer(mmap.mmap(-1, 2 * elements, flags=flags), dtype=np.int16)


@check
def warming_up_runs(device: str) -> None:
    for d in (16, 7):
        kernels.warm_up(d, torch.float16, device, Tiles(2, 16, 2, 0))


PROGRAMS = "hvdgrab.balance.backends.programs"


def launch(shape: tuple[int, int], dtype: torch.dtype, tiles: Tiles) -> None:
    balance(torch.empty(shape, dtype=dtype, device="meta"), torch.empty(shape[1], device="meta"), tiles)


def whole_pass(values: dict[str, Any]) -> bool:
    return bool(values.get("UPDATE", True) and values.get("MULTIPLY", True))


@compile_check
def dense_launches_compile() -> None:
    with compiling(kernels, PROGRAMS) as programs:
        launch((3, 8000), torch.float32, Tiles())
        launch((3, 1), torch.bfloat16, Tiles())
        launch((5, 10_001), torch.float16, Tiles(rows=2))
    counts = [len(one.codes) for one in (programs.resident, programs.update_and_multiply, programs.decide)]
    assert counts == [2, 3, 1]


@compile_check
def the_default_tiles_compile() -> None:
    """Of the passes the one that updates and multiplies: the others are parts of it."""
    with compiling(kernels, PROGRAMS, whole_pass) as programs:
        launch((9, 2**20), torch.float32, Tiles())
    assert [len(one.codes) for one in (programs.update_and_multiply, programs.decide)] == [1, 1]


@compile_check
def sizes_beyond_32_bits_compile() -> None:
    with compiling(kernels, PROGRAMS, whole_pass) as programs:
        launch((3, 2**32 + 7), torch.float32, Tiles(rows=2))
        strided = torch.empty(3, 2**32 + 7, device="meta")[:, :9]
        balance(strided, torch.empty(9, device="meta"), Tiles(rows=2, resident=0))
    codes = programs.update_and_multiply.codes + programs.decide.codes
    assert len(codes) == 4
    for code in codes:
        offsets = offsets_from_first_two(code["ttir"])
        assert len(offsets) > 4
        assert all("i64" in line.rsplit(",", 1)[-1] for line in offsets), offsets


def offsets_from_first_two(code: str) -> list[str]:
    """Lines of a program that move a pointer which comes from one of its first two arguments, the rows and the running sum."""
    head = re.search(r"tt\.func public @\w+\((%\w+): [^%]*(%\w+):", code)
    assert head
    pointers, moves = set(head.groups()), []
    for line in code.splitlines():
        step = re.match(r"\s*(%\w+) = tt\.(addptr|splat|broadcast) (%\w+)", line)
        if step and step[3] in pointers:
            pointers.add(step[1])
            moves += [line] if step[2] == "addptr" else []
    return moves
