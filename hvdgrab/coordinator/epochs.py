"""What one rank makes of an epoch's units: pairs, or steps of a rule of its own, and a measurement."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdgrab.balance import Rule, build_rule
from hvdgrab.balance.meters import BoundExact, BoundSketch
from hvdgrab.comm.communicator import Communicator
from hvdgrab.config import SINGLE_RANK_ORDERS, GraBConfig
from hvdgrab.coordinator.book import OrderBook, Orders, Place
from hvdgrab.coordinator.channel import Channel
from hvdgrab.coordinator.messages import Header, Kind, PairMessage
from hvdgrab.coordinator.pairing import PairBuffer
from hvdgrab.coordinator.parts import BOUND_WIDTH, Parts
from hvdgrab.coordinator.saved import SavedState
from hvdgrab.coordinator.staging import LateMeter
from hvdgrab.coordinator.unit import UnitGradient

_SHOWN = 10
"""Units that `debug` prints."""


class EpochWork:
    """One rank's part of an epoch, in the training thread.

    Args:
        config: the settings.
        book: where the rank stands.
        parts: made of the settings.
        dimension: d.
        device: of the vectors.
        channel: to the coordinator.
    """

    def __init__(
        self, config: GraBConfig, book: OrderBook, parts: Parts, dimension: int, device: torch.device, channel: Channel
    ) -> None:
        self._config, self._book, self._parts, self._channel = config, book, parts, channel
        self._dimension, self._device = dimension, device
        self._pairs: PairBuffer | None = None
        self._meter: LateMeter | None = None
        self._messages = 0
        self.rule: Rule | None = None
        """The rule of an order for one rank alone."""
        self.coordinated = True
        """Whether this epoch's gradients make the order of the next."""
        self.whole = True
        """Whether this rank saw every unit of the epoch itself, from the first to the last."""
        self._open()

    def begin(self, epoch: int, position: int, orders: Orders, coordinated: bool) -> None:
        """Start an epoch, or go on in one after ``position`` units."""
        self._messages, self.coordinated, self.whole = 0, coordinated, position == 0
        if self._pairs is not None:
            self._pairs.begin(position // 2)
        self._meter = self._new_meter(epoch, orders[self._book.rank])
        if self._config.debug:
            units = " ".join(map(str, orders[self._book.rank][:_SHOWN].tolist()))
            kept = "" if coordinated else ", kept for the next epoch"
            print(f"hvdgrab: rank {self._book.rank}, epoch {epoch}: the order begins {units}{kept}", file=sys.stderr, flush=True)

    def take(self, place: Place, gradient: UnitGradient | None) -> None:
        """Take the next unit's gradient; None where it had none of its own."""
        seen = None if place.stand_in else gradient
        self.whole = self.whole and seen is not None
        if self._meter is not None and seen is not None and seen.measured is not None:
            self._meter.add(place, seen.measured)
        if not self.coordinated:
            return
        vector = None if seen is None else seen.vector
        if self.rule is not None:
            self.rule.skip() if vector is None else self.rule.add(vector)
        elif self._pairs is not None and not (place.position == self._book.n - 1 and place.position % 2 == 0):
            self._pairs.add(vector)

    def end(self) -> tuple[Header, BoundSketch | BoundExact | None]:
        """Send what is left; the epoch's last header, and what was measured."""
        if self._pairs is not None and self.coordinated:
            self._pairs.flush()
        book = self._book
        header = Header(Kind.END, book.epoch, self._messages, book.n // 2, 0, book.position)
        return header, None if self._meter is None else self._meter.finish()

    def drain(self) -> None:
        """Wait until everything sent so far has been balanced."""
        if self._pairs is not None:
            self._pairs.drain()

    def unsent(self) -> torch.Tensor | None:
        """See `PairBuffer.unsent`."""
        return None if self._pairs is None or not self.coordinated else self._pairs.unsent()

    def resume(self, saved: SavedState) -> None:
        """Put what was saved of a rank's own pairs, or of its rule, in place; after `begin`."""
        if self._pairs is not None and self.coordinated:
            self._pairs.resume(saved.position, saved.unsent if saved.rank == self._book.rank else None)
        if self.rule is not None and saved.rule is not None:
            self.rule.load_state_dict(saved.rule)

    def _open(self) -> None:
        if self._config.order in SINGLE_RANK_ORDERS:
            self.rule = build_rule(
                self._config.order,
                n=self._book.n,
                d=self._parts.width,
                seed=self._config.seed,
                config=self._config.balance,
                order=self._book.order,
            )
        elif self._config.uses_gradients:
            self._pairs = PairBuffer(
                self._parts.width,
                self._parts.pairs_per_message,
                self._send,
                lambda sent: self._channel.wait(sent, "earlier pairs"),
                self._device,
            )

    def _new_meter(self, epoch: int, order: NDArray[np.int64]) -> LateMeter | None:
        config, n = self._config, self._book.n
        if config.bound == "off":
            return None
        common: dict[str, Any] = {"order": order, "epoch": epoch, "seed": config.seed, "rank": self._book.rank}
        if config.bound == "exact":
            return LateMeter(BoundExact(n, self._dimension, **common), self._dimension, self._device, lag=1)
        return LateMeter(BoundSketch(n, fold=None, width=BOUND_WIDTH, **common), BOUND_WIDTH, self._device, lag=16)

    def _send(
        self, pair: int, differences: NDArray[np.float32], seen: NDArray[np.int8], arrived: Callable[[], object]
    ) -> Future[None]:
        book, coordinator = self._book, self._parts.coordinator
        header = Header(Kind.PAIRS, book.epoch, self._messages, pair, len(differences), book.position)
        self._messages += 1
        message = PairMessage(header, differences, seen)

        def exchange(communicator: Communicator) -> None:
            arrived()
            coordinator.exchange(communicator, message)

        return self._channel.submit(exchange)
