"""The end of an epoch, in the communication thread: signs back, the next orders, and what was measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hvdgrab.balance import Rule, next_order
from hvdgrab.balance.meters import BoundExact, BoundResult, BoundSketch
from hvdgrab.comm.communicator import Communicator, broadcast_bytes, gather_bytes
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.book import Orders, named_ranks, orders_digest
from hvdgrab.coordinator.journal import EpochFacts
from hvdgrab.coordinator.messages import Header
from hvdgrab.coordinator.reordering import Reordering
from hvdgrab.coordinator.state import Coordinator, Signs
from hvdgrab.errors import ConsistencyError

UNKNOWN = BoundResult(None, None, None)


@dataclass(frozen=True)
class Outcome:
    """What the communication thread brings back."""

    orders: Orders
    """(W, n) int64: the next epoch's."""
    facts: EpochFacts


@dataclass(frozen=True)
class EndOfEpoch:
    """One rank's part in ending an epoch; every field is what it was when the rank's last unit had passed."""

    config: GraBConfig
    header: Header
    orders: Orders
    """(W, n) int64: the orders of the epoch that ends."""
    seeded_orders: Callable[[int], Orders]
    dimension: int
    coordinator: Coordinator
    reordering: Reordering
    coordinated: bool
    """Whether the epoch's gradients make the order of the next."""
    meter: BoundSketch | BoundExact | None
    rule: Rule | None
    whole: bool
    """Whether this rank saw every unit of the epoch itself, from the first to the last."""

    def run(self, communicator: Communicator) -> Outcome:
        """Collective; the orders are compared on all ranks before anyone follows them."""
        finish = self.coordinator.finish if self.coordinated else self.coordinator.rest
        signs, dropped = finish(communicator, self.header)
        following = self._following(signs)
        compare_orders(communicator, following, self.header.epoch + 1)
        bound = self._bound(communicator)
        self.reordering.judge(communicator, bound.l2_vs_random, self.coordinated)
        pairs = int((signs != 0).sum())
        sent, self.coordinator.bytes_sent = self.coordinator.bytes_sent, 0
        facts = EpochFacts(
            epoch=self.header.epoch,
            order=self.config.order,
            order_hash=orders_digest(self.orders),
            bound=bound,
            bytes_sent=sent,
            bytes_dense=4 * self.dimension * pairs,
            pairs=pairs,
            pairs_dropped=int(dropped.sum()),
        )
        return Outcome(following, facts)

    def _following(self, signs: Signs) -> Orders:
        if not self.coordinated:
            return np.array(self.orders)
        if self.rule is not None:
            return np.asarray(self.rule.next_order(), dtype=np.int64)[np.newaxis]
        if self.config.uses_gradients:
            return np.stack([next_order(order, row) for order, row in zip(self.orders, signs, strict=True)])
        return self.seeded_orders(self.header.epoch + 1)

    def _bound(self, communicator: Communicator) -> BoundResult:
        """The herding bound, on rank 0; unknown elsewhere and for epochs that were seen in part."""
        if self.meter is None:
            return UNKNOWN
        summed = np.empty_like(self.meter.buffer) if communicator.rank == 0 else None
        communicator.reduce_sum(self.meter.buffer, summed, 0)
        complete = np.array([self.whole and self.header.unit == self.orders.shape[1]], dtype=np.int64)
        everyone = np.empty((communicator.size, 1), dtype=np.int64) if communicator.rank == 0 else None
        communicator.gather(complete, everyone, 0)
        if summed is None or everyone is None or not everyone.all():
            return UNKNOWN
        return self.meter.result(summed, communicator.size)


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
