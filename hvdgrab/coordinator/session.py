"""An ordering session: one rank's part in ordering a run, from units to the next epoch's orders.

The training thread calls `unit` after every unit's last backward pass.  Everything that waits for other ranks runs in the
communication thread; the training thread waits only for the first unit's handshake, for the end of an epoch before it starts
the next, and while it is a whole message ahead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from hvdgrab.comm.communicator import Communicator
from hvdgrab.comm.worker import CommunicationThread
from hvdgrab.coordinator.book import OrderBook
from hvdgrab.coordinator.build import Parts
from hvdgrab.coordinator.early_exits import EarlyExits
from hvdgrab.coordinator.ending import Outcome, Reordering, end_epoch
from hvdgrab.coordinator.epoch import EpochWork
from hvdgrab.coordinator.gradient import UnitGradient
from hvdgrab.coordinator.journal import Journal
from hvdgrab.coordinator.saved import SavedState
from hvdgrab.coordinator.start import greet
from hvdgrab.errors import CommunicatorClosed


@dataclass(frozen=True)
class Idle:
    """No unit has been seen."""

    loaded: SavedState | None = None
    """The state that the first unit goes on from."""


@dataclass(frozen=True)
class InEpoch:
    """An epoch is under way, or about to begin."""

    work: EpochWork


@dataclass(frozen=True)
class Ending:
    """The epoch's last unit has been seen, or it was left early: the next orders are being made."""

    work: EpochWork
    outcome: Future[Outcome]


