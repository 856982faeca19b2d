"""The random-vector study of the CD-GraB paper (arXiv 2302.00845, figure 10), with the paper's figures for comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.bounds import random_orders, stored
from hvdgrab.balance.offline import order_offline

Row = dict[str, object]
VECTORS = 10**6
DIMENSION = 16
EPOCHS = 15
RANDOMS = 3
PAPER = {
    5: (2.64, 5.8),
    10: (2.53, 8.5),
    20: (2.48, 11.8),
    50: (2.27, 17.9),
    100: (2.31, 23.6),
}
"""ℓ∞ bounds of coordinated and of independent PairBalance by W, read off the figure; random orders stay above 310."""


def vectors(total: int, seed: int) -> NDArray[np.float32]:
    """Draw vectors (total, 16) uniformly in [0, 1]^16, centre them, scale each to norm 1, and centre them again.

    Without the second centring, a constant drift dominates every bound.
    """
    drawn = np.random.default_rng(seed).random((total, DIMENSION))
    drawn -= drawn.mean(axis=0)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    centred: NDArray[np.float32] = (drawn - drawn.mean(axis=0)).astype(np.float32)
    return centred


def study(
    total: int = VECTORS, ranks: Sequence[int] = tuple(PAPER), epochs: int = EPOCHS, seed: int = 0,
    *, tell: Callable[[Row], None] | None = None,
) -> list[Row]:  # fmt: skip
    """Measure one row for each number of ranks: ℓ∞ bounds after `epochs` passes, the paper's, and the ratios.

    Vectors are split evenly over the ranks, without the remainder.  The paper's figures are for a million vectors.
    """
    drawn, rows = vectors(total, seed), list[Row]()
    for size in ranks:
        began = perf_counter()
        n = total // size
        gradients = drawn[: size * n].reshape(size, n, DIMENSION)
        source = stored(gradients)
        found = {rule: source.of(order_offline(gradients, epochs, rule, seed=seed)).linf for rule in ("cd-grab", "id-grab")}
        random = fmean(source.of(random_orders(size, n, seed, draw)).linf for draw in range(RANDOMS))
        coordinated, independent = PAPER.get(size, (None, None))
        rows.append({
            "ranks": size,
            "vectors": size * n,
            "coordinated": found["cd-grab"],
            "paper": coordinated,
            "ratio": found["cd-grab"] / coordinated if coordinated else None,
            "independent": found["id-grab"],
            "its paper": independent,
            "its ratio": found["id-grab"] / independent if independent else None,
            "random": random,
            "seconds": perf_counter() - began,
        })  # fmt: skip
        if tell is not None:
            tell(rows[-1])
    return rows
