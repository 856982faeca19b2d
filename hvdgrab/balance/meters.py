"""Meters of the parallel herding bound during training, when the units' gradients are not stored.

Each rank adds every unit's gradient, as it comes, to its slot in the current order and to its slots in a few seeded random
orders.  At the end of the epoch, one elementwise sum of the buffers over the ranks gives the bounds of all these orders, and
hence the bound relative to random orders, without a second pass over the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance.arrays import Array, to_numpy
from hvdgrab.balance.orders import is_permutation
from hvdgrab.balance.streams import Purpose, generator
from hvdgrab.errors import UsageError

if TYPE_CHECKING:
    import torch


class BoundResult(NamedTuple):
    """A bound; None if it is unknown (no finite gradient was added, or a sum overflowed) or not measured."""

    l2: float | None
    linf: float | None
    l2_vs_random: float | None
    """`l2` over the mean ℓ2 bound of the seeded random orders: 1.0 = random reshuffling, smaller is better."""


class _Meter:
    """Sums of vectors over slots of several orders, for one epoch of one rank."""

    skipped: int
    """Gradients left out because they, or their sketches, were not finite."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        to_vector: Callable[[Array], NDArray[np.float32]],
        *,
        order: Array,
        stream: np.random.Generator,
        exact: bool,
    ) -> None:
        randoms, bins, width = shape
        n = len(order)
        self._order = np.array(to_numpy(order, "order"), dtype=np.int64)
        if n < 1 or bins < 1 or randoms < 0 or not is_permutation(self._order):
            raise UsageError(f"a meter needs an order of n >= 1 units, bins >= 1 and randoms >= 0, not {n}, {bins}, {randoms}")
        self.n = n
        self.skipped = 0
        self._to_vector = to_vector
        self._exact = exact
        bins = min(bins, n)
        self._bins = bins
        self._buffer = np.zeros((1 + randoms, bins, width + 1), dtype=np.float32)
        self._rows = self._buffer.reshape((1 + randoms) * bins, width + 1)
        # row u: the rows of the flat buffer to which unit u is added for each random order
        self._slots = np.empty((n, randoms), dtype=np.int64)
        for row in range(randoms):
            self._slots[:, row] = stream.permutation(n) * bins // n + (1 + row) * bins
        self._counted = np.ones(width + 1, dtype=np.float32)

    @property
    def buffer(self) -> NDArray[np.float32]:
        """(1 + randoms, slots, width + 1): sums, and in the last column counts (exact below 2^24); to be summed over the ranks.

        This is the meter's own memory, which every `add` changes.
        """
        return self._buffer

    def add(self, position: int, unit: int, gradient: Array) -> None:
        """Add one unit's gradient; called once for every unit seen, in any order.

        Args:
            position: where the unit stands in the current order.
            unit: the unit at that position of the order given at construction.
            gradient: (d,) floating point, on any device; read only, not kept.

        Raises:
            UsageError: the order has another unit at that position, or the gradient has another shape.
        """
        if not 0 <= position < self.n or self._order[position] != unit:
            raise UsageError(f"unit {unit} is not at position {position} of the order that this meter was given")
        vector = self._to_vector(gradient)
        if vector.shape != (len(self._counted) - 1,):
            raise UsageError(f"this meter takes vectors of {len(self._counted) - 1} values, not shape {vector.shape}")
        if not _all_finite(vector):
            self.skipped += 1
            return
        # vector and count lie side by side: one addition a slot; a loop over a few rows is faster than fancy indexing
        self._counted[:-1] = vector
        for slot in (position * self._bins // self.n, *self._slots[unit].tolist()):
            row = self._rows[slot]
            row += self._counted

    def result(self, summed: NDArray[np.float32], size: int | None = None) -> BoundResult:
        """Compute the bounds from the sum of all ranks' buffers; equal sums give equal bounds on every rank.

        Args:
            summed: the elementwise sum of `buffer` over the ranks.
            size: number of ranks, to check the number of gradients; with fewer than half of them every bound is unknown.

        Raises:
            UsageError: another shape, or more gradients than `size` ranks have units.
        """
        if summed.shape != self._buffer.shape:
            raise UsageError(f"the summed buffer must have shape {self._buffer.shape}, not {summed.shape}")
        count = float(summed[0, :, -1].astype(np.float64).sum())
        if size is not None and count > size * self.n:
            raise UsageError(f"{count:.0f} gradients for {size} ranks of {self.n} units: one was added twice")
        if size is not None and 2 * count < size * self.n:  # most gradients were not finite
            return BoundResult(None, None, None)
        l2, linf = _slot_bound(summed[0])
        randoms = [_slot_bound(row)[0] for row in summed[1:]]
        mean = float(np.mean(randoms)) if randoms else 0.0
        relative = l2 / mean if mean > 0 and np.isfinite(mean) and np.isfinite(l2) else None
        return BoundResult(_known(l2), _known(linf) if self._exact else None, relative)


class BoundSketch(_Meter):
    """Estimates the ℓ2 bounds from a small sketch of every gradient: 64 slots of 256 floats an order, for every model.

    A slot is a run of consecutive positions.  Prefix sums are evaluated at the ends of slots only: the bound is the largest of 64
    prefixes instead of all n, for the current and the random orders alike.

    Args:
        n: units of this rank.
        order: (n,) the current order.
        epoch: seeds the random orders, with `seed` and `rank`.
        seed: the run's seed.
        rank: seeds the random orders of this rank.
        fold: a linear map of a gradient to (width,) float32, the same on all ranks, with E‖fold(x)‖² = ‖x‖²
            (`hvdgrab.compression.fold.FoldSketch`); None if `add` is given folded vectors.
        width: floats of a sketch.
        bins: most slots; there are never more than n.
        randoms: random orders to compare with.

    Raises:
        UsageError: a number or a shape out of range.
    """

    def __init__(
        self,
        n: int,
        *,
        order: Array,
        epoch: int,
        seed: int,
        rank: int,
        fold: Callable[[torch.Tensor], torch.Tensor] | None,
        width: int = 256,
        bins: int = 64,
        randoms: int = 4,
    ) -> None:
        _check_length(order, n)
        stream = generator(seed, Purpose.BOUND, epoch, rank)
        to_vector = _as_float32 if fold is None else partial(_folded, fold)
        super().__init__((randoms, bins, width), to_vector, order=order, stream=stream, exact=False)


class BoundExact(_Meter):
    """Computes exact bounds, in ℓ∞ too, with a buffer of (1 + randoms)·n·(d + 1) floats: for small models only.

    Args:
        n: units of this rank.
        d: length of a gradient.
        order, epoch, seed, rank, randoms: as for `BoundSketch`.

    Raises:
        UsageError: a number or a shape out of range.
    """

    def __init__(self, n: int, d: int, *, order: Array, epoch: int, seed: int, rank: int, randoms: int = 4) -> None:
        _check_length(order, n)
        stream = generator(seed, Purpose.BOUND, epoch, rank)
        super().__init__((randoms, n, d), _as_float32, order=order, stream=stream, exact=True)


def _check_length(order: Array, n: int) -> None:
    if tuple(order.shape) != (n,):
        raise UsageError(f"the order of {n} units must have shape ({n},), not {tuple(order.shape)}")


def _folded(fold: Callable[[torch.Tensor], torch.Tensor], gradient: Array) -> NDArray[np.float32]:
    return to_numpy(fold(gradient), "gradient")  # type: ignore[arg-type]


def _as_float32(gradient: Array) -> NDArray[np.float32]:
    if isinstance(gradient, np.ndarray) and gradient.dtype == np.float32:
        return gradient
    with np.errstate(over="ignore"):
        return to_numpy(gradient, "gradient").astype(np.float32, copy=False)


def _all_finite(vector: NDArray[np.float32]) -> bool:
    # one inner product decides, at half the cost, unless the square overflows
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(vector.dot(vector)) or bool(np.isfinite(vector).all())


def _slot_bound(slots: NDArray[np.float32]) -> tuple[float, float]:
    """Norms (ℓ2, ℓ∞) of the largest prefix sum of (slots, width + 1) sums and counts; NaN if nothing was counted."""
    counts = slots[:, -1].astype(np.float64)
    if counts.sum() == 0:
        return float("nan"), float("nan")
    with np.errstate(over="ignore", invalid="ignore"):
        mean = slots[:, :-1].sum(axis=0, dtype=np.float64) / counts.sum()
        prefix, l2, linf = np.zeros_like(mean), 0.0, 0.0
        for sums, count in zip(slots[:, :-1], counts, strict=True):
            prefix += sums - count * mean
            # numpy's maximum, unlike max(), keeps a NaN.
            l2 = float(np.maximum(l2, np.linalg.norm(prefix)))
            linf = float(np.maximum(linf, np.abs(prefix).max(initial=0.0)))
    return l2, linf


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
