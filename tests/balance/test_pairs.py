from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdgrab.balance import balance_pairs, pair_balance
from hvdgrab.balance.reference import coordinated_signs
from hvdgrab.errors import ConfigError, UsageError
from tests.balance.data import pair_differences, random_gradients, random_orders

INF, NAN = np.float32("inf"), np.float32("nan")


def zeros(d: int) -> np.ndarray:
    return np.zeros(d, dtype=np.float32)


def spoil(gradients: np.ndarray, kind: str) -> np.ndarray:
    """Variants of the input for which the rule has a special answer."""
    gradients = gradients.copy()
    if kind == "zeros":
        gradients[:] = 0
    elif kind == "duplicates":
        gradients[:] = gradients[:1, :1]
    elif kind == "non-finite on one rank":
        gradients[-1, 0, 0] = NAN
        gradients[-1, -1, -1] = -INF
    elif kind == "integers":
        gradients = np.round(gradients * 3)
    return gradients


@pytest.mark.parametrize("kind", ["plain", "zeros", "duplicates", "non-finite on one rank", "integers"])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 11])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_equals_the_literal_reference(ranks, n, kind):
    gradients, orders = spoil(random_gradients(ranks, n, 7), kind), random_orders(ranks, n)
    expected = coordinated_signs(gradients, orders)
    h = zeros(7)
    with np.errstate(invalid="ignore"):
        differences = pair_differences(gradients, orders)
    signs, dropped = balance_pairs(differences, h)
    assert np.array_equal(signs.reshape(n // 2, ranks).T, expected.signs)
    assert np.array_equal(h, expected.h)
    assert int(dropped.sum()) == expected.dropped


def test_worked_example_of_the_docstring():
    h = zeros(2)
    rows = np.array([[1, 0], [2, 1], [1, 1]], dtype=np.float32)
    sums = []
    for row in rows:
        pair_balance(row[None], h)
        sums.append(h.tolist())
    assert sums == [[1, 0], [-1, -1], [0, 0]]
    assert pair_balance(rows, zeros(2)).tolist() == [1, -1, 1]


def test_the_first_sign_and_ties_are_plus():
    rows = np.array([[0, -3], [5, 0], [0, 0]], dtype=np.float32)
    assert pair_balance(rows, zeros(2)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("d", [1, 5, 1031])
def test_a_row_that_is_not_finite_anywhere_is_dropped(bad, d):
    """Also where the running sum is zero: 0·inf is NaN, so the inner product alone shows it."""
    for h in (zeros(d), np.ones(d, dtype=np.float32)):
        for place in {0, d // 2, d - 1}:
            row = np.ones((1, d), dtype=np.float32)
            row[0, place] = bad
            before = h.copy()
            signs, dropped = balance_pairs(row, h)
            assert (signs.tolist(), dropped.tolist()) == ([1], [True])
            assert np.array_equal(h, before)


def test_rows_around_a_dropped_one_are_balanced_as_if_it_were_not_there():
    rows = random_gradients(1, 9, 4)[0]
    spoilt = np.insert(rows, 3, NAN, axis=0)
    h, alone = zeros(4), zeros(4)
    signs, dropped = balance_pairs(spoilt, h)
    assert np.array_equal(np.delete(signs, 3), pair_balance(rows, alone))
    assert np.array_equal(h, alone)
    assert np.flatnonzero(dropped).tolist() == [3]


def test_a_finite_row_whose_inner_product_overflows_is_dropped():
    h = zeros(1)
    signs, dropped = balance_pairs(np.array([[3e38], [3e38], [1]], dtype=np.float32), h)
    assert dropped.tolist() == [False, True, False]
    assert signs.tolist() == [1, 1, -1]
    assert np.isfinite(h).all()


def test_a_float64_value_beyond_float32_is_dropped():
    assert balance_pairs(np.array([[1e300]]), zeros(1))[1].tolist() == [True]


def test_a_running_sum_that_is_not_finite_is_refused():
    with pytest.raises(UsageError, match="running_sum holds non-finite"):
        pair_balance(np.ones((1, 2), dtype=np.float32), np.array([NAN, 0], dtype=np.float32))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_input(shape):
    signs, dropped = balance_pairs(np.zeros(shape, dtype=np.float32), zeros(shape[1]))
    assert signs.tolist() == [1] * shape[0]
    assert not dropped.any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "every second", "reversed"])
def test_layouts_and_types_of_numpy_input(dtype, layout):
    rows = random_gradients(1, 12, 6)[0].astype(dtype)
    expected_h = zeros(6)
    expected = pair_balance(rows.astype(np.float32), expected_h)
    given_rows = {
        "contiguous": rows,
        "transposed": np.ascontiguousarray(rows.T).T,
        "every second": np.repeat(np.repeat(rows, 2, 0), 2, 1)[::2, ::2],
        "reversed": rows[::-1, ::-1].copy()[::-1, ::-1],
    }[layout]
    assert np.array_equal(given_rows, rows)
    h = np.zeros(12, dtype=np.float32)[::2]
    assert np.array_equal(pair_balance(given_rows, h), expected)
    assert np.array_equal(h, expected_h)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
def test_torch_equals_numpy(dtype, transposed):
    rows = torch.from_numpy(random_gradients(1, 12, 6)[0]).to(dtype).requires_grad_()
    expected_h = zeros(6)
    expected, expected_drops = balance_pairs(rows.detach().float().numpy(), expected_h)
    h = torch.zeros(12)[::2]
    signs, dropped = balance_pairs(rows.t().contiguous().t() if transposed else rows, h)
    assert isinstance(signs, torch.Tensor)
    assert (signs.dtype, dropped.dtype) == (torch.int8, torch.bool)
    assert np.array_equal(signs.numpy(), expected)
    assert np.array_equal(dropped.numpy(), expected_drops)
    assert np.array_equal(h.numpy(), expected_h)


def test_differences_are_not_changed():
    rows = random_gradients(1, 5, 3)[0]
    before = rows.copy()
    pair_balance(rows, zeros(3))
    assert np.array_equal(rows, before)


@settings(deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_any_grouping_into_calls_gives_the_same_signs(groups, seed):
    rows = random_gradients(1, sum(groups), 3, seed)[0]
    whole_h, h = zeros(3), zeros(3)
    whole = pair_balance(rows, whole_h)
    parts = [pair_balance(part, h) for part in np.split(rows, np.cumsum(groups)[:-1])]
    assert np.array_equal(np.concatenate(parts), whole)
    assert np.array_equal(h, whole_h)


@settings(deadline=None)
@given(st.integers(1, 17), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_float32_and_float64_differ_only_within_rounding_of_zero(n, d, seed):
    """Up to the first difference of signs both saw the same sums; there the product must be rounding noise."""
    gradients, orders = random_gradients(1, 2 * n, d, seed), random_orders(1, 2 * n, seed)
    single = coordinated_signs(gradients, orders).signs[0]
    double = coordinated_signs(gradients, orders, dtype=np.float64).signs[0]
    apart = np.flatnonzero(single != double)
    if len(apart):
        rows = pair_differences(gradients, orders).astype(np.float64)
        h = double[: apart[0], None] * rows[: apart[0]]
        scale = np.abs(h).sum(axis=0) @ np.abs(rows[apart[0]])
        assert abs(h.sum(axis=0) @ rows[apart[0]]) <= 1e-6 * max(1.0, scale)


def test_auto_and_reference_are_the_valid_backends():
    rows = random_gradients(1, 5, 3)[0]
    assert np.array_equal(pair_balance(rows, zeros(3), "reference"), pair_balance(rows, zeros(3), backend="auto"))
    with pytest.raises(ConfigError, match=r"'quantum'.*'auto', 'reference'"):
        pair_balance(rows, zeros(3), backend="quantum")


ROWS = np.ones((2, 3), dtype=np.float32)


@pytest.mark.parametrize(
    ("differences", "running_sum", "message"),
    [
        (ROWS, np.zeros(3), "running_sum must be float32"),
        (ROWS, torch.zeros(3), "both"),
        (torch.ones(2, 3), zeros(3), "both"),
        (torch.ones(2, 3), torch.zeros(3, dtype=torch.float64), "running_sum must be float32"),
        (torch.ones(2, 3), torch.zeros(3, device="meta"), "move one"),
        (ROWS, zeros(4), r"\(2, 3\) and \(4,\)"),
        (ROWS[0], zeros(3), r"\(3,\) and \(3,\)"),
        (ROWS, zeros(3)[None], r"\(2, 3\) and \(1, 3\)"),
        (ROWS.astype(np.int64), zeros(3), "not int64"),
        (torch.ones(2, 3, dtype=torch.int32), torch.zeros(3), "not int32"),
        (ROWS.astype(np.complex64), zeros(3), "not complex64"),
        (ROWS.tolist(), zeros(3), "not list"),
        (ROWS, [0.0, 0.0, 0.0], "not list"),
    ],
)
def test_wrong_input_is_one_clear_error(differences, running_sum, message):
    with pytest.raises(UsageError, match=message):
        pair_balance(differences, running_sum)


def test_a_read_only_running_sum_is_refused():
    h = zeros(3)
    h.setflags(write=False)
    with pytest.raises(UsageError, match="read-only"):
        pair_balance(ROWS, h)


@pytest.mark.parametrize("row", [0, 2])
def test_a_running_sum_inside_the_differences_is_refused(row):
    rows = np.zeros((3, 4), dtype=np.float32)
    with pytest.raises(UsageError, match="shares memory"):
        pair_balance(rows, rows[row])
    with pytest.raises(UsageError, match="shares memory"):
        pair_balance(torch.from_numpy(rows), torch.from_numpy(rows)[row])
