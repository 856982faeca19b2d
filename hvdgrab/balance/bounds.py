"""The parallel herding bound of orders over stored or compressed gradients (CD-GraB, arXiv 2302.00845, equation 2).

All functions stream: they look at a few units at a time and form their sums in float64, in O(d) of working memory whatever the
number of ranks and units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array, check_kind, to_numpy
from hvdgrab.balance.orders import is_permutation
from hvdgrab.balance.streams import Purpose, generator
from hvdgrab.errors import UsageError

CHUNK = 2**16
"""Float64 elements of working memory, beyond a handful of (d,) vectors."""

Places = NDArray[np.int64]
Joint = Callable[[Sequence[Places]], NDArray[np.float64]]
"""Takes m units of each rank, returns (m, d) float64, a new array: these units' vectors summed over the ranks."""


class Bound(NamedTuple):
    """Largest norms of the joint prefix sums; both are NaN if a gradient is not finite."""

    l2: float
    linf: float


class RelativeBound(NamedTuple):
    """A bound beside those of random orders of the same gradients."""

    l2: float
    linf: float
    l2_vs_random: float
    """`l2` over the mean of the random orders: 1.0 = random reshuffling, smaller is better; NaN if that mean is 0 or unknown."""
    linf_vs_random: float


def herding_bound(gradients: Array, orders: Array) -> tuple[float, float]:
    """Compute the parallel herding bound: the maximum over k of ‖Σ_{j≤k} Σ_w (g_{w, π_w(j)} - mean)‖.

    The mean is over all W·n vectors.

    Args:
        gradients: (W, n, d) real numbers, entry [w, u] the gradient of unit u of rank w; NumPy or torch, any device.
        orders: (W, n) integers, row w a permutation of 0 … n - 1; NumPy or torch.

    Returns:
        The bound in the ℓ2 and in the ℓ∞ norm; both are NaN if a gradient is not finite.

    Raises:
        UsageError: wrong kind or shape, or a row of `orders` that is no permutation.
    """
    l2, linf = stored(gradients).of(orders)
    return l2, linf


def herding_bound_stream(fetch: Callable[[int, int], Array], orders: Array, d: int) -> tuple[float, float]:
    """Compute the `herding_bound` of vectors that are made on demand, such as payloads that are expanded on the fly.

    Args:
        fetch: (rank, unit) -> (d,) real numbers, NumPy or torch; called twice for every unit of every rank, once for the mean
            and once in the order asked for.  What it returns is read before the next call and not kept.
        orders: (W, n) integers, row w a permutation of 0 … n - 1; NumPy or torch.
        d: length of a vector.

    Returns:
        The bound in the ℓ2 and in the ℓ∞ norm; both are NaN if a vector is not finite.

    Raises:
        UsageError: wrong shape, also of what `fetch` returns, or a row of `orders` that is no permutation.
    """
    ranks, n = _shape_of_orders(orders)
    l2, linf = HerdingBound(_fetched(fetch, d), ranks, n, d).of(orders)
    return l2, linf


def relative_bound(gradients: Array, orders: Array, *, randoms: int = 4, seed: int = 0) -> RelativeBound:
    """Compare the bound of `orders` with that of random orders of the same gradients; the mean is computed once for all.

    Args:
        gradients: (W, n, d), as for `herding_bound`.
        orders: (W, n), as for `herding_bound`.
        randoms: random orders to compare with, at least 1; each is one pass over the gradients.
        seed: of the random orders.

    Raises:
        UsageError: as `herding_bound`, or a number out of its range.
    """
    if randoms < 1:
        raise UsageError(f"a relative bound needs at least 1 random order to compare with, not {randoms}")
    source = stored(gradients)
    own = source.of(orders)
    drawn = [source.of(random_orders(source.ranks, source.n, seed, draw)) for draw in range(randoms)]
    l2, linf = (float(np.mean([bound[norm] for bound in drawn])) for norm in (0, 1))
    return RelativeBound(own.l2, own.linf, own.l2 / l2 if l2 > 0 else float("nan"), own.linf / linf if linf > 0 else float("nan"))


def random_orders(ranks: int, n: int, seed: int, draw: int = 0) -> Places:
    """(W, n) int64: the `draw`-th of the seeded random orders that bounds are compared with."""
    rows = [generator(seed, Purpose.BOUND, draw, rank).permutation(n) for rank in range(ranks)]
    return np.array(rows, dtype=np.int64).reshape(ranks, n)


