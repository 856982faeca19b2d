"""The literal CD-GraB algorithm, in plain loops: slow, obviously right, kept for ever, and the oracle of every faster path.

Cooper et al., "Coordinating Distributed Example Orders for Provably Accelerated Training", NeurIPS 2023, arXiv 2302.00845.
It shares no code with `hvdgrab.balance.pairs` and `hvdgrab.balance.orders`, which are tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Coordinated(NamedTuple):
    """The result of one epoch of coordinated balancing."""

    signs: NDArray[np.int8]
    """(W, n // 2): +1 or -1; 0 if the epoch ended before the pair."""
    dropped: int
    """Pairs with a non-finite difference (or an inner product that overflows): sign +1, running sum untouched."""
    h: NDArray[Any]
    """(d,): the running sum at the end, in the precision asked for."""


def coordinated_signs(
    gradients: NDArray[Any],
    orders: NDArray[Any],
    *,
    seen: Sequence[int] | None = None,
    dtype: type[np.float32] | type[np.float64] = np.float32,
) -> Coordinated:
    """Balance the pairs of all ranks against one running sum: pair outermost, rank innermost.

    For one rank (W = 1) this is PairBalance; called once a rank, it is ID-GraB.

    Args:
        gradients: (W, n, d), entry [w, u] the gradient of unit u of rank w.
        orders: (W, n) integers, the current order of each rank.
        seen: units that each rank consumed before the epoch ended; all n by default.  A pair counts if both its units do.
        dtype: float32 (as in training) or float64.
    """
    ranks, n, d = gradients.shape
    h = np.zeros(d, dtype=dtype)
    signs = np.zeros((ranks, n // 2), dtype=np.int8)
    dropped = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(n // 2):
            for w in range(ranks):
                if seen is not None and 2 * k + 1 >= seen[w]:
                    continue
                first = gradients[w, orders[w, 2 * k]].astype(dtype)
                second = gradients[w, orders[w, 2 * k + 1]].astype(dtype)
                difference = first - second
                product = np.dot(h, difference)
                if not np.isfinite(difference).all() or not np.isfinite(product):
                    signs[w, k] = 1
                    dropped += 1
                    continue
                signs[w, k] = 1 if product <= 0 else -1
                h = h + signs[w, k] * difference
    return Coordinated(signs, dropped, h)


class Audit:
    """Checks whether given signs obey the rule, each given the ones before it.

    The running sum is rebuilt in float32 from the signs themselves, so that one wrong sign is one finding, however many later
    signs it changes.  A sign that contradicts <h, d> in float64 counts as rounding if |<h, d>| is at most (16 + sqrt(d)) · 2^-24
    · Σ|h_i·d_i|, the largest error of float32 sums of any order; else it is wrong.
    """

    def __init__(self, d: int) -> None:
        self.h = np.zeros(d, dtype=np.float32)
        self.wrong = 0
        self.rounding = 0

    def feed(self, differences: NDArray[np.float32], signs: NDArray[np.int8]) -> None:
        """Check the next rows, (m, d), and their signs, (m,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            for row, sign in zip(differences, signs, strict=True):
                product = float(np.dot(self.h.astype(np.float64), row.astype(np.float64)))
                if not np.isfinite(np.float32(product)):
                    self.wrong += int(sign != 1)
                    continue
                if sign != (1 if product <= 0 else -1):
                    self._count(abs(product), row)
                self.h = self.h + row if sign > 0 else self.h - row

    def _count(self, distance: float, row: NDArray[np.float32]) -> None:
        noise = (16 + np.sqrt(len(row))) * 2.0**-24 * float(np.abs(self.h.astype(np.float64) * row).sum())
        if distance <= noise:
            self.rounding += 1
        else:
            self.wrong += 1


def slot_order(order: Sequence[int], signs: Sequence[int]) -> list[int]:
    """Compute the next order by the literal slot rule.

    Pair k with sign +1 puts its first unit into slot k and its second into slot n - 1 - k; with -1 the other way round.
    Units of pairs without a sign (0, or beyond the end of `signs`) and the last unit of an odd n fill the free slots.
    """
    n = len(order)
    slots: list[int | None] = [None] * n
    unplaced = []
    for k in range(n // 2):
        first, second = int(order[2 * k]), int(order[2 * k + 1])
        sign = signs[k] if k < len(signs) else 0
        if sign == 0:
            unplaced += [first, second]
        else:
            slots[k], slots[n - 1 - k] = (first, second) if sign > 0 else (second, first)
    if n % 2:
        unplaced.append(int(order[n - 1]))
    rest = iter(unplaced)
    return [next(rest) if unit is None else unit for unit in slots]


def coordinated_epoch(
    gradients: NDArray[Any], orders: NDArray[Any], *, seen: Sequence[int] | None = None
) -> NDArray[np.int64]:
    """Compute the orders (W, n) of the next epoch."""
    decided = coordinated_signs(gradients, orders, seen=seen)
    rows = [slot_order(list(orders[w]), list(decided.signs[w])) for w in range(len(orders))]
    return np.array(rows, dtype=np.int64).reshape(np.shape(orders))


def recursive_order(gradients: NDArray[Any], order: Sequence[int], depth: int) -> list[int]:
    """Compute one rank's next order by recursive pair balance, top-down, unlike the streamed `hvdgrab.balance.RecursiveBalance`.

    The units of a node are split in two by PairBalance, each half is ordered in the same way, and a last unit without a partner
    stands between the two; at the full depth, the units stay as they came, or are reversed in a right half.

    Args:
        gradients: (n, d), entry [u] the gradient of unit u.
        order: the current order, or the part of it that reached a node.
        depth: how often to split.
    """
    h = np.zeros(gradients.shape[1], dtype=np.float32)
    halves: tuple[list[int], list[int]] = ([], [])
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(len(order) // 2):
            pair = [int(order[2 * k]), int(order[2 * k + 1])]
            difference = gradients[pair[0]].astype(np.float32) - gradients[pair[1]].astype(np.float32)
            product = np.dot(h, difference)
            if np.isfinite(difference).all() and np.isfinite(product):
                h = h + difference if product <= 0 else h - difference
                pair = pair if product <= 0 else pair[::-1]
            for half, unit in zip(halves, pair, strict=True):
                half.append(unit)
    left, right = halves
    middle = [int(unit) for unit in order[2 * (len(order) // 2) :]]
    if depth == 1:
        return [*left, *middle, *right[::-1]]
    return [*recursive_order(gradients, left, depth - 1), *middle, *recursive_order(gradients, right, depth - 1)]


def prefix_bound(gradients: NDArray[Any], orders: NDArray[Any]) -> tuple[float, float]:
    """Compute the bound (l2, linf) of `hvdgrab.balance.herding_bound` by its definition, unstreamed, in float64."""
    ranks, n, d = gradients.shape
    vectors = gradients.astype(np.float64)
    mean = vectors.reshape(ranks * n, d).mean(axis=0)
    prefix, l2, linf = np.zeros(d), 0.0, 0.0
    for k in range(n):
        for w in range(ranks):
            prefix = prefix + (vectors[w, orders[w, k]] - mean)
        l2 = max(l2, float(np.sqrt(np.sum(prefix**2))))
        linf = max(linf, float(np.max(np.abs(prefix), initial=0.0)))
    return l2, linf
