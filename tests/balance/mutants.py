"""Wrong PairBalances, each a mistake that was made in public code, and the checks that have to catch them.

Each mutation wraps a PairBalance that is right, so it can be seeded into every backend.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hvdgrab.balance import herding_bound
from hvdgrab.balance.reference import coordinated_signs
from tests.balance.data import Balance, coordinated_pass, pair_differences, random_gradients, random_orders

Mutation = Callable[[Balance], Balance]


def literal(differences: np.ndarray, h: np.ndarray) -> np.ndarray:
    """PairBalance, as the paper writes it."""
    signs = np.empty(len(differences), dtype=np.int8)
    for i, row in enumerate(differences):
        signs[i] = 1 if np.dot(h, row) <= 0 else -1
        h += signs[i] * row
    return signs


def reversed_rule(balance: Balance) -> Balance:
    """The sign that makes the running sum longer."""

    def mutant(differences: np.ndarray, h: np.ndarray) -> np.ndarray:
        signs = np.empty(len(differences), dtype=np.int8)
        for i in range(len(differences)):
            signs[i] = balance(differences[i : i + 1], -h)[0]
            h += signs[i] * differences[i]
        return signs

    return mutant


def frozen_accumulator(balance: Balance) -> Balance:
    """The running sum is never updated."""

    def mutant(differences: np.ndarray, h: np.ndarray) -> np.ndarray:
        return np.concatenate([balance(differences[i : i + 1], h.copy()) for i in range(len(differences))])

    return mutant


def copied_accumulator(balance: Balance) -> Balance:
    """Decides rightly within a call, but the caller's running sum never learns of it."""
    return lambda differences, h: balance(differences, h.copy())


def buffer_by_reference(balance: Balance) -> Balance:
    """The receive buffer is kept, not its content: every row is the last one received."""

    def mutant(differences: np.ndarray, h: np.ndarray) -> np.ndarray:
        buffer = np.empty(differences.shape[1], dtype=np.float32)
        kept = []
        for row in differences:
            buffer[:] = row
            kept.append(buffer)
        return balance(np.array(kept).reshape(differences.shape), h)

    return mutant


def buffer_subtracted_from_itself(balance: Balance) -> Balance:
    """First and second gradient of a pair are the same buffer: every difference is exactly zero."""
    return lambda differences, h: balance(np.zeros_like(differences), h)


MUTATIONS: tuple[Mutation, ...] = (
    reversed_rule,
    frozen_accumulator,
    copied_accumulator,
    buffer_by_reference,
    buffer_subtracted_from_itself,
)


def check_reference(balance: Balance) -> None:
    """Signs and running sum equal the literal reference's; whole numbers, so that no backend rounds."""
    for ranks, n in ((1, 11), (3, 10)):
        gradients, orders = np.round(4 * random_gradients(ranks, n, 5)), random_orders(ranks, n)
        expected = coordinated_signs(gradients, orders)
        h = np.zeros(5, dtype=np.float32)
        signs = balance(pair_differences(gradients, orders), h)
        assert np.array_equal(signs.reshape(n // 2, ranks).T, expected.signs)
        assert np.array_equal(h, expected.h)


def check_streaming(balance: Balance) -> None:
    """Any grouping of rows into calls gives the same signs."""
    rows = np.round(4 * random_gradients(1, 40, 6)[0])
    whole = balance(rows, np.zeros(6, dtype=np.float32))
    h = np.zeros(6, dtype=np.float32)
    assert np.array_equal(whole, np.concatenate([balance(part, h) for part in np.split(rows, [1, 4, 25])]))


def check_running_sum_stays_small(balance: Balance) -> None:
    """The sum of signed rows is far below that of random signs (sqrt(m·d) = 63 here), and is what the caller holds."""
    rows = random_gradients(1, 500, 8)[0]
    h = np.zeros(8, dtype=np.float32)
    signs = balance(rows, h)
    total = (signs[:, None] * rows).sum(axis=0, dtype=np.float64)
    assert np.abs(total - h).max() < 1e-2
    assert np.linalg.norm(total) < 20


def check_bound_falls(balance: Balance) -> None:
    """Five passes bring the herding bound below half of that of random orders."""
    gradients = random_gradients(2, 100, 8)
    orders = start = random_orders(2, 100)
    for _ in range(5):
        orders = coordinated_pass(gradients, orders, balance)
    assert herding_bound(gradients, orders)[0] < 0.5 * herding_bound(gradients, start)[0]


CHECKS: tuple[Callable[[Balance], None], ...] = (
    check_reference,
    check_streaming,
    check_running_sum_stays_small,
    check_bound_falls,
)
