"""What one rank makes of an epoch's units: pairs, or steps of a rule of its own, and a measurement."""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from hvdgrab.balance import Rule, build_rule
from hvdgrab.balance.meters import BoundExact, BoundSketch
from hvdgrab.comm.communicator import Communicator
from hvdgrab.comm.worker import CommunicationThread
from hvdgrab.config import SINGLE_RANK_ORDERS
from hvdgrab.coordinator.book import OrderBook, Orders, Place
from hvdgrab.coordinator.build import BOUND_WIDTH, Parts
from hvdgrab.coordinator.gradient import Arrival, UnitGradient, host_memory
from hvdgrab.coordinator.pairing import BUFFERS, Batch, PairBuffer
from hvdgrab.coordinator.saved import SavedState
from hvdgrab.coordinator.wire import Header, Kind, PairMessage
from hvdgrab.errors import UsageError

_SHOWN = 10
"""Units that `debug` prints."""


@dataclass(frozen=True)
class EndedEpoch:
    """What one rank has come to when the last unit of an epoch has passed."""

    header: Header
    orders: Orders
    """(W, n) int64: the orders of the epoch that ends."""
    coordinated: bool
    """Whether the epoch's gradients make the order of the next."""
    whole: bool
    """Whether this rank saw every unit of the epoch itself, from the first to the last."""
    meter: BoundSketch | BoundExact | None
    rule: Rule | None


