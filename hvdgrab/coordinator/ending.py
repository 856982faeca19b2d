"""The end of an epoch, in the communication thread: signs back, the next orders, what was measured, and whether to rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance import next_order
from hvdgrab.balance.meters import BoundResult
from hvdgrab.comm.communicator import Communicator, broadcast_bytes, gather_bytes
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.book import OrderBook, Orders, named_ranks, orders_digest
from hvdgrab.coordinator.build import Parts
from hvdgrab.coordinator.epoch import EndedEpoch
from hvdgrab.coordinator.journal import EpochFacts
from hvdgrab.coordinator.wire import Signs
from hvdgrab.errors import ConsistencyError

UNKNOWN = BoundResult(None, None, None)
FALL = 0.01
"""By this share the bound must fall below the lowest so far to count as falling: less is the noise of its estimate."""
PATIENCE = 2
"""Coordinated epochs in a row without a fall, after which the ranks rest."""
STALE = 1.1
"""Times the lowest bound: above it the order that was kept has gone stale, since the gradients have changed."""


@dataclass(frozen=True)
class Outcome:
    """What the communication thread brings back."""

    orders: Orders
    """(W, n) int64: the next epoch's."""
    facts: EpochFacts


def end_epoch(communicator: Communicator, parts: Parts, book: OrderBook, reordering: Reordering, ended: EndedEpoch) -> Outcome:
    """End an epoch; collective.  The orders are compared on all ranks before anyone follows them.

    Args:
        communicator: the ranks.
        parts: what the session is made of.
        book: makes seeded orders; where it stands does not matter.
        reordering: decides whether the ranks rest.
        ended: this rank's part.

    Raises:
        ConsistencyError: the ranks are not at the same place, or made different orders.
    """
    coordinator, epoch = parts.coordinator, ended.header.epoch
    finish = coordinator.finish if ended.coordinated else coordinator.rest
    signs, dropped = finish(communicator, ended.header)
    following = _next_orders(parts.config, book, ended, signs)
    compare_orders(communicator, following, epoch + 1)
    bound = _bound(communicator, ended)
    reordering.judge(communicator, bound.l2_vs_random, ended.coordinated)
    pairs = int((signs != 0).sum())
    facts = EpochFacts(
        epoch=epoch,
        order=parts.config.order,
        order_hash=orders_digest(ended.orders),
        bound=bound,
        bytes_sent=coordinator.take_bytes(),
        bytes_dense=4 * parts.format.dimension * pairs,
        pairs=pairs,
        pairs_dropped=int(dropped.sum()),
    )
    return Outcome(following, facts)


def _next_orders(config: GraBConfig, book: OrderBook, ended: EndedEpoch, signs: Signs) -> Orders:
    if not ended.coordinated:
        return np.array(ended.orders)
    if ended.rule is not None:
        return np.asarray(ended.rule.next_order(), dtype=np.int64)[np.newaxis]
    if config.uses_gradients:
        return np.stack([next_order(order, row) for order, row in zip(ended.orders, signs, strict=True)])
    return book.seeded_orders(ended.header.epoch + 1)


def _bound(communicator: Communicator, ended: EndedEpoch) -> BoundResult:
    """The herding bound, on rank 0; unknown elsewhere and for epochs that were seen in part."""
    meter = ended.meter
    if meter is None:
        return UNKNOWN
    summed = np.empty_like(meter.buffer) if communicator.rank == 0 else None
    communicator.reduce_sum(meter.buffer, summed, 0)
    complete = np.array([ended.whole and ended.header.unit == ended.orders.shape[1]], dtype=np.int64)
    everyone = np.empty((communicator.size, 1), dtype=np.int64) if communicator.rank == 0 else None
    communicator.gather(complete, everyone, 0)
    if summed is None or everyone is None or not everyone.all():
        return UNKNOWN
    return meter.result(summed, communicator.size)


def share_rows(communicator: Communicator, row: NDArray[np.int64]) -> Orders:
    """Bring every rank's own ``row`` (n,) to every rank: (W, n); collective."""
    rows = np.empty((communicator.size, row.size), dtype=np.int64)
    communicator.gather(np.ascontiguousarray(row), rows if communicator.rank == 0 else None, 0)
    communicator.broadcast(rows, 0)
    return rows


def compare_orders(communicator: Communicator, orders: Orders, epoch: int) -> None:
    """Make sure that every rank holds the same orders (W, n); collective.

    Raises:
        ConsistencyError: on every rank, naming the ranks that differ from rank 0.
    """
    digests = gather_bytes(communicator, orders_digest(orders).encode())
    others = [] if digests is None else [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    text = (
        f"{named_ranks(others)} made other orders for epoch {epoch} than rank 0: memory or messages were damaged"
        if others
        else ""
    )
    if verdict := broadcast_bytes(communicator, text.encode()).decode():
        raise ConsistencyError(verdict)


class Reordering:
    """Decides in which epochs pairs are balanced, and in which every rank keeps the order it has; the same on all ranks.

    With ``while_falling`` the herding bound relative to random orders is watched in every epoch: measuring it needs no pairs.

    Args:
        config: the settings.
    """

    def __init__(self, config: GraBConfig) -> None:
        self._settings = config.reorder
        self._always = not config.uses_gradients
        self._lowest, self._misses, self._resting = math.inf, 0, False

    def coordinates(self, epoch: int) -> bool:
        """Whether the gradients of ``epoch``, the one after the last that was judged, make the order of the next."""
        if self._always:
            return True
        settings = self._settings
        last = math.inf if settings.last is None else settings.last
        scheduled = settings.first <= epoch <= last and (epoch - settings.first) % settings.every == 0
        return scheduled and not self._resting

    def judge(self, communicator: Communicator, bound: float | None, coordinated: bool) -> None:
        """Watch the bound of the epoch that has ended, which rank 0 alone knows; collective with ``while_falling``."""
        if self._always or not self._settings.while_falling:
            return
        if communicator.rank == 0 and bound is not None:
            self._watch(bound, coordinated)
        state = np.array(self.saved(), dtype=np.float64)
        communicator.broadcast(state, 0)
        self.restore(state.tolist())

    def _watch(self, bound: float, coordinated: bool) -> None:
        if self._resting:
            self._resting = bound <= STALE * self._lowest
            if not self._resting:
                self._lowest, self._misses = bound, 0
        elif bound < (1 - FALL) * self._lowest:
            self._lowest, self._misses = bound, 0
        elif coordinated:
            self._misses += 1
            self._resting = self._misses >= PATIENCE

    def saved(self) -> list[float]:
        """Three numbers for `restore`."""
        return [self._lowest, float(self._misses), float(self._resting)]

    def restore(self, saved: list[float] | None) -> None:
        """Go on from what `saved` gave; None: from the beginning."""
        self._lowest, misses, resting = (math.inf, 0.0, 0.0) if saved is None else saved
        self._misses, self._resting = int(misses), bool(resting)