class HerdingBound:
    """Bounds of several orders of the same vectors, which share the mean: it costs one pass at the start.

    Args:
        joint: takes m units of each rank, W arrays (m,), and returns (m, d) float64, a new array: their sums over ranks.
        ranks, n, d: ranks, units of each, length of a vector.
    """

    def __init__(self, joint: Joint, ranks: int, n: int, d: int) -> None:
        self.ranks, self.n, self.d = ranks, n, d
        self._joint = joint
        step = max(1, CHUNK // max(1, d))
        self._spans = [slice(start, min(n, start + step)) for start in range(0, n if ranks else 0, step)]
        total = np.zeros(d)
        with np.errstate(over="ignore", invalid="ignore"):
            for span in self._spans:
                total += joint([np.arange(span.start, span.stop)] * ranks).sum(axis=0)
            self._drift: NDArray[np.float64] = total / max(1, n)  # W times the mean

    def of(self, orders: Array) -> Bound:
        """Compute the bound of `orders`, (W, n) integers, row w a permutation, in one pass over the vectors.

        Raises:
            UsageError: another shape, or a row that is no permutation.
        """
        places = checked_orders(orders, self.ranks, self.n)
        prefix, l2, linf = np.zeros(self.d), 0.0, 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            for span in self._spans:
                sums = self._joint(list(places[:, span]))
                sums -= self._drift
                sums[0] += prefix
                np.cumsum(sums, axis=0, out=sums)
                prefix = sums[-1].copy()
                # unlike max(), NumPy's maximum keeps a NaN
                l2 = float(np.maximum(l2, np.sqrt(np.einsum("kd,kd->k", sums, sums)).max()))
                linf = float(np.maximum(linf, np.abs(sums).max(initial=0.0)))
        return Bound(l2, linf) if np.isfinite(l2) and np.isfinite(linf) else Bound(float("nan"), float("nan"))


def stored(gradients: Array) -> HerdingBound:
    """The bounds of orders of stored (W, n, d) gradients, NumPy or torch.

    Raises:
        UsageError: wrong kind or shape.
    """
    check_kind("gradients", gradients)
    if gradients.ndim != 3:
        raise UsageError(f"gradients must be (W, n, d), not {tuple(gradients.shape)}")
    ranks, n, d = (int(size) for size in gradients.shape)

    def joint(units: Sequence[Places]) -> NDArray[np.float64]:
        sums = np.zeros((len(units[0]), d))
        for rank, row in enumerate(units):
            sums += to_numpy(gradients[rank][row], "gradients")
        return sums

    return HerdingBound(joint, ranks, n, d)


def checked_orders(orders: Array, ranks: int, n: int) -> Places:
    """`orders` as (W, n) int64 on the host.

    Raises:
        UsageError: no integers, another shape, or a row that is no permutation.
    """
    places = to_numpy(orders, "orders")
    if places.shape != (ranks, n):
        raise UsageError(f"gradients must be (W, n, d) and orders (W, n): {ranks} ranks of {n} units need no {places.shape}")
    if places.dtype.kind not in "iu":
        raise UsageError(f"orders must be integers, not {places.dtype}")
    for rank, row in enumerate(places):
        if not is_permutation(row):
            raise UsageError(f"the order of rank {rank} is no permutation of 0 … {n - 1}")
    return places.astype(np.int64, copy=False)


def _shape_of_orders(orders: Array) -> tuple[int, int]:
    if len(orders.shape) != 2:
        raise UsageError(f"orders must be (W, n), not {tuple(orders.shape)}")
    return int(orders.shape[0]), int(orders.shape[1])


def _fetched(fetch: Callable[[int, int], Array], d: int) -> Joint:
    def joint(units: Sequence[Places]) -> NDArray[np.float64]:
        sums = np.zeros((len(units[0]), d))
        for rank, row in enumerate(units):
            for place, unit in enumerate(row.tolist()):
                vector = to_numpy(fetch(rank, unit), "a fetched vector")
                if vector.shape != (d,):
                    raise UsageError(f"fetch({rank}, {unit}) must return a vector of shape ({d},), not {vector.shape}")
                sums[place] += vector
        return sums

    return joint
