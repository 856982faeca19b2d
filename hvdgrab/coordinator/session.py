"""An ordering session: one rank's part in ordering a run, from units to the next epoch's orders.

The training thread calls `unit` after every unit's last backward pass.  Everything that waits for other ranks runs in the
communication thread; the training thread waits only for the first unit's handshake, for the end of an epoch before it starts
the next, and where it is a whole message ahead.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

from hvdgrab.comm.communicator import Communicator
from hvdgrab.config import GraBConfig
from hvdgrab.coordinator.book import OrderBook, Orders
from hvdgrab.coordinator.channel import Channel
from hvdgrab.coordinator.departures import Departures
from hvdgrab.coordinator.ending import EndOfEpoch, Outcome
from hvdgrab.coordinator.epochs import EpochWork
from hvdgrab.coordinator.journal import Journal
from hvdgrab.coordinator.opening import Opening
from hvdgrab.coordinator.pairing import CPU
from hvdgrab.coordinator.parts import make_parts
from hvdgrab.coordinator.passes import PassCount
from hvdgrab.coordinator.reordering import Reordering
from hvdgrab.coordinator.saved import SavedState
from hvdgrab.coordinator.unit import UnitGradient
from hvdgrab.errors import CommunicatorClosed


class OrderingSession:
    """Orders the epochs of one rank, together with the sessions of the others.

    Args:
        config: the settings.
        book: the sampler's; its later epochs are decided here from now on.
        dimension: d, values of a gradient.
        facts: what must be equal on all ranks before the first unit (see `handshake`), beside what the book says itself.
        connect: makes the communicator, in the communication thread.
        journal: takes the epoch's measurements.
        unheard: called in the communication thread with its error if the training loop does not pick it up; ends the process.
        device: of the vectors that `unit` is given.
    """

    def __init__(
        self,
        config: GraBConfig,
        book: OrderBook,
        dimension: int,
        facts: dict[str, Any],
        connect: Callable[[], Communicator],
        journal: Journal,
        unheard: Callable[[BaseException], None],
        device: torch.device = CPU,
    ) -> None:
        self.config, self.book, self.journal = config, book, journal
        self._dimension, self._device = dimension, device
        self._parts = make_parts(config, book, dimension, device)
        self._facts = {**facts, "ordering": self._parts.ordering}
        self._coordinator = self._parts.coordinator
        self.views = self._parts.views
        """What of a unit's gradient `unit` must be given."""
        self._connect, self._unheard = connect, unheard
        self.forget_passes: Callable[[], int] = lambda: 0
        """Drops the backward passes of a unit that was not completed and tells how many; set by the capture's owner."""
        self._channel: Channel | None = None
        self._work: EpochWork | None = None
        self._saved: SavedState | None = None
        self._outcome: Future[Outcome] | None = None
        self._departures = Departures(book.rank)
        self._reordering = Reordering(config)
        self._passes = PassCount(book, config.passes_per_unit)
        self._closed = False
        book.attend(self._next_orders)

    def unit(self, gradient: UnitGradient | None, passes: int = 1) -> None:
        """Take the gradient of the unit that has just had its last backward pass; None if it had none of its own.

        Args:
            gradient: the views of it that `views` asks for; read only, not kept.
            passes: backward passes that made the unit.

        Raises:
            UsageError: no unit was handed out for it.
            HvdGrabError: whatever happened in the communication thread.
        """
        channel, work = self._connected()
        channel.check()
        place = self.book.consume()
        self._departures.reach(self.book.position)
        self._passes.add(passes)
        work.take(place, gradient)
        self.journal.unit_done()
        if self.book.position == self.book.n:
            self._outcome = self._end_epoch()

    def close(self, finish: bool = True, timeout: float = 30.0) -> bool:
        """End the session: finish the epoch that is under way if ``finish``, and what is queued.  Idempotent; never hangs.

        Returns:
            Whether everything was done; False if other ranks did not come within ``timeout`` seconds.
        """
        if self._closed:
            return True
        self._closed = True
        if self._channel is None:
            return True
        if finish and self.book.consumed and self.error is None:
            self._outcome = outcome = self._outcome or self._end_epoch()
            measured = self.journal.take()
            self._channel.submit(lambda communicator: self.journal.report(outcome.result().facts, measured, communicator))
        return self._channel.close(timeout)

    @property
    def connected(self) -> bool:
        """Whether this rank has ever talked to the others."""
        return self._channel is not None

    @property
    def error(self) -> BaseException | None:
        """What ended the communication, if anything did."""
        return None if self._channel is None else self._channel.error

    @property
    def finished(self) -> bool:
        """Whether the epoch that was under way when the session was closed could be ended, on all ranks."""
        return not self.book.consumed or (self._outcome is not None and self._outcome.done() and not self._outcome.exception())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def facts(self) -> dict[str, Any]:
        """What must be equal on all ranks, and in the run that made a state that is loaded here."""
        return self._facts

    def saved_state(self) -> SavedState:
        """What a run needs to continue from here; communicates nothing that the other ranks do not do anyway.

        On a rank that balances it waits until the pairs that it has sent are balanced, and with a server on every rank.
        """
        if self._saved is not None:
            return self._saved
        if self._outcome is not None:  # between two epochs: the next one's beginning is what is saved
            orders, epoch = self._wait(self._outcome, "the end of the epoch").orders, self.book.epoch + 1
            balance = self._balance_of(epoch)[1] if self.config.balance.carry_over else None
            place: dict[str, Any] = {"epoch": epoch, "position": 0, "orders": orders, "balance": balance}
        else:
            if self._work is not None:
                self._work.drain()
            signs, balance = self._balance_of(self.book.epoch)
            place = {"signs": signs, "balance": balance, "unsent": None if self._work is None else self._work.unsent()}
        rule = None if self._work is None or self._work.rule is None else self._work.rule.state_dict()
        return SavedState.of(self.book, self._facts, **place, rule=rule, reordering=self._reordering.saved())

    def restore(self, saved: SavedState) -> None:
        """Continue from a state that this rank has loaded; before the first unit, or between two."""
        saved.check(self.book, self._facts)
        saved = saved.reordered(self._facts)
        self._saved = saved
        self.book.restore(saved.epoch, saved.position, saved.orders)
        self._reordering.restore(saved.reordering)
        if self._channel is not None:
            self._leave_epoch()
            self._begin_epoch(saved.epoch, saved.position, saved.orders)
            self._take_over(saved)
            self._saved = None

    def _leave_epoch(self) -> None:
        """Come to rest before a state is put in place: nothing is under way, and an epoch that has ended gets its line."""
        assert self._channel is not None
        assert self._work is not None
        self._work.drain()
        measured = self.journal.take()
        if self._outcome is not None:
            facts = self._wait(self._outcome, f"the end of epoch {self.book.epoch}").facts
            self._channel.submit(functools.partial(self.journal.report, facts, measured))
            self._outcome = None

    def _balance_of(self, epoch: int) -> tuple[Any, dict[str, Any] | None]:
        """Signs and balance of an epoch as far as they are known, asked for in the communication thread while it runs."""
        if self._channel is None or self._channel.closed or self._channel.error is not None:
            return self._coordinator.saved(None, epoch)
        return self._channel.ask(lambda communicator: self._coordinator.saved(communicator, epoch), "what has been balanced")

    def _next_orders(self) -> Orders:
        """The orders of the next epoch; ends the current one first if it was left early."""
        if self._closed and self._outcome is not None:  # a last look at the data: nothing is ordered any more
            outcome, self._outcome = self._outcome, None
            return self._wait(outcome, f"the end of epoch {self.book.epoch}").orders
        self._passes.add(self.forget_passes())
        self._passes.check()
        outcome = self._outcome or self._end_epoch()
        result = self._wait(outcome, f"the end of epoch {self.book.epoch}")
        assert self._channel is not None
        self._channel.submit(functools.partial(self.journal.report, result.facts, self.journal.take()))
        self._outcome = None
        self._begin_epoch(self.book.epoch + 1, 0, result.orders)
        return result.orders

    def _end_epoch(self) -> Future[Outcome]:
        """Queue everything that the end of an epoch needs, after its last messages."""
        assert self._channel is not None
        assert self._work is not None
        book, departures = self.book, self._departures
        left = departures.end()
        early = left is not None and left.unit < book.n
        if left is not None and early:  # before any message, which may have to wait for the others
            self._channel.submit(lambda communicator: communicator.notify(left.row()))
        header, meter = self._work.end()
        end = EndOfEpoch(
            config=self.config,
            header=header,
            orders=book.orders,
            seeded_orders=book.seeded_orders,
            dimension=self._dimension,
            coordinator=self._coordinator,
            reordering=self._reordering,
            coordinated=self._work.coordinated,
            meter=meter,
            rule=self._work.rule,
            whole=self._work.whole,
        )

        def run(communicator: Communicator) -> Outcome:
            outcome = end.run(communicator)
            if early:  # all have left at the same place: only so that notices do not pile up
                with contextlib.suppress(CommunicatorClosed):
                    departures.collect(communicator)
            return outcome

        return self._channel.submit(run)

    def _begin_epoch(self, epoch: int, position: int, orders: Orders) -> None:
        assert self._work is not None
        self._passes.begin()
        self._work.begin(epoch, position, orders, self._reordering.coordinates(epoch))
        self.journal.begin_epoch()
        self._departures.begin(epoch, position)

    def _connected(self) -> tuple[Channel, EpochWork]:
        """The way to the other ranks; at the first unit it is opened and the ranks shake hands."""
        if self._channel is None or self._work is None:
            self._channel = Channel(self.config, self.book, self._connect, self._unheard, self._departures.weak_look())
            self._work = EpochWork(self.config, self.book, self._parts, self._dimension, self._device, self._channel)
            saved = Opening(self.config, self.book, self._parts, self._facts, self._channel).greet(self._saved)
            if saved is not None:
                self._reordering.restore(saved.reordering)
            self._begin_epoch(self.book.epoch, self.book.position, self.book.orders)
            if saved is not None:
                self._take_over(saved)
            self._saved = None
        return self._channel, self._work

    def _take_over(self, saved: SavedState) -> None:
        """Put the inner state of a saved epoch in place; the book is there already."""
        assert self._channel is not None
        assert self._work is not None
        self._work.resume(saved)
        if not self.config.uses_gradients:
            return
        # Where every rank has a running sum of its own, another rank's is none; and an epoch that has not begun has none.
        mine = saved.rank == self.book.rank or self._coordinator.shares_balance
        balance = saved.balance if mine and (saved.position > 0 or self.config.balance.carry_over) else None
        self._channel.ask(
            lambda communicator: self._coordinator.restore(communicator, saved.epoch, saved.signs, balance), "the saved state"
        )

    def _wait(self, future: Future[Outcome], what: str) -> Outcome:
        assert self._channel is not None
        return self._channel.wait(future, what)
