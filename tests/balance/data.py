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


def paper_vectors(total: int, d: int, seed: int) -> np.ndarray:
    """Figure 10 of arXiv 2302.00845: uniform in [0, 1]^d, centred, each scaled to norm 1, centred again; (total, d) float32."""
    vectors = np.random.default_rng(seed).random((total, d))
    vectors -= vectors.mean(axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors - vectors.mean(axis=0)).astype(np.float32)


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


def independent_pass(gradients: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """One epoch of ID-GraB: each rank balances its own pairs alone."""
    return np.concatenate([coordinated_pass(gradients[w : w + 1], orders[w : w + 1]) for w in range(len(orders))])