class EpochWork:
    """One rank's part of its epochs, in the training thread.

    Args:
        parts: what the session is made of.
        book: says where the rank stands.
        thread: talks to the other ranks.
    """

    def __init__(self, parts: Parts, book: OrderBook, thread: CommunicationThread) -> None:
        self._parts, self._book, self.thread = parts, book, thread
        self._pairs: PairBuffer | None = None
        self._in_flight: deque[Future[None]] = deque()
        """Batches that may still be read by the communication thread, oldest first."""
        self._meter: LateMeter | None = None
        self._messages = 0
        """Messages sent in this epoch."""
        self._passes = 0
        """Backward passes in this epoch."""
        self._rule: Rule | None = None
        """The rule of an order for one rank alone."""
        self._coordinated = True
        self._whole = True
        self._make_consumer()

    def begin(self, coordinated: bool) -> None:
        """Start the epoch that the book stands in, or go on in it; ``coordinated``: its gradients make the next order."""
        book = self._book
        self._messages, self._passes, self._coordinated, self._whole = 0, 0, coordinated, book.position == 0
        if self._pairs is not None:
            self._pairs.begin(book.position // 2)
        self._meter = self._new_meter()
        if self._parts.config.debug:
            units = " ".join(map(str, book.order[:_SHOWN].tolist()))
            kept = "" if coordinated else ", kept for the next epoch"
            print(f"hvdgrab: rank {book.rank}, epoch {book.epoch}: the order begins {units}{kept}", file=sys.stderr, flush=True)

    def take(self, place: Place, gradient: UnitGradient | None, passes: int) -> None:
        """Take the next unit's gradient, or None if it had none of its own, and the number of its backward passes."""
        self._passes += passes
        seen = None if place.stand_in else gradient
        self._whole = self._whole and seen is not None
        if self._meter is not None and seen is not None and seen.measured is not None:
            self._meter.add(place, seen.measured)
        if not self._coordinated:
            return
        vector = None if seen is None else seen.vector
        if self._rule is not None:
            self._rule.skip() if vector is None else self._rule.add(vector)
        elif self._pairs is not None and not (place.position == self._book.n - 1 and place.position % 2 == 0):
            if len(self._in_flight) == BUFFERS and self._pairs.empty:  # a message ahead: the training waits (back-pressure)
                self.thread.wait(self._in_flight.popleft(), "earlier pairs")
            if batch := self._pairs.add(vector):
                self._send(batch)

    def check_passes(self, left_over: int) -> None:
        """Check at the end of an epoch that every batch that was drawn had its passes; warn on standard error if not.

        Args:
            left_over: passes of a unit that was not completed.

        Raises:
            UsageError: every batch had fewer passes than a unit has.
        """
        book, per_unit, passes = self._book, self._parts.config.passes_per_unit, self._passes + left_over
        seen, n = book.position, book.n
        if not book.exhausted or seen == n:
            return
        if per_unit > 1 and passes in range(n, n * per_unit, n):
            right = passes // n
            raise UsageError(
                f"rank {book.rank}: passes_per_unit is {per_unit}, but the {n} batches of epoch {book.epoch} had "
                f"{right} backward passes each: say passes_per_unit={right}"
            )
        print(
            f"hvdgrab: rank {book.rank}: {n - seen} of the {n} batches of epoch {book.epoch} had no backward pass; "
            "which ones is not known, so gradients may have been taken for those of other batches. Say optimizer.skip_unit() "
            "where the script leaves a batch out",
            file=sys.stderr,
        )

    def end(self) -> EndedEpoch:
        """Send the pairs that are left, and tell what the epoch has come to."""
        if self._pairs is not None and self._coordinated and (batch := self._pairs.flush()):
            self._send(batch)
        book = self._book
        header = Header(Kind.END, book.epoch, self._messages, book.n // 2, 0, book.position)
        meter = None if self._meter is None else self._meter.finish()
        return EndedEpoch(header, book.orders, self._coordinated, self._whole, meter, self._rule)

    def drain(self) -> None:
        """Wait until everything sent so far has been balanced."""
        while self._in_flight:
            self.thread.wait(self._in_flight.popleft(), "earlier pairs")

    def unsent(self) -> torch.Tensor | None:
        """See `PairBuffer.unsent`."""
        return None if self._pairs is None or not self._coordinated else self._pairs.unsent()

    def saved_rule(self) -> dict[str, Any] | None:
        """The state of a rule that orders one rank alone."""
        return None if self._rule is None else self._rule.state_dict()

    def resume(self, saved: SavedState) -> None:
        """Put what was saved of a rank's own pairs, or of its rule, in place; after `begin`."""
        if self._pairs is not None and self._coordinated:
            self._pairs.resume(saved.position, saved.unsent if saved.rank == self._book.rank else None)
        if self._rule is not None and saved.rule is not None:
            self._rule.load_state_dict(saved.rule)

    def _make_consumer(self) -> None:
        config, book, width = self._parts.config, self._book, self._parts.format.width
        if config.order in SINGLE_RANK_ORDERS:
            self._rule = build_rule(config.order, n=book.n, d=width, seed=config.seed, config=config.balance, order=book.order)
        elif config.uses_gradients:
            self._pairs = PairBuffer(width, self._parts.format.room, self._parts.device)

    def _new_meter(self) -> LateMeter | None:
        config, book, device, d = self._parts.config, self._book, self._parts.device, self._parts.format.dimension
        if config.bound == "off":
            return None
        common: dict[str, Any] = {"order": book.order, "epoch": book.epoch, "seed": config.seed, "rank": book.rank}
        if config.bound == "exact":
            return LateMeter(BoundExact(book.n, d, **common), d, device, lag=1)
        return LateMeter(BoundSketch(book.n, fold=None, width=BOUND_WIDTH, **common), BOUND_WIDTH, device, lag=16)

    def _send(self, batch: Batch) -> None:
        book, coordinator = self._book, self._parts.coordinator
        header = Header(Kind.PAIRS, book.epoch, self._messages, batch.first, len(batch.seen), book.position)
        self._messages += 1
        message = PairMessage(header, batch.differences, batch.seen)

        def exchange(communicator: Communicator) -> None:
            batch.arrived()
            coordinator.exchange(communicator, message)

        self._in_flight.append(self.thread.submit(exchange))


class LateMeter:
    """Feeds a meter some units late and several at a time: measuring never waits for a device, and costs less.

    Args:
        meter: of one epoch.
        size: values of a unit's measurement.
        device: of the measurements.
        lag: most units on their way.
    """

    def __init__(self, meter: BoundSketch | BoundExact, size: int, device: torch.device, lag: int = 16) -> None:
        self._meter = meter
        self._on_host = device.type == "cpu"
        self._memory = host_memory(lag, size, device=device)
        self._rows = self._memory.numpy()
        self._places: list[Place] = []
        self._latest: Arrival | None = None

    def add(self, place: Place, measured: torch.Tensor) -> None:
        """Take the (size,) values of the unit at ``place``; their memory may be used again at once."""
        row = len(self._places)
        if self._on_host:
            self._rows[row] = measured.numpy()
        else:
            self._latest = Arrival(self._memory[row], measured)
        self._places.append(place)
        if len(self._places) == len(self._rows):
            self.finish()

    def finish(self) -> BoundSketch | BoundExact:
        """The meter, with everything that was added."""
        if self._latest is not None:  # those before it came on the same stream
            self._latest.wait()
        for place, row in zip(self._places, self._rows, strict=False):
            self._meter.add(place.position, place.unit, row)
        self._places.clear()
        return self._meter