class OrderingSession:
    """Orders the epochs of one rank, together with the sessions of the others.

    Args:
        parts: made by `build`.
        book: the sampler's; its later epochs are decided here from now on.
        facts: what must be equal on all ranks before the first unit (see `start`), besides what ``parts`` says itself.
        connect: makes the communicator, in the communication thread.
        journal: takes the epoch's measurements.
        unheard: called in the communication thread with its error if the training loop does not pick it up; ends the process.
        forget_passes: drops the backward passes of a unit that was not completed, and returns their number.
    """

    def __init__(
        self,
        parts: Parts,
        book: OrderBook,
        facts: dict[str, Any],
        connect: Callable[[], Communicator],
        journal: Journal,
        unheard: Callable[[BaseException], None],
        forget_passes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.parts, self.book, self.journal = parts, book, journal
        self.facts = {**facts, "ordering": parts.ordering}
        """What must be equal on all ranks, and in the run that made a state that is loaded here."""
        self.closed = False
        """Whether `close` was called."""
        self._connect, self._unheard, self._forget_passes = connect, unheard, forget_passes
        self._phase: Idle | InEpoch | Ending = Idle()
        self._thread: CommunicationThread | None = None
        """Started by the first unit."""
        self._exits = EarlyExits(book.rank)
        self._reordering = Reordering(parts.config)
        book.attended = True

    def unit(self, gradient: UnitGradient | None, passes: int = 1) -> None:
        """Take the gradient of the unit that has just had its last backward pass; None if it had none of its own.

        Args:
            gradient: the views that `Parts.views` asks for; read only, not kept.
            passes: backward passes that made the unit.

        Raises:
            UsageError: no unit was handed out for it.
            HvdGrabError: whatever happened in the communication thread.
        """
        match self._phase:
            case Idle(loaded):
                work = self._open(loaded)
            case InEpoch() | Ending() as under_way:  # without a pattern for `work`: this runs for every unit
                work = under_way.work
        work.thread.check()
        place = self.book.consume()
        self._exits.reach(self.book.position)
        work.take(place, gradient, passes)
        self.journal.unit_done()
        if self.book.position == self.book.n:
            self._end(work)

    def begin_next_epoch(self) -> None:
        """Put the book in the next epoch; ends the current one first if it was left early.

        Raises:
            UsageError: every batch of the epoch had fewer backward passes than a unit has.
            HvdGrabError: whatever happened in the communication thread.
        """
        match self._phase:
            case Ending(work, outcome) if self.closed:  # a last look at the data: nothing is ordered any more
                self.book.enter(self.book.epoch + 1, self._result(work, outcome).orders)
                self._phase = InEpoch(work)
                return
            case InEpoch(work):
                work.check_passes(self._forget_passes())
                ending = self._end(work)
            case Ending(work, _) as ending:
                work.check_passes(self._forget_passes())
            case Idle():
                raise AssertionError("an epoch cannot be over before its first unit")
        orders = self._result(work, ending.outcome).orders
        self._report(ending)
        self.book.enter(self.book.epoch + 1, orders)
        self._begin(work)

    def close(self, finish: bool = True, timeout: float = 30.0) -> bool:
        """End the session: finish the epoch that is under way if ``finish``, and what is queued.  Idempotent; never hangs.

        Returns:
            Whether everything was done; False if other ranks did not come within ``timeout`` seconds.
        """
        if self.closed:
            return True
        self.closed = True
        if self._thread is None:
            return True
        if finish and self.book.consumed and self._thread.error is None:
            match self._phase:
                case InEpoch(work):
                    self._report(self._end(work))
                case Ending() as ending:
                    self._report(ending)
        return self._thread.close(timeout)

    @property
    def connected(self) -> bool:
        """Whether this rank has ever talked to the others."""
        return self._thread is not None

    @property
    def error(self) -> BaseException | None:
        """What ended the communication, if anything did."""
        return None if self._thread is None else self._thread.error

    @property
    def finished(self) -> bool:
        """Whether the epoch that was under way when the session was closed could be ended, on all ranks."""
        match self._phase:
            case Ending(_, outcome):
                return outcome.done() and outcome.exception() is None
            case _:
                return not self.book.consumed

    def saved_state(self) -> SavedState:
        """What a run needs to continue from here; communicates nothing that the other ranks do not do anyway.

        A rank that balances waits until the pairs that it has sent are balanced; with a server every rank waits.
        """
        found: dict[str, Any]
        match self._phase:
            case Idle(loaded):
                if loaded is not None:
                    return loaded
                signs, balance = self._balance_of(self.book.epoch)
                found = {"signs": signs, "balance": balance}
            case InEpoch(work):
                work.drain()
                signs, balance = self._balance_of(self.book.epoch)
                found = {"signs": signs, "balance": balance, "unsent": work.unsent(), "rule": work.saved_rule()}
            case Ending(work, outcome):  # the next epoch's beginning is what is saved
                orders, epoch = self._result(work, outcome).orders, self.book.epoch + 1
                balance = self._balance_of(epoch)[1] if self.parts.config.balance.carry_over else None
                found = {"epoch": epoch, "position": 0, "orders": orders, "balance": balance, "rule": work.saved_rule()}
        return replace(SavedState.of(self.book, self.facts), reordering=self._reordering.saved(), **found)

    def restore(self, saved: SavedState) -> None:
        """Continue from a state that this rank has loaded; before the first unit, or between two.

        Raises:
            StateError: the state is of another run.
        """
        saved.check(self.book, self.facts)
        saved = saved.reordered(self.facts)
        work = self._leave_epoch()
        self.book.restore(saved.epoch, saved.position, saved.orders)
        self._reordering.restore(saved.reordering)
        if work is None:
            self._phase = Idle(saved)
        else:
            self._begin(work)
            self._take_over(work, saved)

    def _leave_epoch(self) -> EpochWork | None:
        """Come to rest before a state is put in place: nothing is under way, and an epoch that has ended gets its line."""
        match self._phase:
            case Idle():
                return None
            case InEpoch(work):
                work.drain()
                self.journal.take()
            case Ending(work, outcome) as ending:
                self._result(work, outcome)
                self._report(ending)
        return work

    def _open(self, loaded: SavedState | None) -> EpochWork:
        """Begin with the first unit: the ranks shake hands."""
        config, book = self.parts.config, self.book
        if self._thread is None:
            self._thread = CommunicationThread(
                self._connect, self._unheard, self._exits.weak_look(), describe=book.describe,
                warn_every=config.stall_warning, give_up=config.stall_timeout,
            )  # fmt: skip
        work = EpochWork(self.parts, book, self._thread)
        saved = greet(self.parts, book, self.facts, self._thread, loaded)
        if saved is not None:
            self._reordering.restore(saved.reordering)
        self._begin(work)
        if saved is not None:
            self._take_over(work, saved)
        return work

    def _begin(self, work: EpochWork) -> None:
        """Start the epoch that the book stands in, or go on in it."""
        work.begin(self._reordering.coordinates(self.book.epoch))
        self.journal.begin_epoch()
        self._exits.begin(self.book.epoch, self.book.position)
        self._phase = InEpoch(work)

    def _end(self, work: EpochWork) -> Ending:
        """Queue everything that the end of an epoch needs, after its last messages."""
        parts, book, exits, reordering = self.parts, self.book, self._exits, self._reordering
        left = exits.end()
        early = left is not None and left.unit < book.n
        if left is not None and early:  # before any message, which may have to wait for the others
            work.thread.submit(lambda communicator: communicator.notify(left.row()))
        ended = work.end()

        def run(communicator: Communicator) -> Outcome:
            outcome = end_epoch(communicator, parts, book, reordering, ended)
            if early:  # all have left at the same place: only so that notices do not pile up
                with contextlib.suppress(CommunicatorClosed):
                    exits.collect(communicator)
            return outcome

        self._phase = ending = Ending(work, work.thread.submit(run))
        return ending

    def _result(self, work: EpochWork, outcome: Future[Outcome]) -> Outcome:
        return work.thread.wait(outcome, f"the end of epoch {self.book.epoch}")

    def _report(self, ending: Ending) -> None:
        """Queue the line of the epoch that has ended."""
        journal, outcome, measured = self.journal, ending.outcome, self.journal.take()
        ending.work.thread.submit(lambda communicator: journal.report(outcome.result().facts, measured, communicator))

    def _balance_of(self, epoch: int) -> tuple[Any, dict[str, Any] | None]:
        """Signs and balance of an epoch as far as they are known; asked for in the communication thread while it runs."""
        coordinator, thread = self.parts.coordinator, self._thread
        if thread is None or thread.closed or thread.error is not None:
            return coordinator.saved(None, epoch)
        return thread.ask(lambda communicator: coordinator.saved(communicator, epoch), "what has been balanced")

    def _take_over(self, work: EpochWork, saved: SavedState) -> None:
        """Put the inner state of a saved epoch in place; the book is there already."""
        work.resume(saved)
        config, coordinator = self.parts.config, self.parts.coordinator
        if not config.uses_gradients:
            return
        # If every rank has a running sum of its own, another rank's is useless here; an epoch that has not begun has none.
        mine = saved.rank == self.book.rank or coordinator.shares_balance
        balance = saved.balance if mine and (saved.position > 0 or config.balance.carry_over) else None
        work.thread.ask(
            lambda communicator: coordinator.restore(communicator, saved.epoch, saved.signs, balance), "the saved state"
        )
