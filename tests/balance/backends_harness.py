"""What every backend of PairBalance has to hold, run over all of them.

`python -m tests.balance.backends_harness BACKEND [CHECK…]` runs checks, by default all, in a process of their own.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch

from hvdgrab.balance import balance_pairs, pair_balance
from hvdgrab.balance.reference import coordinated_signs
from tests.balance.data import pair_differences, random_gradients, random_orders

INF, NAN = np.float32("inf"), np.float32("nan")
LAYOUTS = ("contiguous", "transposed", "every second", "reversed", "read-only")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def shapes(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """(m, d) drawn from 1 … 17 x 1 … 1,031, and the corners."""
    draw = np.random.default_rng(seed)
    drawn = zip(draw.integers(1, 18, count), draw.integers(1, 1032, count), strict=True)
    return [(1, 1), (17, 1), (1, 1031), (17, 1031), (4, 1024), (5, 1025), *((int(m), int(d)) for m, d in drawn)]


def vectors(m: int, d: int, seed: int = 0, kind: str = "plain") -> np.ndarray:
    rows = np.random.default_rng([m, d, seed]).normal(size=(m, d)).astype(np.float32)
    return np.round(rows * 3) if kind == "integers" else rows


def laid_out(rows: np.ndarray, layout: str) -> np.ndarray:
    made = {
        "contiguous": rows.copy(),
        "transposed": np.ascontiguousarray(rows.T).T,
        "every second": np.repeat(np.repeat(rows, 2, 0), 2, 1)[::2, ::2],
        "reversed": rows[::-1, ::-1].copy()[::-1, ::-1],
        "read-only": rows.copy(),
    }[layout]
    made.setflags(write=layout != "read-only")
    return made


def within_rounding(rows: np.ndarray, signs: np.ndarray, at: int, dropped: np.ndarray | None = None) -> bool:
    """Whether the product that decides sign `at`, in float64 and with the signs before it given, is float32 rounding noise.

    A float32 sum of n terms is off by about sqrt(n) rounding errors of the terms' absolute values, and by n at the very most.
    """
    kept = rows[:at].astype(np.float64) * signs[:at, None]
    if dropped is not None:
        kept = kept[~dropped[:at]]
    row = rows[at].astype(np.float64)
    product, scale = kept.sum(axis=0) @ row, np.abs(kept).sum(axis=0) @ np.abs(row)
    return bool(abs(product) <= 4 * np.sqrt(rows.shape[1] + at) * np.finfo(np.float32).eps * scale)


def assert_explained(rows: np.ndarray, expected: np.ndarray, got: np.ndarray, dropped: np.ndarray | None = None) -> bool:
    """True where all signs are equal; where the FIRST that differs was decided by rounding, False; anything else fails."""
    apart = np.flatnonzero(expected != got)
    if not len(apart):
        return True
    assert within_rounding(rows, expected, int(apart[0]), dropped), f"sign {apart[0]} differs, and not by rounding"
    return False


def check(backend: str, rows: Any, plain: np.ndarray | None = None) -> None:
    """Signs, drops and running sum against the reference, which sees `plain`, the rows as contiguous float32."""
    plain = np.asarray(rows) if plain is None else plain
    expected_h = np.zeros(plain.shape[1], dtype=np.float32)
    expected, expected_drops = balance_pairs(plain, expected_h, "reference")
    h = torch.zeros(plain.shape[1]) if isinstance(rows, torch.Tensor) else np.zeros(plain.shape[1], dtype=np.float32)
    signs, dropped = (np.asarray(part) for part in balance_pairs(rows, h, backend))
    assert (signs.dtype, dropped.dtype) == (np.int8, np.bool_)
    if assert_explained(plain, expected, signs, expected_drops):
        assert np.array_equal(dropped, expected_drops)
        assert np.allclose(np.asarray(h), expected_h, rtol=1e-5, atol=1e-4 * max(1.0, np.abs(expected_h).max(initial=0)))


def check_shapes(backend: str, count: int = 30) -> None:
    for m, d in shapes(count):
        check(backend, vectors(m, d))
        check(backend, torch.from_numpy(vectors(m, d, kind="integers")))


def check_layouts(backend: str) -> None:
    for m, d in shapes(2, seed=1):
        rows = vectors(m, d)
        for layout in LAYOUTS:
            check(backend, laid_out(rows, layout), rows)


def check_types(backend: str) -> None:
    for m, d in shapes(2, seed=2):
        for dtype in DTYPES:
            rows = torch.from_numpy(vectors(m, d)).to(dtype)
            check(backend, rows, rows.float().numpy())
            check(backend, rows.t().contiguous().t(), rows.float().numpy())
            if dtype is not torch.bfloat16:
                check(backend, rows.numpy(), rows.float().numpy())


def check_ranks(backend: str) -> None:
    """All ranks of an epoch in one call, against the project's own literal algorithm, which shares no code with the backends."""
    for ranks in range(1, 8):
        for n in (2, 3, 10):
            gradients, orders = np.round(random_gradients(ranks, n, 37) * 3), random_orders(ranks, n)
            expected = coordinated_signs(gradients, orders)
            h = np.zeros(37, dtype=np.float32)
            signs = pair_balance(pair_differences(gradients, orders), h, backend)
            assert np.array_equal(signs.reshape(n // 2, ranks).T, expected.signs)
            assert np.array_equal(h, expected.h)


def check_groupings(backend: str) -> None:
    """Where sums are exact no grouping into calls can matter, not even for the bits of the running sum."""
    rows = vectors(23, 300, kind="integers")
    whole_h = np.zeros(300, dtype=np.float32)
    whole = pair_balance(rows, whole_h, backend)
    for cuts in ([1], [4, 8], [3, 4, 5, 6], [0, 7, 21], list(range(1, 23))):
        h = np.zeros(300, dtype=np.float32)
        parts = [pair_balance(part, h, backend) for part in np.split(rows, cuts)]
        assert np.array_equal(np.concatenate(parts), whole)
        assert np.array_equal(h, whole_h)


def check_drops(backend: str) -> None:
    """A bad value at every place of a group of four and after it, one or several: dropped, and the others as without it."""
    for bad in (NAN, INF, -INF):
        for places in ([0], [1], [2], [3], [6], [8], [0, 1, 2, 3], [2, 7, 8], list(range(9))):
            rows = vectors(9, 21)
            rows[places, 20] = bad
            check(backend, rows)
            h = np.zeros(21, dtype=np.float32)
            assert np.flatnonzero(balance_pairs(rows, h, backend)[1]).tolist() == places
            assert np.isfinite(h).all()


def check_overflow(backend: str) -> None:
    """Finite values whose products are not: dropped exactly where the literal loop drops them."""
    for values in ([3e38, 3e38, 1, 2, 3], [1e20, 1, 1e20, -1e20, 5], [1, 3e38, 1e30, 2, 1e10], [0, 3e38, 0, -3e38, 1]):
        check(backend, np.array(values, dtype=np.float32)[:, None])


def check_ties(backend: str) -> None:
    """Zero vectors, equal vectors and an empty sum: a product of 0 gives +1."""
    assert pair_balance(np.zeros((9, 5), dtype=np.float32), np.zeros(5, dtype=np.float32), backend).tolist() == [1] * 9
    ones = pair_balance(np.ones((9, 5), dtype=np.float32), np.zeros(5, dtype=np.float32), backend)
    assert ones.tolist() == [1, -1, 1, -1, 1, -1, 1, -1, 1]


def check_empty(backend: str) -> None:
    for m, d in ((0, 3), (3, 0), (0, 0)):
        signs, dropped = balance_pairs(np.zeros((m, d), dtype=np.float32), np.zeros(d, dtype=np.float32), backend)
        assert signs.tolist() == [1] * m
        assert not dropped.any()


def check_strided_sum(backend: str) -> None:
    rows = vectors(9, 6)
    expected = np.zeros(6, dtype=np.float32)
    pair_balance(rows, expected, backend)
    for room in (np.zeros(12, dtype=np.float32)[::2], np.zeros(6, dtype=np.float32)[::-1]):
        pair_balance(rows, room, backend)
        assert np.array_equal(room, expected)


def check_input_is_not_changed(backend: str) -> None:
    rows = vectors(9, 50)
    before = rows.copy()
    pair_balance(rows, np.zeros(50, dtype=np.float32), backend)
    assert np.array_equal(rows, before)


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]


def main(backend: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or [run_check.__name__ for run_check in CHECKS]:
        globals()[name](backend)
        print(name, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
