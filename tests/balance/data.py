"""Inputs and small runs shared by the tests of the balance room."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hvdgrab.balance import next_order, pair_balance

Balance = Callable[[np.ndarray, np.ndarray], np.ndarray]


def random_gradients(ranks: int, n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ranks, n, d)).astype(np.float32)


def random_orders(ranks: int, n: int, seed: int = 0) -> np.ndarray:
    stream = np.random.default_rng([seed, 1])
    return np.array([stream.permutation(n) for _ in range(ranks)]).reshape(ranks, n)


def pair_differences(gradients: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """(W, n, d), (W, n) -> (W · (n // 2), d): pair outermost, rank innermost."""
    ranks, n, d = gradients.shape
    rows = np.arange(ranks)[:, None]
    first = gradients[rows, orders[:, 0 : n - 1 : 2]]
    second = gradients[rows, orders[:, 1:n:2]]
    return (first - second).transpose(1, 0, 2).reshape(ranks * (n // 2), d)


def coordinated_pass(gradients: np.ndarray, orders: np.ndarray, balance: Balance = pair_balance) -> np.ndarray:
    """One epoch of CD-GraB: the orders (W, n) of the next."""
    ranks, n, d = gradients.shape
    signs = balance(pair_differences(gradients, orders), np.zeros(d, dtype=np.float32)).reshape(n // 2, ranks)
    return np.array([next_order(orders[w], signs[:, w]) for w in range(ranks)])
