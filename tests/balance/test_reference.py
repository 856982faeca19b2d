"""The oracle itself, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hvdgrab.balance import herding_bound, next_order
from hvdgrab.balance.reference import coordinated_epoch, coordinated_signs, prefix_bound, slot_order
from tests.balance.data import random_gradients, random_orders


def scalars(*rows: list[float]) -> np.ndarray:
    return np.array(rows, dtype=np.float32)[:, :, None]


def test_two_ranks_by_hand():
    """Differences in the order taken: rank 0 pair 0: 1, rank 1 pair 0: 2, rank 0 pair 1: -3, rank 1 pair 1: -1."""
    gradients = scalars([1, 0, -3, 0], [2, 0, -1, 0])
    orders = np.array([[0, 1, 2, 3], [0, 1, 2, 3]])
    decided = coordinated_signs(gradients, orders)
    # h: 0 -> 1 (+) -> -1 (-) -> 2 (-, because (-1)·(-3) > 0) -> 1 (+).
    assert decided.signs.tolist() == [[1, -1], [-1, 1]]
    assert decided.h.tolist() == [1]
    assert coordinated_epoch(gradients, orders).tolist() == [[0, 3, 2, 1], [1, 2, 3, 0]]


def test_an_epoch_left_early_leaves_later_pairs_undecided():
    gradients, orders = random_gradients(2, 7, 3), random_orders(2, 7)
    whole = coordinated_signs(gradients, orders).signs
    early = coordinated_signs(gradients, orders, seen=[5, 4]).signs
    assert np.array_equal(early[:, :2], whole[:, :2])
    assert early[:, 2].tolist() == [0, 0]
    uneven = coordinated_signs(gradients, orders, seen=[6, 1]).signs
    assert (uneven != 0).tolist() == [[True, True, True], [False, False, False]]


def test_epochs_left_early_agree_with_next_order():
    gradients, orders = random_gradients(3, 9, 4), random_orders(3, 9)
    for seen in ([9, 9, 9], [5, 5, 5], [1, 0, 3], [0, 0, 0]):
        signs = coordinated_signs(gradients, orders, seen=seen).signs
        expected = coordinated_epoch(gradients, orders, seen=seen)
        assert [next_order(orders[w], signs[w]).tolist() for w in range(3)] == expected.tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_dropped_pairs_are_counted_and_leave_the_sum_alone(bad):
    gradients = scalars([3e38, 0, bad, -bad, 1, 0])
    decided = coordinated_signs(gradients, np.arange(6)[None])
    assert decided.dropped == 1
    assert decided.signs.tolist() == [[1, 1, -1]]
    assert np.isfinite(decided.h).all()


def test_double_precision_option():
    gradients, orders = random_gradients(2, 6, 3), random_orders(2, 6)
    assert coordinated_signs(gradients, orders, dtype=np.float64).h.dtype == np.float64
    assert coordinated_signs(gradients, orders).h.dtype == np.float32


def test_slots_by_hand():
    assert slot_order([4, 2, 0, 1, 3], [1, -1]) == [4, 1, 3, 0, 2]
    assert slot_order([0, 1, 2, 3, 4], [0, 1]) == [0, 2, 1, 3, 4]


def test_prefix_bound_by_hand():
    """Mean 0; joint prefix sums of (rank 0, rank 1) in these orders: 1+1, 1+1-1+2, ...: 2, 3, 0."""
    gradients = scalars([1, -1, -3], [1, 2, 0])
    orders = np.array([[0, 1, 2], [0, 1, 2]])
    assert prefix_bound(gradients, orders) == (3.0, 3.0)
    assert herding_bound(gradients, orders) == (3.0, 3.0)
